"""matmul for GPUs: a workgroup computes a tile of the product from blocks of the operands in its workgroup memory.

With asynchronous copies there are two blocks of each operand: one is multiplied while the next is copied. Matrix units multiply
where the target has them for the dtype; elsewhere each thread computes a square of the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dataclass import dataclass
from camshaft.dtypes import bf16, f16, i64
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import without_threads, workgroup_nbytes
from camshaft.ops.matmul.shapes import Matrices, only_f32, only_floats, sizes_of
from camshaft.ops.spec import bound

SIDES = (16, 32, 64)
STEP = 16
# Sums of a thread that stay in registers (lang/expand/tiles.py).
MOST_SUMS = 64
# Two blocks of 16 k of both operands for 64 x 64 in f32: every WebGPU adapter has as much.
LEAST_NBYTES = 2 * 2 * 64 * STEP * 4


@dataclass(frozen=True)
class Tiles(Matrices):
    """The sizes of a product in tiles: rows and columns of a tile, depth of a block, blocks of each operand."""

    transposed: bool
    m: int
    n: int
    step: int
    buffers: int


@kernel
def multiply_tiles(k: Tracer, a: Array, b: Array, out: Array, *extent: Value, **constants: Any) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j] (transposed: b[j, k]) for m rows i and n columns j, `step` of k at a time
    s = Tiles(**constants)
    rows, columns, depth, m, n, step = s.rows, s.columns, s.depth, s.m, s.n, s.step
    index, row, column = k.program(0), k.program(1) * m, k.program(2) * n
    active = extent[0] if extent else rows
    a_row, b_row = (
        s.a(index) * rows + row,
        s.b(index) * (columns if s.transposed else depth),
    )
    left = [k.scratch(a.ir.dtype, m, step) for _ in range(s.buffers)]
    right = [k.scratch(b.ir.dtype, *((n, step) if s.transposed else (step, n))) for _ in range(s.buffers)]
    total = k.tile(m, n)

    def begin(block: int, p: Value) -> None:
        there = depth - p
        k.async_copy(left[block], a, a_row, p, rows=active - row, columns=there)
        if s.transposed:
            k.async_copy(right[block], b, b_row + column, p, rows=columns - column, columns=there)
        else:
            k.async_copy(right[block], b, b_row + p, column, rows=there, columns=columns - column)

    def multiply(block: int) -> None:
        total.mma(left[block], (0, 0), right[block], (0, 0), k=step, transpose_b=s.transposed)

    if s.buffers == 1:
        for p in k.range(0, depth, step):
            begin(0, p)
            k.async_wait()
            multiply(0)
            k.barrier()
    else:
        _in_turn(k, begin, multiply, depth, step)
    total.store(out, (index * rows + row, column), rows=active - row, columns=columns - column)


def _in_turn(
    k: Tracer, begin: Callable[[int, Value], None], multiply: Callable[[int], None], depth: int, step: int
) -> None:
    """Alternates between blocks 0 and 1. A wait is also a barrier: all threads have read what the next copy overwrites."""
    blocks = -(-depth // step)
    paired = (blocks - 1) // 2 * 2
    begin(0, k.const(0, i64))
    for p in k.range(0, paired * step, 2 * step):
        for block in range(2):
            k.async_wait()
            begin(1 - block, p + (block + 1) * step)
            multiply(block)
    for last in range(paired, blocks):
        k.async_wait()
        if last + 1 < blocks:
            begin((last + 1) % 2, k.const((last + 1) * step, i64))
        multiply(last % 2)


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the rows and columns of a workgroup's tile, the smallest that covers the product, up to 64; and a block's depth:
    32 for 16-bit types on CUDA GPUs, which is 4 copies of 16 bytes per row."""
    s = sizes_of(node)
    m, n = (next((side for side in SIDES if side >= size), SIDES[-1]) for size in (bound(s.rows), s.columns))
    return {"rows": m, "columns": n, "step": 2 * STEP if _in_halves(node, target) else STEP, "threads": target.lanes}


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: blocks exceed the workgroup memory, or sums the registers."""
    size = 2 if _in_halves(node, target) else 4  # every element takes 4 bytes in WGSL's workgroup memory
    nbytes = size * _buffers(target) * values["step"] * (values["rows"] + values["columns"])
    if nbytes > workgroup_nbytes(target):
        return f"blocks of {nbytes} bytes; a workgroup has {workgroup_nbytes(target)}"
    sums = values["rows"] * values["columns"] // values["threads"]
    return f"{sums} sums per thread; wanted at most {MOST_SUMS}" if sums > MOST_SUMS else None


def _in_halves(node: ops.NodeSpec, target: ops.Target) -> bool:
    """Whether blocks are of 16-bit floats that a CUDA GPU's matrix units take."""
    return target.backend == "cuda" and all(spec.dtype in (f16, bf16) for spec in node.inputs)


def _buffers(target: ops.Target) -> int:
    """Blocks of an operand: CUDA GPUs copy the next one while one is multiplied."""
    return 2 if target.backend == "cuda" else 1


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if (reason := without_threads(target)) is not None:
        return reason
    if workgroup_nbytes(target) < LEAST_NBYTES:
        return f"wants {LEAST_NBYTES} bytes of workgroup memory; got {workgroup_nbytes(target)}"
    return only_floats(node) or only_f32(node)


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds a launch with a program per product and tile."""
    s, m, n = sizes_of(node), values["rows"], values["columns"]
    shape = {"transposed": s.transposed, "m": m, "n": n, "step": values["step"], "buffers": _buffers(target)}
    grid = (ops.Cells(s.matrices), ops.Cells(s.rows, m), ops.Cells(s.columns, n))
    constants: dict[str, Constant] = {**shape, **s.constants()}
    return ops.Build((ops.Launch(multiply_tiles, s.operands, grid, constants, s.extents, values["threads"]),))


_TUNABLES = ops.Tunables(
    {"rows": (16, 32, 64, 128), "columns": (16, 32, 64, 128), "step": (16, 32, 64), "threads": (32, 64, 128, 256)},
    _defaults,
    _build,
    _refusal,
)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Full tiles at 4 multiply-adds per thread and nanosecond. On llvmpipe, 16 rows: 0.3 a nanosecond in all, others 0.03 to 0.06
    (transposed b); 256 cubed: 1.0, others 0.02 and 0.7. No GPU was measured."""
    s, values = sizes_of(node), _defaults(node, target)
    m, n = values["rows"], values["columns"]
    cells = -(-bound(s.rows) // m) * m * -(-s.columns // n) * n
    return s.matrices * cells * s.depth / (4 * target.lanes)


# NVIDIA's units cut off what they align, where other sums round: bf16 of depth 1034 had 1.02e-12 on an H200.
TOLERANCE = {"f32": 4e-12}
TILE = ops.KernelVariant("tile", ops.GPUS, _TUNABLES.build_default, _supports, _cost, _TUNABLES, tolerance=TOLERANCE)
