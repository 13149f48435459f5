"""Which samples a table test tries where each costs much: few of a family's row, as rows share their kernels' frame."""

from __future__ import annotations

from math import gcd

from camshaft import ops
from camshaft.ops.op import Op, Sample

# Rows that stand for their families: every shape, every dtype.
STANDING = ("add", "sum")


def is_row(op: Op) -> bool:
    """Whether few of the op's samples will do."""
    return any(op.name in rows for rows in ops.TABLES.values()) and op.name not in STANDING


def in_turn(op: Op) -> list[Sample]:
    """All samples: the first and the last before those between, so that few of them are unlike."""
    first, *rest = op.samples()
    return [first, *rest[-1:], *rest[:-1]]


def spread(samples: list[Sample], n: int, turn: int) -> list[Sample]:
    """`n` of the samples, evenly apart, in each turn others until all had theirs.

    Samples come in short cycles (block format, activations, tokens): a step without a common divisor meets each phase, and going
    on where the last turn ended meets others.
    """
    if n >= len(samples):
        return samples
    step = next(s for s in range(len(samples) // n + 1, 2 * len(samples)) if gcd(s, len(samples)) == 1)
    return [samples[(turn * n + i + 1) * step % len(samples)] for i in range(n)]
