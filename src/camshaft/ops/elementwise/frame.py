"""Shared by the elementwise ops: how a tensor is cut into row blocks, one per program, and what shapes they take.

Only the first axis may be an Extent, so the active elements lie together: a tensor is seen as [rows, columns], rows the Extent
(or everything in one row where all sizes are known) and each program takes up to BLOCK columns of one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from camshaft.dtypes import DType, f32
from camshaft.extent import Extent
from camshaft.lang.kernel import Constant, Kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels import lanes
from camshaft.ops.spec import Dim, TensorSpec

# Columns per program: 16 KiB of each f32 operand, 0.5 (add) to 2 (silu) microseconds of work on one AVX-512 core.
BLOCK = 4096
BACKENDS = ops.EVERYWHERE


@dataclass(frozen=True)
class Cut:
    """A tensor as rows x columns, with `block` columns to a program."""

    rows: Dim
    columns: int
    block: int

    @property
    def shape(self) -> tuple[int, int]:
        """The bounds that a kernel sees."""
        return (self.rows.bound if isinstance(self.rows, Extent) else self.rows), self.columns

    @property
    def grid(self) -> tuple[ops.Cells, ops.Cells]:
        """A program per row and block."""
        return ops.Cells(self.rows), ops.Cells(self.columns, per=self.block)


def even_block(columns: int, most: int = BLOCK) -> int:
    """The block that cuts `columns` into as few blocks of at most `most` as needed, of nearly equal, whole-vector sizes."""
    count = -(-columns // most)
    return min(columns, -(-columns // count // 64) * 64)


def cut(spec: TensorSpec, keep_columns: bool = False) -> Cut:
    """Rows and columns of a tensor. `keep_columns` keeps its last axis as the columns (for an operand that repeats per row)."""
    if keep_columns or isinstance(spec.shape[0], Extent):
        rows, columns = _rows_and_columns(spec, keep_columns)
    else:
        rows, columns = 1, prod(spec.bounds)
    return Cut(rows, columns, even_block(columns))


def _rows_and_columns(spec: TensorSpec, keep_columns: bool) -> tuple[Dim, int]:
    if keep_columns:
        rows = spec.shape[0] if len(spec.shape) == 2 else prod(spec.bounds[:-1])
        return rows, spec.bounds[-1]
    return spec.shape[0], prod(spec.bounds[1:])


def launch(
    kernel: Kernel, how: Cut, arrays: Sequence[ops.Operand], constants: dict[str, Constant] | None = None
) -> ops.Build:
    """One launch of a kernel with the constants `columns` and `block`, and others."""
    given: dict[str, Constant] = {"columns": how.columns, "block": how.block, **(constants or {})}
    return ops.Build((ops.Launch(kernel, tuple(arrays), how.grid, given),))


def tunables(build: lanes.Builder) -> ops.Tunables:
    """Columns of a program and lanes, for a build of one launch whose last grid axis is columns, cut by the constant `block`."""

    def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
        made = build(node, target)
        (only,) = made.launches
        assert isinstance(only, ops.Launch)
        columns = only.grid[-1].dim
        block = values["block"] if isinstance(columns, Extent) else even_block(columns, values["block"])
        grid = (*only.grid[:-1], ops.Cells(columns, per=block))
        cut_anew = replace(only, grid=grid, constants={**only.constants, "block": block})
        return lanes.with_lanes(replace(made, launches=(cut_anew,)), target, values)

    def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
        return {"block": BLOCK, "lanes": target.lanes}

    blocks = (512, 1024, 2048, 4096, 8192, 16384, 65536, 1 << 20)
    return ops.Tunables({"block": blocks, "lanes": lanes.LANES}, defaults, build_with, lanes.refusal)


def expect_tensor(op: str, spec: TensorSpec, dtypes: Iterable[DType] = (f32,)) -> None:
    """ShapeError unless `spec` is a plain tensor of one of the dtypes with no Extent but its first axis."""
    allowed = tuple(dtypes)
    wanted = f"a tensor of {' or '.join(d.name for d in allowed)} whose first axis alone may be an Extent"
    inner_extent = any(isinstance(d, Extent) for d in spec.shape[1:])
    fits = spec.is_plain and spec.dtype in allowed and len(spec.shape) >= 1 and not inner_extent
    ops.expect(fits and 0 not in spec.bounds, op, spec, wanted)


def sample_shapes() -> tuple[tuple[int, ...], ...]:
    """Shapes on both sides of a vector's and a block's width."""
    flat = ((n,) for n in (1, 15, 16, 17, 33))
    return (*flat, (3, 5), (2, 3, 7), (2, BLOCK - 1), (1, BLOCK + 17), (3, 2 * BLOCK + 1))


def part_of_bound(seed: int, *columns: int) -> tuple[tuple[TensorSpec, ops.Array], dict[Extent, int]]:
    """A tensor of 7 active tokens of at most 16, for the sample that holds an op to its active extent."""
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, *columns), f32)
    return (spec, np.random.default_rng(seed).normal(size=spec.bounds).astype(np.float32)), {tokens: 7}
