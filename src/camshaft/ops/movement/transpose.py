"""transpose: y's axis i is x's axis axes[i]; by default the axes are reversed. Bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i64, u16
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, same_dtype
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.kernels.strides import SIZES, Iteration, ProgramBlock, Strides, iteration, split_index, strides_of
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.reduce.axes import axes_of
from camshaft.ops.spec import TensorSpec, bound

# The pitch of a tile is odd: rows at a distance of a power of two would share a cache set.
TILE, PITCH = 32, 33
LEAST_AXIS = 8  # a tile's axes have at least as many elements


@kernel
def strided_copy(
    k: Tracer, x: Array, out: Array, *active: ir.Value, first: int, columns: int, block: int, sizes: Strides,
    strides: tuple[Strides, ...],
) -> None:  # fmt: skip
    # y[i] = x[first + i . strides], y in order
    program = ProgramBlock(k, columns, active, block, sizes, strides)
    for c in k.lanes(program.start, program.stop):
        program.store(1, out, c, program.load(0, x, c, first))


@kernel
def tiles(
    k: Tracer, x: Array, out: Array, *, sizes: Strides, x_steps: Strides, out_steps: Strides, rows: int, columns: int,
    x_row: int, out_column: int, dtype: str,
) -> None:  # fmt: skip
    # out[.., c, r] = x[.., r, c], TILE x TILE at a time through scratch, so that loads and stores are contiguous
    axes = split_index(k.program(0), sizes)
    starts = [sum((i * step for i, step in zip(axes, steps, strict=True)), start=0) for steps in (x_steps, out_steps)]
    row, column = k.program(1) * TILE, k.program(2) * TILE
    last_row, last_column = k.minimum(row + TILE, rows), k.minimum(column + TILE, columns)
    tile = k.scratch(DTYPES[dtype], TILE * PITCH)
    for r in k.range(row, last_row):
        for c in k.lanes(column, last_column):
            tile[(r - row) * PITCH + (c - column)] = x[starts[0] + r * x_row + c]
    k.barrier()
    for c in k.range(column, last_column):
        for r in k.lanes(row, last_row):
            out[starts[1] + c * out_column + r] = k.gather(tile, (r - row) * PITCH + (c - column))


@kernel
def tiles_of_threads(
    k: Tracer, x: Array, out: Array, *, sizes: Strides, x_steps: Strides, out_steps: Strides, rows: int, columns: int,
    x_row: int, out_column: int, dtype: str,
) -> None:  # fmt: skip
    # as `tiles`; all threads of a workgroup have elements of a tile, where a row of it has too few for them
    axes = split_index(k.program(0), sizes)
    starts = [sum((i * step for i, step in zip(axes, steps, strict=True)), start=0) for steps in (x_steps, out_steps)]
    first_row, first_column = k.program(1) * TILE, k.program(2) * TILE
    tile = k.scratch(DTYPES[dtype], TILE * PITCH)
    for i in k.lanes(TILE * TILE):
        r, c = first_row + i // TILE, first_column + i % TILE
        with k.when((r < rows) & (c < columns)):
            k.scatter(tile, k.gather(x, starts[0] + r * x_row + c), i // TILE * PITCH + i % TILE)
    k.barrier()
    for i in k.lanes(TILE * TILE):
        r, c = first_row + i % TILE, first_column + i // TILE
        with k.when((r < rows) & (c < columns)):
            k.scatter(out, k.gather(tile, i % TILE * PITCH + i // TILE), starts[1] + c * out_column + r)


def _axes(x: TensorSpec, attrs: ops.Attrs) -> tuple[int, ...]:
    rank = len(x.shape)
    axes = attrs.get("axes")
    found = tuple(reversed(range(rank))) if axes is None else axes_of("transpose", x, {"axes": axes})
    ops.expect(len(found) == rank, "transpose", f"axes {axes} of {x}", f"each of the {rank} axes once")
    return found


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "transpose", specs, "one tensor x")
    unknown = set(attrs) - {"axes"}
    ops.expect(not unknown, "transpose", f"attributes {sorted(unknown)}", "axes")
    dtype, x = same_dtype("transpose", specs, EVERY), specs[0]
    axes = _axes(x, attrs)
    extents = [i for i, d in enumerate(x.shape) if isinstance(d, Extent)]
    fits = 0 not in x.bounds and (not extents or (extents == [0] and axes[0] == 0 and len(axes) > 1))
    ops.expect(fits, "transpose", x, "no empty axis, and an Extent only as the first axis of both")
    return (TensorSpec(tuple(x.shape[a] for a in axes), dtype),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (np.array(np.transpose(inputs[0], attrs.get("axes")), order="C"),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, out = node.inputs[0], node.outputs[0]
    own = strides_of(x, x.shape)
    permuted = tuple(own[a] for a in _axes(x, node.attrs))
    over = iteration(out.shape, (permuted, strides_of(out, out.shape)))
    flat = (prod(out.bounds),)
    arrays = as_bits(ops.read(0, shape=flat), x), as_bits(ops.write(0, shape=flat), out)
    tiled = _tiled(over, arrays, ir.arithmetic_dtype(arrays[0].dtype or as_dtype(x.dtype)))
    if tiled is not None:
        return ops.Build((replace(tiled, kernel=tiles_of_threads) if has_threads(target) else tiled,))
    return ops.Build((strided(over, arrays),))


def strided(over: Iteration, arrays: tuple[ops.Operand, ...], first: int = 0) -> ops.Launch:
    """A launch of `strided_copy`, with x read from its element `first` on."""
    return ops.Launch(
        strided_copy, arrays, over.grid, {"first": first, **over.constants}, over.extents, sizes=("first", *SIZES)
    )


def _tiled(over: Iteration, arrays: tuple[ops.Operand, ...], dtype: DType) -> ops.Launch | None:
    """A launch of `tiles` if x's last axis is not the result's last one and both are long enough; else None."""
    x_steps, out_steps = over.strides
    sizes = over.middle
    at = next((i for i, step in enumerate(x_steps[1:-1]) if step == 1), None)
    rows = bound(over.columns)
    if at is None or x_steps[-1] == 1 or min(sizes[at], rows) < LEAST_AXIS or isinstance(over.outer, Extent):
        return None
    others = [i for i in range(len(sizes)) if i != at]
    constants: dict[str, Constant] = {
        "sizes": tuple(sizes[i] for i in others),
        "x_steps": tuple(x_steps[1 + i] for i in others),
        "out_steps": tuple(out_steps[1 + i] for i in others),
        "rows": rows,
        "columns": sizes[at],
        "x_row": x_steps[-1],
        "out_column": out_steps[1 + at],
        "dtype": dtype.name,
    }
    cells = ops.Cells(prod(sizes[i] for i in others)), ops.Cells(rows, TILE), ops.Cells(sizes[at], TILE)
    return ops.Launch(tiles, arrays, cells, constants, sizes=tuple(name for name in constants if name != "dtype"))


def _vjp(f: Any, dy: Any, y: Any, x: Any, **attrs: Any) -> Any:
    axes = _axes(x.spec, attrs)
    return f.transpose(dy, axes=tuple(sorted(range(x.ndim), key=axes.__getitem__))) if axes else dy


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(17)
    shapes = (((1,), None), ((3, 5), None), ((33, 17), None), ((64, 65), None), ((5, 4099), (1, 0)))
    others = (
        ((2, 3, 17), (0, 2, 1)),
        ((2, 33, 3, 40), (2, 0, 3, 1)),
        ((2, 17, 3), (1, 0, 2)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
        ((2, 1, 7), (-1, 0, 1)),
    )
    for shape, axes in (*shapes, *others):
        yield ops.Sample(f"{shape} to {axes}", (rng.normal(size=shape).astype(np.float32),), {"axes": axes})
    for dtype in (f64, f16, bf16, i8, i64, u16, boolean):
        yield ops.Sample(f"7x19 of {dtype.name}", (rng.integers(0, 100, (7, 19)).astype(dtype.numpy),))
    tokens = Extent("tokens", 16)
    x = rng.normal(size=(16, 5, 33)).astype(np.float32)
    spec = TensorSpec((tokens, 5, 33), f32)
    yield ops.Sample("7 of 16", (x,), {"axes": (0, 2, 1)}, (spec,), {tokens: 7})
    spec = TensorSpec((tokens, 1), f32)
    yield ops.Sample("7 of 16 single ones", (x[:, :1, 0].copy(),), {"axes": (0, 1)}, (spec,), {tokens: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((x,), {"axes": (0,)}, "wanted each of the 2 axes once")
    yield ops.ErrorSample((x,), {"axes": (0, 2)}, "wanted axes from -2 to 1")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8), 3), f32),), {}, "wanted no empty axis")


OP = ops.Op(
    name="transpose",
    formula="y = x with its axes permuted",
    parameters=Parameters("x", (Attribute("axes", "tuple[int, ...] | None", None),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("strided_copy", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0},
    nbytes=lambda node: 2.0 * node.outputs[0].nbytes,
    vjp=_vjp,
)
