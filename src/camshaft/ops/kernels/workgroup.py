"""What variants ask of targets whose lanes are threads of a workgroup: how much memory it has."""

from __future__ import annotations

from camshaft.ops.op import Target

LIMIT = "workgroup_memory"


def has_threads(target: Target) -> bool:
    """Whether a program is a workgroup of threads: GPUs. Elsewhere lanes are vector elements, and scratch is on the stack."""
    return LIMIT in target.limits


def workgroup_nbytes(target: Target) -> int:
    """Bytes of memory that a workgroup may have. 0 where lanes are no threads."""
    return target.limits.get(LIMIT, 0)
