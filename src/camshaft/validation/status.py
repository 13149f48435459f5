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
from camshaft.validation.cases import Claim, claim_of, kinds_of
from camshaft.validation.evidence import Verdict, ledger
from camshaft.validation.validate import node_of

STATUSES = ("proved", "in part", "failed", "absent", "not tried")
Triple = tuple[str, str, str]  # op, variant, backend


@dataclass(frozen=True)
class Standing:
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
    standings: tuple[Standing, ...]

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
    judged = frozenset((v.op, v.variant, v.backend) for v in ledger().verdicts())
    return tuple(OpOverview(entry(op), _standings(op, judged)) for op in chosen)


def _standings(op: Op, judged: frozenset[Triple]) -> tuple[Standing, ...]:
    """For every variant and backend that can run something; a backend that only plans has nothing to prove."""
    names = [row.name for row in backends().values() if row.runs]
    return tuple(_standing(op, v, name, judged) for name in names for v in ops.variants_of(op) if name in v.backends)


@functools.cache
def _absence(backend: str) -> str | None:
    return backend_named(backend).absent()


def _standing(op: Op, variant: KernelVariant, backend: str, judged: frozenset[Triple]) -> Standing:
    reason = _absence(backend)
    if reason is not None:
        return Standing(variant.name, backend, "absent", reason)
    if (op.name, variant.name, backend) not in judged:  # saves a digest, or many
        return Standing(variant.name, backend, "not tried")
    claim = claim_of(op, variant, backend)
    verdict = ledger().get(claim)
    return _from(verdict, verdict.status) if verdict is not None else _of_kinds(op, claim)


def _of_kinds(op: Op, claim: Claim) -> Standing:
    """From verdicts on inputs of some kinds: the first that failed, else that all there are were proved."""
    kinds = dict.fromkeys(kinds_of(node_of(op, sample)) for sample in op.samples())
    found = [v for k in kinds if (v := ledger().get(replace(claim, kinds=k))) is not None]
    failed = next((v for v in found if v.status == "failed"), None)
    if failed is not None:
        return _from(failed, "failed")
    proved = [v for v in found if v.status == "proved"]
    if not proved:
        return Standing(claim.variant, claim.backend, "not tried")
    worst = max(proved, key=lambda v: v.max_error or 0.0)
    return replace(_from(worst, "in part"), reason=f"proved for {len(proved)} of {len(kinds)} kinds of inputs")


def _from(verdict: Verdict, status: str) -> Standing:
    return Standing(
        verdict.variant,
        verdict.backend,
        status,
        verdict.reason,
        verdict.max_error,
        verdict.tolerance,
        verdict.sample,
        verdict.elapsed_s,
        verdict.digest,
    )
