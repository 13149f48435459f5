"""Replicate small thunks: every worker runs them, into its own copy of the result, so that their readers need no wait.

A norm of one row takes 0.2 microseconds, as long as the wait before its reader. Larger thunks, and those of a step that is
large in total, are divided among workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from camshaft.backends.device import HOST
from camshaft.graph.custom import CustomOp
from camshaft.plan.buffers import Lifetime
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.lowering.node_thunks import NodeRange
from camshaft.plan.memory.arena import unshared_steps
from camshaft.plan.schedule import Thunk

# Limits of (bytes, operations) for all of a step's thunks: lower if workers could share them. On two Zen 4 cores, replicating the
# norms, rotations and merges of a SmolLM2-135M token saves 1 to 2.5 % of its time; its silu_multiply of 14 KB would cost 1 %.
MOST_SHARED, MOST_ALONE = (12 << 10, 16 << 10), (64 << 10, 64 << 10)


def replicate_small(lowered: Lowered, workers: int) -> list[Thunk]:
    """Returns the thunks, small ones marked as replicated; none if there is one worker, or a device outside the host."""
    thunks = lowered.thunks
    if workers == 1 or lowered.devices:
        return thunks
    small = {i for origin in lowered.origins for i in range(origin.first, origin.last) if _is_small(thunks[i], origin)}
    works = {i: _work(thunks[i], origin) for origin in lowered.origins for i in range(origin.first, origin.last)}
    chosen = _whole_buffers(thunks, _small_steps(thunks, small, works))
    return [_replicated(thunk) if i in chosen else thunk for i, thunk in enumerate(thunks)]


def _work(thunk: Thunk, origin: NodeRange) -> tuple[float, float]:
    """Returns the thunk's bytes and operations at the bounds, at most the node's (which reads only part of a table).

    A thunk of a node with several counts at most 8 operations per f32 element: the merge of attention has few of the node's.
    """
    op, spec = origin.node.op, origin.node.spec
    nbytes = min(sum(use.slice.nbytes for use in thunk.uses), op.nbytes(spec))
    return nbytes, op.flops(spec) if origin.last - origin.first == 1 else min(op.flops(spec), 2 * nbytes)


def _is_small(thunk: Thunk, origin: NodeRange) -> bool:
    """Whether the thunk is a small host kernel that writes only temporaries and is not the caller's own function."""
    if isinstance(origin.node.op, CustomOp) or thunk.kind != "kernel" or thunk.device != HOST:
        return False
    if any(buffer.lifetime is not Lifetime.TEMP for buffer in thunk.written):
        return False
    return _within(_work(thunk, origin), MOST_ALONE)


def _within(work: Sequence[float], most: Sequence[float]) -> bool:
    return all(amount <= limit for amount, limit in zip(work, most, strict=True))


def _small_steps(thunks: Sequence[Thunk], small: set[int], works: dict[int, tuple[float, float]]) -> set[int]:
    """Returns the thunks of steps that are small in total; in larger steps, sharing saves more than the wait costs."""
    steps = unshared_steps(thunks)
    together: dict[int, list[int]] = defaultdict(list)
    for i in sorted(small):
        together[steps[i]].append(i)
    found: set[int] = set()
    for members in together.values():
        alone = sum(thunks[i].programs.bound for i in members) == 1
        whole = [sum(works[i][kind] for i in members) for kind in (0, 1)]
        found |= set(members) if _within(whole, MOST_ALONE if alone else MOST_SHARED) else set()
    return found


def _whole_buffers(thunks: Sequence[Thunk], chosen: set[int]) -> set[int]:
    """Returns the chosen thunks whose buffers only chosen thunks write: a worker's copy must have all of the buffer."""
    while True:
        others = {buffer for i, thunk in enumerate(thunks) if i not in chosen for buffer in thunk.written}
        kept = {i for i in chosen if others.isdisjoint(thunks[i].written)}
        if kept == chosen:
            return kept
        chosen = kept


def _replicated(thunk: Thunk) -> Thunk:
    return replace(thunk, replicated=True, reason=f"{thunk.reason}; run by every worker")
