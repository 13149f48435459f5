"""A grid in LLVM IR: sizes of its axes, and the place of a program by its number."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.lang import ir


def size_lines(grid: Sequence[ir.GridDim], scalars: Sequence[str]) -> tuple[list[str], list[str]]:
    """The instructions that find the axes' sizes (i64) from %scalar0.., and the sizes' names or numbers."""
    lines: list[str] = []
    sizes = []
    for axis, dim in enumerate(grid):
        if dim.scalar is None:
            sizes.append(str(dim.size))
            continue
        source = f"%scalar{scalars.index(dim.scalar)}"
        lines += [
            f"  %up{axis} = add nsw i64 {source}, {dim.divisor - 1}",
            f"  %size{axis} = udiv i64 %up{axis}, {dim.divisor}",
        ]
        sizes.append(f"%size{axis}")
    return lines, sizes


def program_lines(sizes: Sequence[str], linear: str) -> list[str]:
    """%program0.. of program number `linear` (i64); the last axis runs fastest."""
    lines, rest = [], linear
    for axis in range(len(sizes) - 1, 0, -1):
        lines += [
            f"  %program{axis} = urem i64 {rest}, {sizes[axis]}",
            f"  %rest{axis} = udiv i64 {rest}, {sizes[axis]}",
        ]
        rest = f"%rest{axis}"
    return [*lines, f"  %program0 = add i64 {rest}, 0"]


def total_lines(sizes: Sequence[str]) -> tuple[list[str], str]:
    """The number of programs: the instructions that multiply the sizes, and its name."""
    lines, total = [], sizes[0]
    for axis, size in enumerate(sizes[1:], 1):
        lines.append(f"  %total{axis} = mul nuw nsw i64 {total}, {size}")
        total = f"%total{axis}"
    return lines, total
