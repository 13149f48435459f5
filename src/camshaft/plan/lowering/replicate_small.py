"""Let every worker run small thunks itself, into its own copy, so that their readers need no wait.

A norm of one row takes 0.2 microseconds, a wait before its reader as much again: doing it twice is cheaper than telling. Larger
ones are shared out as ever, and so are those of a step that together are large.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from camshaft.backends.device import HOST
from camshaft.graph.custom import CustomOp
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.lowering.node_range import NodeRange
from camshaft.plan.memory.arena import unshared_steps
from camshaft.plan.schedule import Lifetime, Thunk

# What a step's thunks may read and write, and compute, together: less where workers could share them out. On two Zen 4 cores the
# norms, rotations and merges of a token of SmolLM2-135M gained 1 to 2.5 % of it, its silu_multiply of 14 KB lost 1 %.
MOST_SHARED, MOST_ALONE = (12 << 10, 16 << 10), (64 << 10, 64 << 10)


def replicate_small(lowered: Lowered, workers: int) -> list[Thunk]:
    """The thunks, the small ones marked as every worker's. None where one worker runs all, or a device has a part in it."""
    thunks = lowered.thunks
    if workers == 1 or lowered.devices:
        return thunks
    small = {i for origin in lowered.origins for i in range(origin.first, origin.last) if _is_small(thunks[i], origin)}
    works = {i: _work(thunks[i], origin) for origin in lowered.origins for i in range(origin.first, origin.last)}
    chosen = _whole_buffers(thunks, _small_steps(thunks, small, works))
    return [_marked(thunk) if i in chosen else thunk for i, thunk in enumerate(thunks)]


def _work(thunk: Thunk, origin: NodeRange) -> tuple[float, float]:
    """Bytes and operations, at the bounds: no more than the node's, which says how little of a table is read. Of a node of
    several thunks, 8 operations an f32 element: a merge of attention has few of the node's."""
    op, spec = origin.node.op, origin.node.spec
    nbytes = min(sum(use.slice.nbytes for use in thunk.uses), op.nbytes(spec))
    return nbytes, op.flops(spec) if origin.last - origin.first == 1 else min(op.flops(spec), 2 * nbytes)


def _is_small(thunk: Thunk, origin: NodeRange) -> bool:
    """Whether the thunk is a kernel of ours on the host that writes temporaries alone, and little of anything."""
    if isinstance(origin.node.op, CustomOp) or thunk.kind != "kernel" or thunk.device != HOST:
        return False
    written = [use.slice.buffer for use in thunk.uses if use.access == "write"]
    if any(buffer.lifetime is not Lifetime.TEMP for buffer in written):
        return False
    return _within(_work(thunk, origin), MOST_ALONE)


def _within(work: Sequence[float], most: Sequence[float]) -> bool:
    return all(amount <= limit for amount, limit in zip(work, most, strict=True))


def _small_steps(thunks: Sequence[Thunk], small: set[int], works: dict[int, tuple[float, float]]) -> set[int]:
    """Those of the steps in which they are little together: else sharing them out gains more than the wait costs."""
    steps = unshared_steps(thunks)
    together: dict[int, list[int]] = defaultdict(list)
    for i in sorted(small):
        together[steps[i]].append(i)
    remaining: set[int] = set()
    for members in together.values():
        alone = sum(thunks[i].programs.bound for i in members) == 1
        whole = [sum(works[i][kind] for i in members) for kind in (0, 1)]
        remaining |= set(members) if _within(whole, MOST_ALONE if alone else MOST_SHARED) else set()
    return remaining


def _whole_buffers(thunks: Sequence[Thunk], chosen: set[int]) -> set[int]:
    """Those whose buffers none but themselves write: a copy of a worker's own must hold all of it."""
    while True:
        others = {
            u.slice.buffer for i, t in enumerate(thunks) if i not in chosen for u in t.uses if u.access == "write"
        }
        remaining = {
            i for i in chosen if not any(u.slice.buffer in others for u in thunks[i].uses if u.access == "write")
        }
        if remaining == chosen:
            return remaining
        chosen = remaining


def _marked(thunk: Thunk) -> Thunk:
    return replace(thunk, replicated=True, reason=f"{thunk.reason}; by every worker for itself")
