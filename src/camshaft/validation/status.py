"""The validation status of each op's variants, from stored results only; runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from camshaft import ops
from camshaft.backends.registry import backend_named, backends
from camshaft.errors import ShapeError
from camshaft.graph.passes.decompose import parts_of
from camshaft.ops.catalog import OpEntry, entry
from camshaft.ops.op import KernelVariant, Op
from camshaft.validation.cases import VariantCase, case_of, kinds_of
from camshaft.validation.evidence import ValidationResult, validation_cache
from camshaft.validation.validate import node_of

STATUSES = ("proved", "in part", "failed", "absent", "not tried")
Triple = tuple[str, str, str]  # op, variant, backend


@dataclass(frozen=True)
class VariantStatus:
    """A variant's status on a backend and the result behind it. 'in part' means proved by a plan, for some kinds of inputs;
    'absent' has a reason; 'not tried' means that it was never validated."""

    variant: str
    backend: str
    status: str
    reason: str | None = None
    max_error: float | None = None
    tolerance: float | None = None
    sample: str | None = None
    elapsed_s: float | None = None
    digest: str | None = None


@dataclass(frozen=True)
class OpOverview:
    """An op, the status of its variants, and its entry in the catalog, made of its samples when it is read."""

    op: Op
    statuses: tuple[VariantStatus, ...]

    @functools.cached_property
    def entry(self) -> OpEntry:
        return entry(self.op)

    def count(self, status: str) -> int:
        """The number of (variant, backend) pairs with this status."""
        return sum(s.status == status for s in self.statuses)


def overview(names: Sequence[str] | None = None) -> tuple[OpOverview, ...]:
    """The overview of the named ops (default: all). Raises ShapeError for an unknown name, with similar names."""
    unknown = [name for name in names or () if name not in ops.NAMES]
    if unknown:
        near = get_close_matches(unknown[0], ops.NAMES, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; 'camshaft ops' lists them"
        raise ShapeError(f"no op {unknown[0][:80]!r}{hint}")
    chosen = [ops.get(name) for name in names] if names else ops.all_ops()
    validated = frozenset((v.op, v.variant, v.backend) for v in validation_cache().results())
    return tuple(OpOverview(op, _statuses(op, validated)) for op in chosen)


@dataclass(frozen=True)
class RowAnswer:
    """A row of tests/data/ops.tsv, an op that implements it, and that op's status by backend: the best of its variants, or for an
    op without kernels the worst of the ops it is made of."""

    row: str
    op: str
    proof: dict[str, str]


def row_answers(rows: Sequence[OpOverview]) -> tuple[RowAnswer, ...]:
    """Returns which of these ops implement each row."""
    validated = frozenset((v.op, v.variant, v.backend) for v in validation_cache().results())
    known = {row.op.name: row.statuses for row in rows}

    @functools.cache
    def proof(name: str) -> dict[str, str]:
        op = ops.get(name)
        if ops.is_composite(op):
            parts = [proof(part) for part in parts_of(op)]
            backends = [b for b in (parts[0] if parts else {}) if all(b in part for part in parts)]
            return {b: max((part[b] for part in parts), key=STATUSES.index) for b in backends}
        found: dict[str, str] = {}
        for status in known.get(name) or _statuses(op, validated):
            best = found.get(status.backend, status.status)
            found[status.backend] = min(best, status.status, key=STATUSES.index)
        return found

    answers = (RowAnswer(r, row.op.name, proof(row.op.name)) for row in rows for r in row.entry.rows)
    return tuple(sorted(answers, key=lambda answer: (answer.row, answer.op)))


def _statuses(op: Op, validated: frozenset[Triple]) -> tuple[VariantStatus, ...]:
    """The status of every variant on every backend that can run kernels."""
    names = [row.name for row in backends().values() if row.runs]
    return tuple(_status(op, v, name, validated) for name in names for v in ops.variants_of(op) if name in v.backends)


@functools.cache
def _absence(backend: str) -> str | None:
    return backend_named(backend).absent()


def _status(op: Op, variant: KernelVariant, backend: str, validated: frozenset[Triple]) -> VariantStatus:
    reason = _absence(backend)
    if reason is not None:
        return VariantStatus(variant.name, backend, "absent", reason)
    if (op.name, variant.name, backend) not in validated:  # saves computing digests
        return VariantStatus(variant.name, backend, "not tried")
    case = case_of(op, variant, backend)
    result = validation_cache().get(case)
    return _from(result, result.status) if result is not None else _of_kinds(op, case)


def _of_kinds(op: Op, case: VariantCase) -> VariantStatus:
    """Status from results by kinds of inputs: 'failed' if one failed, 'proved' if all are, 'in part' if some are."""
    kinds = _sampled_kinds(op.name)
    found = [v for k in kinds if (v := validation_cache().get(replace(case, kinds=k))) is not None]
    failed = next((v for v in found if v.status == "failed"), None)
    if failed is not None:
        return _from(failed, "failed")
    proved = [v for v in found if v.status == "proved"]
    if not proved:
        return VariantStatus(case.variant, case.backend, "not tried")
    worst = max(proved, key=lambda v: v.max_error or 0.0)
    if len(proved) == len(kinds):
        return _from(worst, "proved")
    return replace(_from(worst, "in part"), reason=f"proved for {len(proved)} of {len(kinds)} kinds of inputs")


@functools.cache
def _sampled_kinds(op: str) -> tuple[str, ...]:
    """The kinds of an op's samples. Kept: drawing the samples for each variant took two thirds of `camshaft ops`."""
    of = ops.get(op)
    return tuple(dict.fromkeys(kinds_of(node_of(of, sample)) for sample in of.samples()))


def _from(result: ValidationResult, status: str) -> VariantStatus:
    return VariantStatus(
        result.variant,
        result.backend,
        status,
        result.reason,
        result.max_error,
        result.tolerance,
        result.sample,
        result.elapsed_s,
        result.digest,
    )
