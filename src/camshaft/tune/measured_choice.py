"""Measure the best candidates of shapes that a program used. `python -m camshaft.tune.measured_choice` does all waiting jobs.

It runs at the lowest priority after the program has ended. It proves and compiles rivals of the cost model's choice, times
them in interleaved rounds for at most BUDGET_S in all, and stores the results as `camshaft tune` does.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from camshaft import ops
from camshaft.backends.registry import device
from camshaft.errors import CamshaftError
from camshaft.ops.kernels.launch import for_workers
from camshaft.ops.spec import TensorSpec
from camshaft.plan.hooks import hook
from camshaft.selection.measurements import measurements
from camshaft.selection.select import alternatives
from camshaft.selection.sites import Measurement, measurement
from camshaft.store.file_lock import SAFE_FLAGS, try_lock
from camshaft.store.files import remove_unfinished
from camshaft.tune.benchmark import Candidate, benchmark_round_robin
from camshaft.tune.compile_worker import node_from
from camshaft.tune.graphs import Use
from camshaft.tune.inputs import n_copies
from camshaft.tune.jobs import RIVAL_WITHIN, begin, folder, waiting
from camshaft.tune.rounds import BenchmarkConfig, Timing
from camshaft.validation.proof import prove
from camshaft.validation.run import cost_on

BUDGET_S = 0.5
# One shape takes at most this part of the budget, and at most this share of what is left; more only for its first rounds.
MOST_OF_BUDGET, SHARED_BY = 0.3, 4
# A shape whose first rounds need more than this part of the budget is measured at a smaller size.
LARGE = 0.7
LEAST_ROUNDS = 3
CANDIDATES = 3
LEAST_NOISE = 0.02
# After this the process gives up; the job waits for the next program.
GIVE_UP_S = 60.0
# Sizes are halved down to this until the rounds fit the budget.
LEAST_SIZE = 512

Race = Callable[[Sequence[Candidate], BenchmarkConfig], list[Timing]]


@dataclass(frozen=True)
class Measured:
    """The measurements of one shape, the cost model's choice first, for the plan of this name."""

    plan: str
    use: Use
    rows: tuple[Measurement, ...]

    @property
    def is_refuted(self) -> bool:
        """Whether another variant than the cost model's choice won."""
        return min(self.rows, key=lambda row: row.ns) is not self.rows[0]


@dataclass(frozen=True)
class Job:
    """A job's file as JSON, its uses with their JSON, and the cached plans to save again, if any (SavedPlans)."""

    data: dict[str, Any]
    threads: int
    uses: tuple[tuple[Any, Use], ...]
    saved: Any


def _job(text: bytes) -> Job | None:
    """The job of a file's text; None if the file is damaged."""
    try:
        data = json.loads(text)
        uses = tuple((row, _use(row)) for row in data["uses"])
        return Job(data, int(data["threads"]), uses, _saved(data["saved"]))
    except (ValueError, KeyError, TypeError, AttributeError, CamshaftError):
        return None


def measure_job(job: Job, race: Race, budget_s: float = BUDGET_S) -> tuple[list[Measured], list[Any]]:
    """Measure the uses of a job that were not measured, and store the results. Returns them, and the JSON of the uses for which
    `budget_s` left no time. `race` times candidates."""
    spent_ns, found, left = 0.0, [], []
    with for_workers(job.threads):
        rivals = _proved(job.uses)
        for remaining, (row, use, candidates) in zip(range(len(rivals), 0, -1), rivals, strict=True):
            left_s = budget_s - spent_ns / 1e9
            if not _fits(candidates, use.cold, left_s):
                left.append(row)
                continue
            allowed_s = min(budget_s * MOST_OF_BUDGET, left_s / min(remaining, SHARED_BY))
            reference = candidates[0]
            again, *timings = race([reference, *candidates], _config(job.threads, use, allowed_s, len(candidates)))
            spent_ns += sum(_spent_ns(timing) for timing in (again, *timings))
            rows = _rows(candidates, again, timings, job.threads)
            measurements().replace_site(use.op, use.node, rows)
            found.append(Measured(row["plan"], use, rows))
    return found, left


def _use(row: dict[str, Any]) -> Use:
    return Use(ops.get(row["op"]), node_from(row["node"]), row["override"], row["cold"])


def _proved(uses: Sequence[tuple[Any, Use]]) -> list[tuple[Any, Use, list[Candidate]]]:
    """Each row with its use, unless that was measured, at a size that can be, with its proved candidates, the
    cost model's choice first."""
    found, seen = [], set()
    for row, whole in uses:
        use = _smaller(whole)
        if use.key in seen or measurements().at(use.op, use.node):
            continue
        seen.add(use.key)
        candidates = _candidates(use)
        if len(candidates) > 1:
            found.append((row, use, candidates))
    results = prove([c.case for _, _, candidates in found for c in candidates])
    proved = [(row, use, [c for c in cs if results[c.case].status == "proved"]) for row, use, cs in found]
    return [(row, use, candidates) for row, use, candidates in proved if len(candidates) > 1]


def _candidates(use: Use) -> list[Candidate]:
    found = alternatives(use.op, use.node, use.override)[:CANDIDATES]
    candidates = [Candidate(use.op, use.node, variant, backend) for variant, backend in found]
    return [c for c in candidates if _estimate(c) <= RIVAL_WITHIN * _estimate(candidates[0])]


def _estimate(candidate: Candidate) -> float:
    return cost_on(candidate.op, candidate.variant, candidate.node, device(candidate.backend))


def _fits(candidates: Sequence[Candidate], cold: bool, allowed_s: float) -> bool:
    """Whether the warm-up and the first rounds of all, with the reference twice, are estimated to take no longer."""
    first = candidates[0]
    run_ns = (sum(map(_estimate, candidates)) + _estimate(first)) * (n_copies(first.op, first.node) if cold else 1)
    return (LEAST_ROUNDS + 1) * run_ns <= allowed_s * 1e9


def _smaller(use: Use) -> Use:
    """The use with plain inputs halved in every large size until it fits the budget; measurements reach a factor of four."""
    for _ in range(2):
        specs = use.node.inputs
        sizes = [d for spec in specs for d in spec.shape if isinstance(d, int)]
        fixed = len(sizes) == sum(len(spec.shape) for spec in specs)
        plain = fixed and all(spec.is_plain for spec in specs) and not use.op.indexes
        candidates = _candidates(use) if plain and max(sizes, default=0) >= 2 * LEAST_SIZE else []
        if not candidates or _fits(candidates, use.cold, BUDGET_S * LARGE):
            break
        halves = tuple(
            TensorSpec(tuple(d // 2 if d >= 2 * LEAST_SIZE else d for d in spec.bounds), spec.parts[0].dtype)
            for spec in use.node.inputs
        )
        if not use.op.accepts(halves, use.node.attrs):
            break
        node = replace(use.node, inputs=halves, outputs=use.op.outputs(halves, use.node.attrs))
        use = replace(use, node=node)
    return use


def _config(threads: int, use: Use, allowed_s: float, n: int) -> BenchmarkConfig:
    warmup_s = allowed_s / (4 * (n + 1))
    return BenchmarkConfig(
        runs=40,
        least_runs=LEAST_ROUNDS,
        budget_s=allowed_s / 2,
        warmup_s=warmup_s,
        window=2,
        cold=use.cold,
        threads=threads,
    )


def _spent_ns(timing: Timing) -> float:
    """Returns the time of all samples, warm-up included."""
    return timing.uses * (sum(timing.samples_ns) + timing.warmup_runs * timing.median_ns)


def _rows(
    candidates: Sequence[Candidate], again: Timing, timings: Sequence[Timing], threads: int
) -> tuple[Measurement, ...]:
    """The measurements. A candidate that is not faster than the reference beyond noise is stored with the reference's time or
    more, so that the cost model's choice stays."""
    first = timings[0]
    noise = max(LEAST_NOISE, first.ratio_to(again) - 1, again.ratio_to(first) - 1)
    rows = []
    for candidate, timing in zip(candidates, timings, strict=True):
        ratio = timing.ratio_to(first)
        ns = first.median_ns * (ratio if ratio * (1 + noise) < 1 else max(ratio, 1.0))
        made = measurement(
            candidate.op, candidate.variant, candidate.backend, candidate.node, ns, threads,
            guess=candidate is candidates[0], quick=True,
        )  # fmt: skip
        rows.append(made)
    return tuple(rows)


def _race(candidates: Sequence[Candidate], config: BenchmarkConfig) -> list[Timing]:
    return benchmark_round_robin(candidates, None, config)


def do_job(path: Path, race: Race = _race) -> list[Measured]:
    """Do the job in the file, and save the cached plans again whose choices stay the same. What the budget left out waits for
    the next program. A damaged file is deleted."""
    data, before = path.read_bytes(), hook("store_state")()
    later = begin(path)
    job = _job(data)
    if job is None:
        if later is not None:
            later.unlink(missing_ok=True)
        return []
    found, left = measure_job(job, race)
    saved = job.saved
    if saved is not None and saved.state == before:
        saved = hook("carry_over")(saved, {measured.plan for measured in found if measured.is_refuted})
    if later is not None and left:
        rest = {**job.data, "uses": left, "saved": None if saved is None else asdict(saved)}
        later.write_text(json.dumps(rest), "utf-8")
    elif later is not None:
        later.unlink(missing_ok=True)
    return found


def _saved(row: dict[str, Any] | None) -> Any:
    """The SavedPlans of a job, if any."""
    return None if row is None else hook("SavedPlans")(tuple(row["names"]), row["facts"], tuple(row["state"]))


def main() -> None:
    """Do all waiting jobs at the lowest priority."""
    if hasattr(os, "nice"):
        os.nice(19)
    timer = threading.Timer(GIVE_UP_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    with suppress(CamshaftError, OSError):
        # not store().locked, which continues after two seconds: two processes would disturb each other
        descriptor = os.open(folder() / "running.lock", os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o600)
        if try_lock(descriptor):
            remove_unfinished(folder())
            for path in waiting():
                with suppress(CamshaftError, OSError):  # one job's, which is tried again; the others go on
                    do_job(path)


if __name__ == "__main__":
    main()
