"""Tune a node: measure all variants, search their tunables, validate the winner, store the times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from camshaft.backends.registry import DEFAULT_ORDER, device
from camshaft.ops.op import NodeSpec, Op, Values
from camshaft.process import thread_count
from camshaft.selection.measurements import measurements
from camshaft.selection.select import alternatives
from camshaft.selection.sites import Measurement, measurement
from camshaft.settings import settings
from camshaft.tune.benchmark import Candidate, benchmark_round_robin
from camshaft.tune.compilation import COMPILE_TIMEOUT_S, Compiler
from camshaft.tune.inputs import Array, inputs_for
from camshaft.tune.rounds import BenchmarkConfig, Timing
from camshaft.tune.search import beam_search
from camshaft.validation.proof import prove

# A gain below 2%, or below the noise of the reference in the same race, does not count. On a busy machine the search accepts
# noise up to 20%; its result must still win the final race.
LEAST_NOISE, MAX_SEARCH_NOISE = 0.02, 0.2
# Variants slower than the fastest by more than this factor are not searched.
SEARCHED_WITHIN = 1.5
FINALISTS = 3
FINAL_RUNS = 2


@dataclass(frozen=True)
class Failure:
    """A rejected candidate and the reason."""

    candidate: str
    reason: str


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a node: the default choice and the winner, in nanoseconds per use. `gain` is the speed-up, 1 if it
    is within `noise`."""

    op: str
    shape: str
    cold: bool
    threads: int
    before: str
    before_ns: float
    after: str
    after_ns: float
    gain: float
    noise: float
    n_tried: int
    failures: tuple[Failure, ...]


@dataclass
class _Work:
    """The state of tuning one node."""

    op: Op
    node: NodeSpec
    args: tuple[Array, ...]
    config: BenchmarkConfig
    compiler: Compiler
    beam: int
    noise: float = LEAST_NOISE
    n_tried: int = 0
    failures: list[Failure] = field(default_factory=list)

    def race(self, candidates: Sequence[Candidate], config: BenchmarkConfig | None = None) -> list[Timing]:
        self.n_tried += len(candidates) - 1
        return benchmark_round_robin(candidates, self.args, config or self.config)

    def fail(self, candidate: Candidate, reason: str) -> None:
        self.failures.append(Failure(candidate.label, reason))

    def compiled(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates that compile for the node; the others are recorded as failures."""
        results = list(zip(candidates, self.compiler.compile(candidates), strict=True))
        for candidate, result in results:
            if result.failed is not None:
                self.fail(candidate, result.failed)
        return [candidate for candidate, result in results if result.failed is None]


def tune_node(
    op: Op,
    node: NodeSpec,
    override: str | None = None,
    config: BenchmarkConfig | None = None,
    *,
    beam: int | None = None,
    timeout_s: float = COMPILE_TIMEOUT_S,
) -> Tuned | None:
    """Measure all variants for the node, search their tunables, and store the times.

    `beam` is the width of the search (default CAMSHAFT_BEAM), `timeout_s` the time limit for compiling a candidate. Returns None
    if no variant is proved, or if there is nothing to choose.
    """
    ours, others = _proved(op, node, override)
    if not ours or (len(ours) + len(others) == 1 and ours[0].variant.tunables is None):
        return None
    config = config or BenchmarkConfig()
    with Compiler(timeout_s) as compiler:
        work = _Work(op, node, inputs_for(op, node), config, compiler, beam or settings().beam)
        ours, others = work.compiled(ours), work.compiled(others)
        return _tune(work, ours, others) if ours else None


def shape_text(node: NodeSpec) -> str:
    """The inputs' specs, and the names of attributes that are True."""
    switched = [name for name, value in sorted(node.attrs.items()) if value is True]
    return ", ".join([*map(str, node.inputs), *switched])


def _proved(op: Op, node: NodeSpec, override: str | None) -> tuple[list[Candidate], list[Candidate]]:
    """The proved candidates under the override, default choice first, and the other candidates without an override. All are
    measured: a later choice compares measurements only if every candidate has one."""
    ours = alternatives(op, node, override)
    free = alternatives(op, node) if override in DEFAULT_ORDER else []
    others = [other for other in free if other not in ours]
    candidates = [Candidate(op, node, variant, backend) for variant, backend in (*ours, *others)]
    results = prove([c.case for c in candidates])
    proved = [results[c.case].status == "proved" for c in candidates]
    return (
        [c for c, ok in zip(candidates[: len(ours)], proved, strict=False) if ok],
        [c for c, ok in zip(candidates[len(ours) :], proved[len(ours) :], strict=True) if ok],
    )


def _tune(work: _Work, ours: list[Candidate], others: list[Candidate]) -> Tuned:
    reference = ours[0]
    again, *timings = work.race([reference, *ours, *others])  # the reference runs twice to measure noise
    work.noise = min(max(LEAST_NOISE, _noise(again, timings[0])), MAX_SEARCH_NOISE)
    ratios = {c.label: t.ratio_to(timings[0]) for c, t in zip((*ours, *others), timings, strict=True)}
    fastest = min(ratios[c.label] for c in ours)
    finalists = [(ratios[c.label], c) for c in ours[1:]]
    for candidate in ours:
        if candidate.variant.tunables is not None and ratios[candidate.label] <= SEARCHED_WITHIN * fastest:
            finalists += [(ratios[candidate.label] * ratio, tuned) for ratio, tuned in _search(work, candidate)]
    finalists.sort(key=lambda finalist: finalist[0])
    winner, before, after, gain = _final(work, reference, [c for _, c in finalists[:FINALISTS]], timings[0])
    slower = [
        (c, max(t.median_ns, before)) for c, t in zip(ours, timings, strict=False) if c not in (reference, winner)
    ]
    free = [(c, t.median_ns) for c, t in zip(others, timings[len(ours) :], strict=True)]
    _store(work, [(reference, before), *([(winner, after)] if winner is not reference else []), *slower, *free])
    shape = shape_text(work.node)
    times = reference.label, before, winner.label, after, gain, work.noise
    threads = thread_count(work.config.threads)
    return Tuned(work.op.name, shape, work.config.cold, threads, *times, work.n_tried, tuple(work.failures))


def _noise(one: Timing, other: Timing) -> float:
    """The relative difference between two timings of the same kernel."""
    return max(one.ratio_to(other), other.ratio_to(one)) - 1


def _search(work: _Work, start: Candidate) -> list[tuple[float, Candidate]]:
    """The best non-default values of a variant's tunables, with the ratios of their times to the defaults'."""
    tunables, target = start.variant.tunables, device(start.backend)
    assert tunables is not None
    defaults = tunables.defaults(work.node, target)
    (own,) = work.compiler.compile([start])
    ratio_of: dict[str, float | None] = {} if own.digest is None else {own.digest: 1.0}

    def chosen(values: Values) -> Candidate:
        return start.with_values({name: v for name, v in values.items() if v != defaults[name]})

    def fits(values: Values) -> bool:
        return chosen(values).variant.supports(work.node, target) is None

    def evaluate(batch: Sequence[Values]) -> list[float | None]:
        candidates = [chosen(values) for values in batch]
        compiled = work.compiler.compile(candidates)
        keys = [c.digest or f"choice {i}" for i, c in enumerate(compiled)]
        fresh: dict[str, Candidate] = {}
        for candidate, key, made in zip(candidates, keys, compiled, strict=True):
            if made.failed is not None:
                work.fail(candidate, made.failed)
            elif key not in ratio_of:
                fresh.setdefault(key, candidate)
        timings = work.race([start, *fresh.values()]) if fresh else []
        ratios = {key: t.ratio_to(timings[0]) for key, t in zip(fresh, timings[1:], strict=True)}
        ratio_of.update({key: ratio for key, ratio in ratios.items() if not key.startswith("choice")})
        return [None if m.failed else (ratio_of | ratios)[key] for m, key in zip(compiled, keys, strict=True)]

    result = beam_search(defaults, tunables.values, fits, evaluate, width=work.beam, noise=work.noise)
    return [(ratio, c) for ratio, values in result.ranked[:FINALISTS] if (c := chosen(values)).variant.values]


def _final(
    work: _Work, reference: Candidate, finalists: Sequence[Candidate], first: Timing
) -> tuple[Candidate, float, float, float]:
    """The first finalist that is faster than the reference beyond noise and proved on all samples, else the reference; both
    times, and the gain."""
    config = replace(work.config, runs=FINAL_RUNS * work.config.runs, budget_s=FINAL_RUNS * work.config.budget_s)
    before = first.median_ns
    for finalist in finalists:
        now, then, again = work.race([reference, finalist, reference], config)
        ratio, before = then.ratio_to(now), now.median_ns
        work.noise = max(LEAST_NOISE, _noise(now, again))
        if ratio * (1 + work.noise) > 1:
            continue
        case = replace(finalist.case, kinds=None)
        result = prove([case])[case]
        if result.status == "proved":
            return finalist, before, before * ratio, 1 / ratio
        work.fail(finalist, f"{result.status}: {result.reason}")
    return reference, before, before, 1.0


def _store(work: _Work, times: Iterable[tuple[Candidate, float]]) -> None:
    """Store the times, the cost model's choice first. Variants not faster than the reference beyond noise are stored with
    the reference's time or more."""
    threads = thread_count(work.config.threads)
    every = list(times)
    rows: list[Measurement] = [
        measurement(work.op, c.variant, c.backend, work.node, ns, threads, guess=c is every[0][0]) for c, ns in every
    ]
    measurements().replace_site(work.op, work.node, rows)
