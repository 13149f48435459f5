"""Select the fastest validated variant for each node: by measurement if there is one, else by its cost model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from camshaft import ops
from camshaft.backends.device import Device
from camshaft.backends.registry import DEFAULT_ORDER, backend_named, canonical, device, present_backend
from camshaft.errors import BackendError
from camshaft.ops.op import KernelVariant, NodeSpec, Op
from camshaft.selection.choice import Choice, Loser
from camshaft.selection.measurements import Measurements as StoredMeasurements
from camshaft.selection.measurements import measurements as stored
from camshaft.selection.precompile import compiled_ahead
from camshaft.validation.cases import VariantCase, case_of
from camshaft.validation.evidence import ValidationResult
from camshaft.validation.proof import prove
from camshaft.validation.run import cost_on, refusal_on

# Nanoseconds measured for a case at a node's shape, or None.
Measurements: TypeAlias = Callable[[VariantCase, NodeSpec], float | None]


def _loser(variant: KernelVariant, backend: str, reason: str, ns: float | None = None) -> Loser:
    return Loser(variant.label, backend, reason, ns)


# A cost model is refuted where its choice takes this many times the winner's measured time.
REFUTED_FROM = 1.3
# Measured gains from here on are named in the reason.
NAMED_FROM = 1.05
# The backend of nodes for which the wanted device has no kernel.
FALLBACK = "simd"


@dataclass(frozen=True)
class _Candidate:
    variant: KernelVariant
    backend: str
    device: Device
    case: VariantCase
    measured: float | None
    estimated: float

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sort key: measured candidates come before estimated ones."""
        return self.measured is None, self.measured or 0.0, self.estimated

    @property
    def ns(self) -> float:
        return self.estimated if self.measured is None else self.measured

    @property
    def time(self) -> str:
        return f"{'estimated' if self.measured is None else 'measured'} {self.ns / 1000:.3g} us"


@dataclass(frozen=True)
class _Row:
    """A distinct (op, node) with its candidates. `why` explains a fallback from the wanted device."""

    op: Op
    node: NodeSpec
    candidates: list[_Candidate]
    losers: list[Loser]
    why: str = ""


def choose(
    uses: Iterable[tuple[Op, NodeSpec]],
    override: str | None = None,
    measurements: Measurements | None = None,
    *,
    strict: bool = True,
    upcoming: Callable[[], Iterable[tuple[Op, NodeSpec]]] = tuple,
) -> tuple[Choice, ...]:
    """Return a Choice per (op, node); equal nodes are decided once.

    The best candidates are validated together; where one fails, the next is tried. If anything has to be validated, the best
    candidates of `upcoming` uses are validated in the same run. `override` names a backend or device; None considers all.
    `measurements` None means the stored ones, with tuned values; a stored value that fails validation is dropped with a
    warning. Raises BackendError, with all reasons, for an op that no variant can run. Unless `strict`, a node that the
    override's backend cannot run falls back to simd on the CPU, with the reason in its Choice.
    """
    keyed = [((id(op), node.key), op, node) for op, node in uses]
    distinct = {key: (op, node) for key, op, node in keyed}
    rows = {key: _Row(op, node, *_candidates(op, node, override, measurements)) for key, (op, node) in distinct.items()}
    spare = None if strict or override is None or backend_named(override).name == FALLBACK else override
    results: dict[VariantCase, ValidationResult] = {}
    while True:
        if spare is not None:
            rows = {key: _or_cpu(row, results, spare, measurements) for key, row in rows.items()}
        best = {key: _remaining(row, results)[0] for key, row in rows.items()}
        missing = [c.case for c in best.values() if c.case not in results and backend_named(c.backend).runs]
        if not missing:
            choices = {key: _choice(row, results) for key, row in rows.items()}
            return tuple(choices[key] for key, _, _ in keyed)
        favourites = [(c.case, c, rows[key].node) for key, c in best.items()]
        fresh = prove(
            missing,
            extra_cases=partial(_precompile, favourites, lambda: _favourites(upcoming(), override, measurements)),
        )
        results |= fresh
        _drop_failed(rows.values(), fresh)


_Favourite: TypeAlias = tuple[VariantCase, _Candidate | Choice, NodeSpec]


@contextmanager
def _precompile(
    favourites: Sequence[_Favourite], upcoming: Callable[[], list[_Favourite]], unproved: Collection[VariantCase]
) -> Iterator[list[VariantCase]]:
    """Compile the favourites' kernels while the unproved cases are validated; yield the cases of upcoming uses.

    Variants of other packages are left out: compiling them may crash this process."""
    soon = upcoming()
    wanted = {*unproved, *(case for case, _, _ in soon)}
    ours = [
        f for f in (*favourites, *soon) if f[0] in wanted and f[0].home is None and f[0].module.startswith("camshaft.")
    ]
    with compiled_ahead([(c.variant, node, c.device) for _, c, node in ours]):
        yield [case for case, c, _ in soon if backend_named(c.backend).runs]


def _favourites(
    uses: Iterable[tuple[Op, NodeSpec]], override: str | None, measurements: Measurements | None
) -> list[_Favourite]:
    """The best candidate of each use that has any."""
    rows = [_Row(op, node, *_candidates(op, node, override, measurements)) for op, node in uses]
    return [(row.candidates[0].case, row.candidates[0], row.node) for row in rows if row.candidates]


def _drop_failed(rows: Iterable[_Row], results: Mapping[VariantCase, ValidationResult]) -> None:
    """Drop stored tunable values that failed validation; the variant with other values may be fine."""
    for row in rows:
        for c in row.candidates:
            result = results.get(c.case)
            if c.case.values and result is not None and result.status != "proved":
                stored().drop_case(row.op, c.case, row.node, f"{result.status}: {result.reason}")


def _or_cpu(
    row: _Row, results: Mapping[VariantCase, ValidationResult], name: str, measurements: Measurements | None
) -> _Row:
    """The row, or if all its candidates on the named device failed, the row for the CPU with the reason."""
    lost = _lost(row, results)
    if row.why or len(lost) < len(row.candidates) + len(row.losers):
        return row
    candidates, losers = _candidates(row.op, row.node, FALLBACK, measurements)
    return _Row(row.op, row.node, candidates, [*lost, *losers], f"no kernel on {name}: {_reasons(lost)}; on cpu: ")


def select(op: Op, node: NodeSpec, override: str | None = None, measurements: Measurements | None = None) -> Choice:
    """The Choice for one node; see `choose`."""
    return choose([(op, node)], override, measurements)[0]


def alternatives(op: Op, node: NodeSpec, override: str | None = None) -> list[tuple[KernelVariant, str]]:
    """Every variant that can run the node, with its backend, cheapest by cost model first; validates nothing."""
    return [(c.variant, c.backend) for c in _candidates(op, node, override, lambda case, node: None)[0]]


def _candidates(
    op: Op, node: NodeSpec, override: str | None, measurements: Measurements | None
) -> tuple[list[_Candidate], list[Loser]]:
    candidates, losers = [], []
    known = stored() if measurements is None and stored().reaches(op, node) else None
    known_ns = None if known is None else partial(known.ns, op)
    for name in _backends(op, override):
        row = backend_named(name)
        variants = [v for v in ops.variants_of(op) if row.name in v.backends]
        absent = row.absent() if variants else None
        if absent is not None:
            losers += [_loser(v, name, absent) for v in variants]
            continue
        for variant in (tuned for v in variants for tuned in _tuned(op, v, name, node, known)):
            target = device(name)
            refusal = refusal_on(op, variant, node, target)
            if refusal is not None:
                losers.append(_loser(variant, name, refusal))
                continue
            case = case_of(op, variant, name, node)
            found = measurements or known_ns
            measured = None if found is None else found(case, node)
            if variant.values and measured is None:
                continue  # its kernel changed, so `ns` dropped the measurement
            estimated = cost_on(op, variant, node, target)
            candidates.append(_Candidate(variant, name, target, case, measured, estimated))
    return sorted(candidates, key=lambda c: c.rank), losers


def _tuned(
    op: Op, variant: KernelVariant, backend: str, node: NodeSpec, known: StoredMeasurements | None
) -> list[KernelVariant]:
    """The variant with default values, then with each set of values measured near the node."""
    tuned = () if known is None else known.values(op, variant, backend, node)
    return [variant, *(variant.with_values(values) for values in tuned)]


def _backends(op: Op, override: str | None) -> tuple[str, ...]:
    if override is None:
        return DEFAULT_ORDER
    backend = present_backend(override)
    known = {b for v in ops.variants_of(op) for b in v.backends}
    name = next((b for b in backend.order if b in known), None)
    if name is None:
        return ()
    return (canonical(override) if name == backend.name else name,)


def _lost(row: _Row, results: Mapping[VariantCase, ValidationResult]) -> list[Loser]:
    """The candidates that were refused or failed validation."""
    failed = [(c, v) for c in row.candidates if (v := results.get(c.case)) is not None and v.status != "proved"]
    return row.losers + [_loser(c.variant, c.backend, f"{v.status}: {v.reason}") for c, v in failed]


def _remaining(row: _Row, results: Mapping[VariantCase, ValidationResult]) -> list[_Candidate]:
    """The candidates that have not failed, the best first; it may still have to be validated."""
    remaining = [c for c in row.candidates if c.case not in results or results[c.case].status == "proved"]
    if not remaining:
        inputs = ", ".join(str(spec) for spec in row.node.inputs)
        reasons = _reasons(_lost(row, results))
        raise BackendError(f"{row.op.name} of {inputs}: no kernel can do it: {reasons}")
    return remaining


def _choice(row: _Row, results: Mapping[VariantCase, ValidationResult]) -> Choice:
    lost, remaining = _lost(row, results), _remaining(row, results)
    c, *others = remaining
    rest = [_loser(other.variant, other.backend, other.time, other.ns) for other in others]
    gain, rival = _measured_gain(remaining)
    named = f", {gain:.1f} times faster than {rival}" if gain >= NAMED_FROM else ""
    reason = f"{c.time}{named}, the fastest of {len(rest) + 1}" if rest else "the only one that can do it"
    guess = min(remaining, key=lambda candidate: candidate.estimated).variant.label
    refuted = f"{c.variant.label} measured {gain:.1f} times faster than {rival}, the cost model's choice"
    return Choice(
        row.op,
        c.variant,
        c.backend,
        c.device,
        f"{row.why}{reason}",
        (*lost, *rest),
        c.ns,
        c.measured is not None,
        refuted if gain >= REFUTED_FROM and rival == guess else "",
    )


def _measured_gain(ranked: Sequence[_Candidate]) -> tuple[float, str]:
    """How many times faster the first candidate measured than the cost model's choice, or than the next one if it is that
    choice itself, and that candidate's label; (1, "") where one of the two was not measured."""
    best = ranked[0]
    guess = min(ranked, key=lambda candidate: candidate.estimated)
    rival = guess if guess is not best else ranked[1] if len(ranked) > 1 else best
    if best.measured is None or rival is best or rival.measured is None:
        return 1.0, ""
    return rival.measured / max(best.measured, 1e-3), rival.variant.label


def _reasons(lost: Iterable[Loser]) -> str:
    return "; ".join(f"{x.variant} ({x.backend}): {x.reason}" for x in lost) or "no variant for this backend"
