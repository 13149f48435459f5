"""matmul for GPUs: a workgroup computes a tile of the product from blocks of the operands in its workgroup memory.

With asynchronous copies there are several blocks of each operand: one is multiplied while the next ones are copied. Matrix units
multiply where the target has them for the dtype; elsewhere each thread computes a square of the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from camshaft.dtypes import bf16, f16, f32, i64
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.blocks import sum_of_group
from camshaft.ops.kernels.launch import without_threads, workgroup_nbytes
from camshaft.ops.matmul.shapes import Matrices, Sizes, only_f32, only_floats, sizes_of
from camshaft.ops.spec import TensorSpec, bound

SIDES = (16, 32, 64)
STEP = 16
# Sums of a thread that stay in registers (lang/expand/tiles.py).
MOST_SUMS = 64
# The same on matrix units (emit/nvptx/tiles.py), and tiles of large products for them: rows, columns and threads. Where each
# thread has a square, 128 x 128 by 256 threads ran at 20 TFLOP/s on an H200, 64 x 64 by 128 at 25.
MOST_UNIT_SUMS = 128
LARGE = ((128, 128, 128), (128, 64, 128))
# Slices of the depth, and the blocks that each has at least.
SLICES = (32, 16, 8, 4, 2)
LEAST_BLOCKS = 4
# Where a device does not say how many it has: those of an A100, rounded down.
MULTIPROCESSORS = 100
# Two blocks of 16 k of both operands for 64 x 64 in f32: every WebGPU adapter has as much.
LEAST_NBYTES = 2 * 2 * 64 * STEP * 4


@dataclass(frozen=True)
class Tiles(Matrices):
    """The sizes of a product in tiles: rows and columns of a tile, depth of a block, blocks of each operand; slices of the depth,
    each for a program."""

    transposed: bool
    m: int
    n: int
    step: int
    buffers: int
    slices: int

    @property
    def part(self) -> int:
        """The depth of a slice, in whole blocks; the last may have less."""
        return -(-self.depth // (self.slices * self.step)) * self.step


@kernel
def multiply_tiles(k: Tracer, a: Array, b: Array, out: Array, *extent: Value, **constants: Any) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j] (transposed: b[j, k]) for m rows i and n columns j, `step` of k at a time
    s = Tiles(**constants)
    rows, columns, depth, m, n, step = s.rows, s.columns, s.depth, s.m, s.n, s.step
    product, row, column = k.program(0), k.program(1) * m, k.program(2) * n
    index, begun = (product // s.slices, product % s.slices * s.part) if s.slices > 1 else (product, 0)
    active = extent[0] if extent else rows
    a_row, b_row = (
        s.a(index) * rows + row,
        s.b(index) * (columns if s.transposed else depth),
    )
    left = [k.scratch(a.ir.dtype, m, step) for _ in range(s.buffers)]
    right = [k.scratch(b.ir.dtype, *((n, step) if s.transposed else (step, n))) for _ in range(s.buffers)]
    total = k.tile(m, n)

    def begin(block: int, p: Value) -> None:
        p = p + begun
        there = depth - p
        k.async_copy(left[block], a, a_row, p, rows=active - row, columns=there)
        if s.transposed:
            k.async_copy(right[block], b, b_row + column, p, rows=columns - column, columns=there)
        else:
            k.async_copy(right[block], b, b_row + p, column, rows=there, columns=columns - column)

    def multiply(block: int) -> None:
        total.mma(left[block], (0, 0), right[block], (0, 0), k=step, transpose_b=s.transposed)

    if s.buffers == 1:
        for p in k.range(0, s.part, step):
            begin(0, p)
            k.async_wait()
            multiply(0)
            k.barrier()
    else:
        _in_turn(k, begin, multiply, s)
    total.store(out, (product * rows + row, column), rows=active - row, columns=columns - column)


def _in_turn(k: Tracer, begin: Callable[[int, Value], None], multiply: Callable[[int], None], s: Tiles) -> None:
    """Multiplies block after block while the next ones, as many as there are buffers less one, are copied. A wait is also a
    barrier: all threads have read what the next copy overwrites."""
    blocks, ahead = -(-s.part // s.step), s.buffers - 1
    for i in range(ahead):  # a group for each, also where there are fewer blocks
        if i:
            k.async_wait(ahead=ahead)
        if i < blocks:
            begin(i, k.const(i * s.step, i64))
    whole = max(0, (blocks - ahead) // s.buffers * s.buffers)
    for p in k.range(0, whole * s.step, s.buffers * s.step):
        for block in range(s.buffers):
            k.async_wait(ahead=ahead - 1)
            begin((block + ahead) % s.buffers, p + (block + ahead) * s.step)
            multiply(block)
    for last in range(whole, blocks):
        k.async_wait(ahead=ahead - 1)
        if last + ahead < blocks:
            begin((last + ahead) % s.buffers, k.const((last + ahead) * s.step, i64))
        multiply(last % s.buffers)


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    return default_values(sizes_of(node), _in_halves(node, target), target)


def default_values(s: Sizes, halves: bool, target: ops.Target) -> ops.Values:
    """Returns the values of the largest tile of which there are as many as multiprocessors, or the smallest that covers the
    product, in slices; `step`: 32 for 16-bit types on CUDA GPUs, which is 4 copies of 16 bytes per row."""
    step, buffers = (2 * STEP, 3) if halves else (STEP, 2 if target.backend == "cuda" else 1)
    for rows, columns, threads in LARGE if halves else ():
        if _tiles(s, rows, columns) >= _multiprocessors(target):
            return {"rows": rows, "columns": columns, "step": step, "threads": threads, "buffers": buffers, "slices": 1}
    m, n = (next((side for side in SIDES if side >= size), SIDES[-1]) for size in (bound(s.rows), s.columns))
    slices = _slices(s, _tiles(s, m, n), step, target)
    return {"rows": m, "columns": n, "step": step, "threads": target.lanes, "buffers": buffers, "slices": slices}


def _tiles(s: Sizes, rows: int, columns: int) -> int:
    return s.matrices * -(-bound(s.rows) // rows) * -(-s.columns // columns)


def _slices(s: Sizes, tiles: int, step: int, target: ops.Target) -> int:
    """Returns in how many slices NVIDIA GPUs divide a depth, so that each multiprocessor has a program."""
    if target.backend != "cuda" or s.extents:
        return 1
    wanted = min(_multiprocessors(target) // tiles, s.depth // (LEAST_BLOCKS * step))
    return next((n for n in SLICES if n <= wanted), 1)


def _multiprocessors(target: ops.Target) -> int:
    return int(target.limits.get("multiprocessors", MULTIPROCESSORS))


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: blocks exceed the workgroup memory, or sums the registers."""
    size = 2 if _in_halves(node, target) else 4  # every element takes 4 bytes in WGSL's workgroup memory
    if target.backend != "cuda" and values["buffers"] > 1:
        return f"{values['buffers']} blocks of an operand; wanted 1, as this target copies at once"
    if values["slices"] > 1 and sizes_of(node).extents:
        return "slices of the depth; wanted 1 for rows that are an Extent"
    nbytes = size * values["buffers"] * values["step"] * (values["rows"] + values["columns"])
    if nbytes > workgroup_nbytes(target):
        return f"blocks of {nbytes} bytes; a workgroup has {workgroup_nbytes(target)}"
    sums = values["rows"] * values["columns"] // values["threads"]
    most = MOST_UNIT_SUMS if _in_halves(node, target) else MOST_SUMS
    return f"{sums} sums per thread; wanted at most {most}" if sums > most else None


def _in_halves(node: ops.NodeSpec, target: ops.Target) -> bool:
    """Whether blocks are of 16-bit floats that a CUDA GPU's matrix units take."""
    return target.backend == "cuda" and all(spec.dtype in (f16, bf16) for spec in node.inputs)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if (reason := without_threads(target)) is not None:
        return reason
    if workgroup_nbytes(target) < LEAST_NBYTES:
        return f"wants {LEAST_NBYTES} bytes of workgroup memory; got {workgroup_nbytes(target)}"
    return only_floats(node) or only_f32(node)


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds a launch of the product, or of the products of slices and one that adds them up."""
    s, slices = sizes_of(node), values["slices"]
    if slices == 1:
        return ops.Build((launch_of(s, s.operands, values),))
    a, b, out = s.operands
    n = bound(s.rows) * s.columns
    parts = ops.scratch(0, "write", shape=(s.matrices * slices * bound(s.rows), s.columns))
    arrays = ops.scratch(0, "read", shape=(s.matrices * slices, n)), replace(out, shape=(s.matrices, n))
    block = 4 * target.lanes
    grid = ops.Cells(s.matrices), ops.Cells(n, per=block)
    added = ops.Launch(sum_of_group, arrays, grid, {"group": slices, "n": n, "block": block})
    return ops.Build((launch_of(s, (a, b, parts), values), added), (TensorSpec((s.matrices * slices, n), f32),))


def launch_of(s: Sizes, operands: tuple[ops.Operand, ...], values: ops.Values) -> ops.Launch:
    """Returns a launch with a program per product, slice and tile. `operands`: rows of all matrices of a, of b, and of the result
    (of one for each slice)."""
    m, n = values["rows"], values["columns"]
    shape = {"transposed": s.transposed, "m": m, "n": n}
    shape |= {name: values[name] for name in ("step", "buffers", "slices")}
    grid = (ops.Cells(s.matrices * values["slices"]), ops.Cells(s.rows, m), ops.Cells(s.columns, n))
    constants: dict[str, Constant] = {**shape, **s.constants()}
    return ops.Launch(multiply_tiles, operands, grid, constants, s.extents, values["threads"])


_TUNABLES = ops.Tunables(
    {
        "rows": (16, 32, 64, 128),
        "columns": (16, 32, 64, 128, 256),
        "step": (16, 32, 64),
        "threads": (32, 64, 128, 256),
        "buffers": (1, 2, 3, 4),
        "slices": (1, *SLICES),
    },
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
