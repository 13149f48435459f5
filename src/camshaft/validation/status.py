"""What is known of each op's variants here, from the evidence alone: nothing is proved or run. What `camshaft ops` shows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from camshaft import ops
from camshaft.backends.registry import backend_named, backends
from camshaft.errors import ShapeError
from camshaft.ops.catalog import OpEntry, entry
from camshaft.ops.op import KernelVariant, Op
from camshaft.validation.cases import VariantCase, case_of, kinds_of
from camshaft.validation.evidence import ValidationResult, validation_cache
from camshaft.validation.validate import node_of

STATUSES = ("proved", "in part", "failed", "absent", "not tried")
Triple = tuple[str, str, str]  # op, variant, backend


@dataclass(frozen=True)
class VariantStatus:
    """A variant on a backend: one of STATUSES, and the evidence. 'in part' is what a plan proved, for inputs of its kinds only;
    'absent' has the reason, and 'not tried' means that neither a plan nor doctor asked yet."""

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
    """An op as it is claimed, and how its claims stand."""

    entry: OpEntry
    standings: tuple[VariantStatus, ...]

    def count(self, status: str) -> int:
        """How many variants stand so, each backend counted."""
        return sum(s.status == status for s in self.standings)


def overview(names: Sequence[str] | None = None) -> tuple[OpOverview, ...]:
    """These ops (all by default). ShapeError for a name that no op has, with those that look like it."""
    unknown = [name for name in names or () if name not in ops.NAMES]
    if unknown:
        near = get_close_matches(unknown[0], ops.NAMES, 3)
        hint = f"; near: {', '.join(near)}" if near else "; 'camshaft ops' lists them"
        raise ShapeError(f"no op {unknown[0][:80]!r}{hint}")
    chosen = [ops.get(name) for name in names] if names else ops.all_ops()
    judged = frozenset((v.op, v.variant, v.backend) for v in validation_cache().results())
    return tuple(OpOverview(entry(op), _standings(op, judged)) for op in chosen)


def _standings(op: Op, judged: frozenset[Triple]) -> tuple[VariantStatus, ...]:
    """For every variant and backend that can run something; a backend that only plans has nothing to prove."""
    names = [row.name for row in backends().values() if row.runs]
    return tuple(_standing(op, v, name, judged) for name in names for v in ops.variants_of(op) if name in v.backends)


@functools.cache
def _absence(backend: str) -> str | None:
    return backend_named(backend).absent()


def _standing(op: Op, variant: KernelVariant, backend: str, judged: frozenset[Triple]) -> VariantStatus:
    reason = _absence(backend)
    if reason is not None:
        return VariantStatus(variant.name, backend, "absent", reason)
    if (op.name, variant.name, backend) not in judged:  # saves a digest, or many
        return VariantStatus(variant.name, backend, "not tried")
    case = case_of(op, variant, backend)
    result = validation_cache().get(case)
    return _from(result, result.status) if result is not None else _of_kinds(op, case)


def _of_kinds(op: Op, case: VariantCase) -> VariantStatus:
    """From verdicts on inputs of some kinds: the first that failed, else that all there are were proved."""
    kinds = dict.fromkeys(kinds_of(node_of(op, sample)) for sample in op.samples())
    found = [v for k in kinds if (v := validation_cache().get(replace(case, kinds=k))) is not None]
    failed = next((v for v in found if v.status == "failed"), None)
    if failed is not None:
        return _from(failed, "failed")
    proved = [v for v in found if v.status == "proved"]
    if not proved:
        return VariantStatus(case.variant, case.backend, "not tried")
    worst = max(proved, key=lambda v: v.max_error or 0.0)
    return replace(_from(worst, "in part"), reason=f"proved for {len(proved)} of {len(kinds)} kinds of inputs")


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
