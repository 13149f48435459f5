"""quantized_matmul_transposed: y[t, k] = sum_n x[t, n] w[n, k], the gradient of quantized_matmul by its activations.

On CPUs a program unpacks the weights that it multiplies (unpacked.py, and of bf16 in tiles unpacked_tiles.py). Elsewhere the
weights are dequantized into scratch and multiplied by a kernel of matmul.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.lang import Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul import made_weights
from camshaft.ops.matmul.lanes import LANES
from camshaft.ops.matmul.tile import TILE
from camshaft.ops.matmul.tiled import TILED
from camshaft.ops.parameters import Parameters
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import TILE_ROWS
from camshaft.ops.quantized import dequantize
from camshaft.ops.quantized.matmul import tiled_input
from camshaft.ops.quantized.packed.formats import BLOCK, PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import interleaved, packed_format
from camshaft.ops.quantized.products import unpacked, unpacked_tiles
from camshaft.ops.quantized.products.kernels import (
    is_q8,
    minimum_of,
    operands,
    packed_only,
    packed_weights,
    product_build,
)
from camshaft.ops.quantized.samples import LazySample, packed_bytes, random_blocks
from camshaft.ops.rule import Rule, Stage
from camshaft.ops.spec import TensorSpec

NAME = "quantized_matmul_transposed"


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, NAME, specs, "x [T, n] and w [n, k]")
    x, w = specs
    ops.expect(len(x.shape) == 2 and x.dtype == f32, NAME, x, "x of f32 [T, n]")
    ops.expect(not is_q8(x), NAME, x, "x plain or tiled")
    good = isinstance(w.dtype, BlockFormat) and len(w.shape) == 2 and w.shape[0] == x.shape[1]
    ops.expect(good, NAME, w, f"w [{x.shape[1]}, k] in a block format")
    packed_format(w)
    return (TensorSpec((x.shape[0], w.shape[1]), f32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """The float64 product. Samples have it as an attribute; without that the inputs are numbers."""
    if "wanted" in attrs:
        return (attrs["wanted"](),)
    return (inputs[0].astype(np.float64) @ inputs[1].astype(np.float64),)


def _plain(node: ops.NodeSpec) -> ops.NodeSpec:
    """The node of matmul with dequantized weights."""
    x, w = node.inputs
    return ops.NodeSpec((x, TensorSpec(w.shape, f32)), node.outputs, {})


def _unpack(node: ops.NodeSpec, target: ops.Target) -> ops.Launch:
    """The launch that dequantizes the weights into scratch."""
    w = node.inputs[1]
    weights = ops.NodeSpec((w,), (TensorSpec(w.shape, f32),), {})
    made = dequantize.OP.variants[0].build(weights, target)
    assert isinstance(made, ops.Build)
    (launch,) = made.launches
    assert isinstance(launch, ops.Launch)

    def moved(operand: ops.Operand) -> ops.Operand:
        is_out = operand.kind == "output"
        return replace(operand, kind="scratch") if is_out else replace(operand, index=1)

    return replace(launch, arrays=tuple(map(moved, launch.arrays)))


def _samples() -> Iterable[ops.Sample]:
    """For each format one token and several, with n astride a tile of rows; then an Extent, and several steps of the depth."""
    for name in PACKED_FORMATS:
        yield sample(name, 1, 17)
        yield sample(name, 14, 33)
        yield sample(name, 45, 64, tiled=True)
    yield sample("Q4_0", 3, 32, blocks=1, tiled=True)
    yield sample("Q4_1", 29, 300, blocks=3, active=13)
    yield sample("Q4_0", 13, 1024, blocks=1)
    yield sample("Q8_0", 67, 2080, blocks=3, active=65, tiled=True)  # several parts of the depth


def sample(
    name: str, rows: int, n: int, blocks: int = 2, active: int | None = None, *, tiled: bool = False
) -> ops.Sample:
    """x [rows (active), n], plain or `tiled`, times random weights [n, k] of a block format, k being `blocks` blocks."""
    block, size = BLOCK_FORMATS[name], BLOCK_FORMATS[name].block_size
    k, dim = blocks * size, rows if active is None else Extent("T", rows)
    raw, w = random_blocks(name, n, k, seed=n), TensorSpec((n, k), block)
    x = np.random.default_rng(n + k).normal(size=(rows, n)).astype(np.float32)

    extents = {dim: active} if isinstance(dim, Extent) and active is not None else {}
    form, layout = (" tiles", (q8.TILE_LAYOUT,)) if tiled else ("", ())
    specs = (TensorSpec((dim, n), f32, *layout), interleaved(w))
    given = q8.to_tiles(x, specs[0]) if tiled else x

    def wanted() -> ops.Array:
        numbers = specs[0].layout.numbers
        left = x.astype(np.float64) if numbers is None else numbers(given, specs[0])
        values = block.dequantize(raw.reshape(-1, block.block_nbytes)).reshape(n, k).astype(np.float64)
        product: ops.Array = left[:active] @ values
        return product

    label = f"{name} {rows}({active or rows})x{n}x{k}{form}"
    return LazySample(label, lambda: (given, packed_bytes(raw, specs[1])), {"wanted": wanted}, specs, extents)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 16), f32), TensorSpec((16, 64), BLOCK_FORMATS["Q4_0"])
    yield ops.ErrorSample((x,), {}, r"wanted x \[T, n\] and w")
    yield ops.ErrorSample((TensorSpec((2, 64), f32), w), {}, r"w \[64, k\] in a block format")
    yield ops.ErrorSample((x, TensorSpec((16, 64), f32)), {}, "in a block format")
    yield ops.ErrorSample((TensorSpec((16,), f32), w), {}, r"wanted x of f32 \[T, n\]")


def _decompose(f: Any, x: Any, w: Any) -> Any:
    return f.matmul(x if x.spec.is_plain else f.dequantize(x), f.dequantize(w))


@kernel
def product_column(k: Tracer, *arguments: Any, n: int, block: str, blocks: int) -> None:
    # y[t, c] of one column and token per program; x as tiles. For targets without tiles
    given = operands(k, arguments, block)
    (x,), weights, size = given.x, given.weights, BLOCK // given.weights.form.groups
    c, t, total = k.program(0), k.program(1), k.accumulator("sum")
    b, j = c // BLOCK, c % BLOCK
    for row in k.lanes(n):
        scale, low = weights.scale_at(row, b, j // size)
        weight = k.fma(weights.code_at(row, b, j).to(f32), scale, minimum_of(weights, scale, low))
        total += weight * k.gather(x, t // TILE_ROWS, row // BLOCK, t % TILE_ROWS, row % BLOCK)
    given.out[t, c] = k.lanes_sum(total)


def _build_column(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (x, w), (y,) = node.inputs, node.outputs
    grid = ops.Cells(y.bounds[1]), ops.Cells(x.shape[0])
    return product_build(product_column, node, grid, {"n": w.bounds[0]}, x=(ops.read(0, x.parts[0].name),))


def _takes_tiles(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return packed_weights(node) or (None if q8.is_tiled(node.inputs[0]) else "takes activations of bf16 in tiles")


def _column_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.5 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[1].bounds))


COLUMN = ops.KernelVariant("column", ops.EVERYWHERE, _build_column, _takes_tiles, _column_cost)
# A weight takes 0.7 ns (Zen 3). CPUs choose `unpacked`, which is faster than the product by `blocked` would be.
DEQUANTIZED = made_weights.variants("dequantized", _plain, _unpack, packed_only, 0.7, (LANES, TILED, TILE))
OP = ops.Op(
    name=NAME,
    formula="y[t, k] = sum_n x[t, n] dequantize(w)[n, k]",
    parameters=Parameters("x w"),
    infer=_infer,
    reference=_reference,
    variants=(unpacked.variant(turns=True), unpacked_tiles.variant(turns=True), COLUMN, *DEQUANTIZED),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    packs=(1,),
    flops=lambda node: 2.0 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[1].bounds)),
    decompose=_decompose,
    vjp=lambda f, dy, y, x, w: (f.quantized_matmul(dy, w), None) if x.spec.is_plain else NotImplemented,
    rules=(Rule(Stage.TILES, (NAME,), tiled_input),),
)
