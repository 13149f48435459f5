"""dequantize: the numbers of a tensor in a block format, or of activations that quantize_activations made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from camshaft.dtypes import f32, i8, i64
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, to_dtype
from camshaft.ops.parameters import TO, Parameters
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import TILE_ROWS, TILES
from camshaft.ops.quantized.packed.formats import BLOCK, PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import INTERLEAVED, interleaved, pack, packed_format
from camshaft.ops.quantized.packed.weights import Packed, packed, weight_operands
from camshaft.ops.spec import TensorSpec


def number_at(k: Tracer, weights: Packed, row: Value, c: Value) -> Value:
    """Column c of a row as f32: (code - zero point) scale, or code scale + minimum. Row and column may vary by lane."""
    b, j = c // BLOCK, c % BLOCK
    code = weights.code_at(row, b, j)
    scale, minimum = weights.scale_at(row, b, j // weights.form.group)
    if minimum is None:
        return (code - (weights.form.zero_point or 0)).to(f32) * scale
    return k.fma(code.to(f32), scale, minimum)


@kernel
def interleaved_row(k: Tracer, codes: Array, scales: Array, extra: Array, out: Array, *, dim: int, block: str) -> None:
    # y[r, c] = number_at(r, c)
    row, weights = k.program(0), packed(k, codes, scales, extra, block)
    for c in k.lanes(dim):
        out[row, c] = number_at(k, weights, row.to(i64), c)


@kernel
def activation_row(k: Tracer, codes: Array, scales: Array, out: Array, *, dim: int) -> None:
    # y[r, c] = q[r, c] d[r, c // 32]
    row = k.program(0)
    for c in k.lanes(dim):
        out[row, c] = codes[row, c].to(f32) * scales[row, c // BLOCK]


@kernel
def tiled_row(k: Tracer, tiles: Array, out: Array, *, dim: int) -> None:
    # y[r, c] = tiles[r // 32, c // 32, r % 32, c % 32]
    row = k.program(0)
    for c in k.lanes(dim):
        out[row, c] = k.gather(tiles, row // TILE_ROWS, c // BLOCK, row % TILE_ROWS, c % BLOCK)


def _is_form(x: TensorSpec) -> bool:
    return x.layout in q8.FORMS.values()


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "dequantize", specs, "one tensor x [n, k]")
    x = specs[0]
    fits = len(x.shape) >= 2 and (_is_form(x) or isinstance(x.dtype, BlockFormat))
    ops.expect(fits, "dequantize", x, "x [n, .., k] in a block format or of quantize_activations")
    if not _is_form(x):
        packed_format(x)
    return (to_dtype("dequantize", TensorSpec(x.shape, f32), attrs),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """The numbers that a sample has as an attribute; without it, the input is numbers."""
    return (attrs.get("values", inputs[0]).astype(np.float64),)


def _build_interleaved(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    rows, dim = prod(x.bounds[:-1]), x.bounds[-1]
    constants: dict[str, Constant] = {"dim": dim, "block": x.dtype.name}
    arrays = (*weight_operands(node, 0), ops.write(0, shape=(rows, dim)))
    return ops.Build((ops.Launch(interleaved_row, arrays, (ops.Cells(rows),), constants),))


def _build_activations(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    out, grid, sizes = ops.write(0, shape=q8.flat(x)), (ops.Cells(x.shape[0]),), {"dim": q8.flat(x)[1]}
    if q8.is_tiled(x):
        return ops.Build((ops.Launch(tiled_row, (ops.read(0, "tiles"), out), grid, sizes),))
    codes = ops.Operand("input", 0, "codes", q8.flat(x), dtype=i8)
    return ops.Build((ops.Launch(activation_row, (codes, ops.read(0, "scales"), out), grid, sizes),))


def _weights_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return None if node.inputs[0].layout is INTERLEAVED else "the tensor is not of packed weights"


def _activations_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return None if _is_form(node.inputs[0]) else "the tensor is not of quantized activations"


def _samples() -> Iterable[ops.Sample]:
    for name in PACKED_FORMATS:
        yield _weights(name, 19, 2 * max(BLOCK_FORMATS[name].block_size, BLOCK), {})
    yield _weights("Q4_1", 3, BLOCK, {"to": "bf16"})
    yield _weights("Q4_0", 19, 2 * BLOCK, {}, experts=2)
    yield _weights("IQ2_S", 3, 256, {"to": "f16"})
    for rows, k, kind, to in ((1, 32, (32, 0), "f32"), (5, 96, (16, 32), "f16")):
        yield _activations(rows, k, kind, {"to": to})
    yield _activations(35, 64, TILES, {})
    full, tokens = _activations(9, 64, (32, 8), {}), Extent("tokens", 9)
    assert full.specs is not None
    spec = TensorSpec((tokens, 64), f32, full.specs[0].layout)
    values = full.attrs["values"][:4]
    yield ops.Sample("4 of 9 tokens", full.inputs, {"values": values}, (spec,), {tokens: 4})


def _weights(name: str, n: int, k: int, attrs: ops.Attrs, experts: int = 0) -> ops.Sample:
    from camshaft.ops.quantized.samples import LazySample, random_blocks  # only validation needs samples

    block, shape = BLOCK_FORMATS[name], (experts, n, k) if experts else (n, k)
    raw, spec = random_blocks(name, max(experts, 1) * n, k, seed=5), interleaved(TensorSpec(shape, block))

    def inputs() -> tuple[ops.Array, ...]:
        out = np.zeros(spec.nbytes, np.uint8)
        pack(raw, spec, out)
        return (out,)

    values = block.dequantize(raw.reshape(-1, block.block_nbytes)).reshape(shape)
    return LazySample(f"{name} {'x'.join(map(str, shape))}", inputs, {"values": values, **attrs}, (spec,))


def _activations(rows: int, k: int, kind: tuple[int, int], attrs: ops.Attrs) -> ops.Sample:
    x = np.random.default_rng(rows).normal(size=(rows, k)).astype(np.float32)
    spec = TensorSpec(x.shape, f32, q8.FORMS[kind])
    data = q8.to_tiles(x, spec) if kind == TILES else q8.to_bytes(*q8.quantize(x), spec, *kind)
    assert spec.layout.numbers is not None
    return ops.Sample(
        f"{spec.layout.name} {rows}x{k}", (data,), {"values": spec.layout.numbers(data, spec), **attrs}, (spec,)
    )


def _error_samples() -> Iterable[ops.ErrorSample]:
    w = TensorSpec((16, 64), BLOCK_FORMATS["Q4_0"])
    yield ops.ErrorSample((w, w), {}, "wanted one tensor")
    yield ops.ErrorSample((TensorSpec((16, 64), f32),), {}, "in a block format or of quantize_activations")
    yield ops.ErrorSample((w,), {"to": "i8"}, "wanted to f32, f16 or bf16")


OP = ops.Op(
    name="dequantize",
    vjp=ops.NoGradient("its input has codes, not numbers"),
    formula="y[.., c] = the number that x stores for it",
    parameters=Parameters("x", (TO,)),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("interleaved_row", ops.EVERYWHERE, _build_interleaved, _weights_only),
        ops.KernelVariant("activation_row", ops.EVERYWHERE, _build_activations, _activations_only),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TO_TOLERANCE | {"f32": 1e-13},
    flops=lambda node: 2.0 * float(np.prod(node.inputs[0].bounds)),
)
