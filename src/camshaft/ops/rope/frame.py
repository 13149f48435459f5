"""The frame of rotary embeddings: a row of the table for each position axis, then a rotation of the pairs of each head.

`Rotation` says which columns a pair has and where its angle comes from; kernels, reference and decomposition follow it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, boolean, f16, f32, i32, i64
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.index.gather import index_of
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.parameters import Attribute
from camshaft.ops.spec import TensorSpec

PAIRINGS = ("interleaved", "neox")
PAIRING, INVERSE = Attribute("pairing", "str"), Attribute("inverse", "bool", False)
DTYPES = (f32, f16, bf16)
WARP = 32
# What a dtype's rounding adds to the error of a result that is computed in f32.
TOLERANCE = {"f32": 1e-12, "f16": 1e-7, "bf16": 1e-5}

Angle = Callable[[ir.Value], tuple[ir.Value, ir.Value]]


@dataclass(frozen=True)
class Rotation:
    """Which columns of a head are pairs, and which angles they have.

    `parts`: (first pair, number of pairs, first column) of each part of a head, whose pairs are neighbours (`interleaved`) or
    half the part apart. `runs`: (first pair, number, column of the table, position axis) of pairs whose angles are side
    by side in a row of the table. `turns`: if not empty, the pairs take the axes in turn, axis m only the first turns[m] times.
    """

    interleaved: bool
    parts: tuple[tuple[int, int, int], ...]
    runs: tuple[tuple[int, int, int, int], ...]
    turns: tuple[int, ...] = ()

    @property
    def n_pairs(self) -> int:
        return sum(count for _, count, _ in self.parts)

    @property
    def n_axes(self) -> int:
        return len(self.turns) or 1 + max(axis for *_, axis in self.runs)

    def columns(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The two columns of each pair."""
        first, second = [], []
        for _, count, column in self.parts:
            i = np.arange(count)
            first.append(column + (2 * i if self.interleaved else i))
            second.append(column + (2 * i + 1 if self.interleaved else count + i))
        return np.concatenate(first), np.concatenate(second)

    def sources(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The position axis and the column of the table of each pair."""
        if self.turns:
            i = np.arange(self.n_pairs)
            axis = i % len(self.turns)
            return np.where(i < len(self.turns) * np.array(self.turns)[axis], axis, 0), i
        axes, columns = [], []
        for _, count, column, axis_of_run in self.runs:
            axes.append(np.full(count, axis_of_run))
            columns.append(column + np.arange(count))
        return np.concatenate(axes), np.concatenate(columns)


def whole_head(pairing: str, n_pairs: int) -> tuple[bool, tuple[tuple[int, int, int], ...]]:
    """`interleaved` and `parts` of a rotation whose pairs are those of one part from column 0 on."""
    return pairing == "interleaved", ((0, n_pairs, 0),)


# --- kernels -------------------------------------------------------------------------------------------------------------
def _rows_of(k: Tracer, positions: Array, table: Array, token: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
    """The row of the table for each position of a token, as gather has them, and whether there is one; else row 0."""
    found = (index_of(k, positions[token, axis], table.shape[0]) for axis in range(positions.shape[1]))
    return [(k.select(inside, row, k.number(0, i64)), inside) for row, inside in found]


def refuse_positions(
    k: Tracer, positions: Array, table: Array, out: Array, token: ir.Value, first: ir.Value, count: int
) -> None:
    """Makes `count` columns of the token's result, from column `first` on, NaN if one of its positions is not a row of the
    table."""
    inside = [found for _, found in _rows_of(k, positions, table, token)]
    k.barrier()  # other lanes wrote what is overwritten
    with k.when(functools.reduce(lambda a, b: a & b, inside) ^ k.const(True, boolean)):
        for c in k.lanes(count):
            out[token, first + c] = float("nan")


def angles(
    k: Tracer, positions: Array, table: Array, token: ir.Value, n_pairs: int,
    runs: tuple[tuple[int, int, int, int], ...], turns: tuple[int, ...], inverse: bool,
) -> Angle:  # fmt: skip
    """A function from a pair to its cosine and sine: read from the table's row, or from scratch where there are several axes."""
    half = table.shape[1] // 2
    rows = [row for row, _ in _rows_of(k, positions, table, token)]

    def turned(sin: ir.Value) -> ir.Value:
        return -sin if inverse else sin

    if len(rows) == 1 and len(runs) == 1:
        return lambda pair: (table[rows[0], pair], turned(table[rows[0], half + pair]))
    cosines, sines = k.scratch(f32, n_pairs), k.scratch(f32, n_pairs)
    for first, count, column, axis in runs:
        for i in k.lanes(count):
            cosines[first + i], sines[first + i] = table[rows[axis], column + i], table[rows[axis], half + column + i]
    if turns:
        for i in k.lanes(n_pairs):
            cos, sin = table[rows[0], i], table[rows[0], half + i]
            for axis, count in enumerate(turns[1:], 1):
                here = (i % len(turns) == axis) & (i < len(turns) * count)
                cos = k.select(here, table[rows[axis], i], cos)
                sin = k.select(here, table[rows[axis], half + i], sin)
            cosines[i], sines[i] = cos, sin
    k.barrier()
    return lambda pair: (cosines[pair], turned(sines[pair]))


def rotate_head(
    k: Tracer, load: Callable[[ir.Value, bool], ir.Value], store: Callable[[ir.Value, ir.Value, bool], None], angle: Angle,
    *, head_dim: int, interleaved: bool, parts: tuple[tuple[int, int, int], ...],
) -> None:  # fmt: skip
    """out[a] = x[a] cos - x[b] sin; out[b] = x[a] sin + x[b] cos for the columns a, b of each pair; other columns are copied."""
    for pair, count, column in parts:
        for i in k.lanes(count):
            a, b = (column + 2 * i, column + 2 * i + 1) if interleaved else (column + i, column + count + i)
            first, second = load(a, interleaved), load(b, interleaved)  # first: LLVM fuses products by their order
            cos, sin = angle(pair + i)
            store(a, first * cos - second * sin, interleaved)
            store(b, first * sin + second * cos, interleaved)
    rotated = 2 * sum(count for _, count, _ in parts)
    if rotated < head_dim:
        for c in k.lanes(rotated, head_dim):
            store(c, load(c, False), False)


@kernel
def rotate(
    k: Tracer, x: Array, positions: Array, table: Array, out: Array, *,
    heads: int, head_dim: int, interleaved: bool, parts: tuple[tuple[int, int, int], ...],
    runs: tuple[tuple[int, int, int, int], ...], turns: tuple[int, ...], inverse: bool,
) -> None:  # fmt: skip
    # out[a] = x[a] cos_i - x[b] sin_i; out[b] = x[a] sin_i + x[b] cos_i for the columns a, b of pair i
    token, start, n_pairs = k.program(0), k.program(1) * (heads * head_dim), sum(count for _, count, _ in parts)
    angle = angles(k, positions, table, token, n_pairs, runs, turns, inverse)
    for head in k.range(heads):
        first = start + head * head_dim

        def load(c: ir.Value, strided: bool, first: ir.Value = first) -> ir.Value:
            return k.gather(x, token, first + c) if strided else x[token, first + c]

        def store(c: ir.Value, value: ir.Value, strided: bool, first: ir.Value = first) -> None:
            if strided:
                k.scatter(out, value, token, first + c)
            else:
                out[token, first + c] = value

        rotate_head(k, load, store, angle, head_dim=head_dim, interleaved=interleaved, parts=parts)
    refuse_positions(k, positions, table, out, token, start, heads * head_dim)


def heads_together(attrs: ops.Attrs, target: ops.Target) -> int:
    """The heads of a program: all of a token on a CPU; one where lanes are threads, whose programs run at once."""
    return 1 if has_threads(target) else int(attrs["heads"])


def threads_of(target: ops.Target, count: int) -> int | None:
    """The lanes of a program for one head: a thread for each of `count` elements, a power of two from a warp up, at most the
    device's; None on a CPU."""
    return min(target.lanes, max(WARP, 1 << (count - 1).bit_length())) if has_threads(target) else None


def constants_of(rotation: Rotation, attrs: ops.Attrs, heads: int) -> dict[str, Constant]:
    """The constants of `rotate`."""
    return {
        "heads": heads,
        "head_dim": attrs["head_dim"],
        "interleaved": rotation.interleaved,
        "parts": rotation.parts,
        "runs": rotation.runs,
        "turns": rotation.turns,
        "inverse": bool(attrs.get("inverse", False)),
    }


def build(rotation: Rotation, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """One launch of `rotate`, a program per token, or on a GPU per token and head."""
    x, positions, _ = node.inputs
    by_axis = positions.bounds[0], prod(positions.bounds[1:])
    arrays = (ops.read(0), ops.read(1, shape=by_axis), ops.read(2), ops.write(0))
    # one lane: LLVM turns the strided pairs into shuffles, which are faster than gathers and scatters
    lanes = threads_of(target, rotation.n_pairs) or (1 if rotation.interleaved else None)
    heads = heads_together(node.attrs, target)
    grid = ops.Cells(x.shape[0]), ops.Cells(node.attrs["heads"], heads)
    return ops.Build((ops.Launch(rotate, arrays, grid, constants_of(rotation, node.attrs, heads), lanes=lanes),))


# --- shape rule, reference, decomposition --------------------------------------------------------------------------------
def checked(
    op: str, specs: Sequence[TensorSpec], attrs: ops.Attrs, n_axes: int | None, dtypes: Sequence[DType] = DTYPES
) -> TensorSpec:
    """Returns x of the inputs x [T, heads * head_dim], positions [T], or [T, n_axes], and table. ShapeError for other inputs,
    heads, head_dim or pairing."""
    shape = "[T]" if n_axes is None else f"[T, {n_axes}]"
    wanted = f"x [T, heads * head_dim], positions {shape}, table [context, rotary_dim]"
    ops.expect(len(specs) == 3, op, tuple(specs), wanted)
    x, positions, table = specs
    heads, head_dim = attrs.get("heads", 0), attrs.get("head_dim", 0)
    ops.expect(heads > 0 and head_dim > 0, op, (heads, head_dim), "heads and head_dim above 0")
    good = x.is_plain and x.dtype in dtypes and len(x.shape) == 2 and x.shape[1] == heads * head_dim
    ops.expect(good, op, x, f"x of {' or '.join(d.name for d in dtypes)} [T, {heads * head_dim}]")
    want = TensorSpec((x.shape[0], *(() if n_axes is None else (n_axes,))), i32)
    ops.expect(positions == want, op, positions, f"positions of {want}")
    good = table.is_plain and table.dtype == f32 and len(table.shape) == 2
    good = good and isinstance(n := table.shape[1], int) and n % 2 == 0 and 0 < n <= head_dim
    ops.expect(good, op, table, f"table of f32 [context, rotary_dim], rotary_dim even and at most {head_dim}")
    pairing = attrs.get("pairing", "neox")
    ops.expect(pairing in PAIRINGS, op, repr(pairing), f"a pairing of {', '.join(PAIRINGS)}")
    inverse = attrs.get("inverse", False)
    ops.expect(isinstance(inverse, bool), op, f"inverse {inverse!r}", "inverse, True or False")
    return x
