"""gated_product: q8 of act(x Wg) * (x Wu), the first half of a gated feed-forward layer, from q8 activations.

Bit-equal to two quantized_matmuls and silu_multiply_q8 (act "gelu": gelu_multiply_q8), with the same variant of the products.
`tile`, `int16_sums` (AVX2 alone) and `vnni_sums` (AVX-VNNI): a program computes the same 32 columns of both products for some
tokens and quantizes their block of 32, so that the products do not go through memory. `unfused_NAME`: the launches of both
products by their variant NAME, then the activation's; each is validated, measured and chosen as any variant. `sums` as in
fused_quantize.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.formats.blocks import BlockFormat
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.unit_panels import PARTS
from camshaft.ops.parameters import ACT, SUMS, Parameters
from camshaft.ops.quantize import fused_quantize
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import BLOCK, Sums
from camshaft.ops.quantized import matmul
from camshaft.ops.quantized.gated_unfused import COARSE, PRODUCT, SECOND, product_node, second_op, unfused
from camshaft.ops.quantized.packed.packing import ROWS, packed_format
from camshaft.ops.quantized.products import unpacked_tiles
from camshaft.ops.quantized.products.avx2 import tile as avx2_tile
from camshaft.ops.quantized.products.avx2.staged import pays
from camshaft.ops.quantized.products.gated_tiles import gated_avx2_tile, gated_tile, gated_unpacked_tiles
from camshaft.ops.quantized.products.kernels import packed_only, product_build, tile_cost
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec

NAME = "gated_product"
# Formats of gate and up; the kernels are validated for each.
FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
# Tokens of a program of int16_sums: both products of 32 rows are 8 KiB, or 16 where blocks are staged.
GATED_COLUMNS, STAGED_COLUMNS = 32, 64


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, NAME, specs, "x [T, k] of q8, gate and up [n, k]")
    x, gate, up = specs
    ops.expect(x.layout in q8.FORMS.values(), NAME, x, "x [T, k] of q8, or bf16 in tiles")
    good = isinstance(gate.dtype, BlockFormat) and gate.dtype.name in FORMATS
    ops.expect(good, NAME, gate, f"weights of {', '.join(FORMATS)}")
    ops.expect(gate == up, NAME, up, f"up as gate is, {gate}")
    act = attrs.get("act", ACT.default)
    ops.expect(act in SECOND, NAME, f"act {act!r}", f"act {' or '.join(SECOND)}")
    (y,) = PRODUCT.infer((x, gate), {})
    return fused_quantize.forms_of(NAME, y, attrs)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """Samples have the float64 products in their attributes, like those of quantized_matmul."""
    if "wanted" in attrs:
        gate, up = attrs["wanted"]()
    else:
        x, *weights = (a.astype(np.float64) for a in inputs)
        gate, up = (x @ w.T for w in weights)
    return second_op(attrs).reference((gate, up), {"sums": attrs["sums"], "floats": False})


def _decompose(f: Any, x: Any, gate: Any, up: Any, sums: Sums, act: str = "silu") -> Any:
    products = (f.quantized_matmul(x, w) for w in (gate, up))
    return getattr(f, SECOND[act].name)(*products, sums=sums, floats=False)


def _outputs(node: ops.NodeSpec, y: TensorSpec) -> list[ops.Operand]:
    """Returns the operands of the forms of y."""
    kinds = node.attrs["sums"]
    return [operand for i, kind in enumerate(kinds) for operand in q8.form_operands(i, y, kind)]


def _build_tile(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, gate, _ = node.inputs
    tokens, n, values = x.shape[0], gate.bounds[0], matmul.tile_values(product_node(node), target)
    rows, y = min(values["rows"], ROWS), TensorSpec((tokens, n), f32)
    outputs = _outputs(node, y)
    constants = {**matmul.tile_constants(node, {**values, "rows": rows}), "sums": node.attrs["sums"]}
    constants["act"] = node.attrs.get("act", ACT.default)
    grid = (ops.Cells(n, BLOCK), ops.Cells(tokens, values["tokens"]))
    return product_build(gated_tile, node, grid, constants, outputs=outputs)


def _build_avx2(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, gate, _ = node.inputs
    tokens, n = x.shape[0], gate.bounds[0]
    vnni = avx2_tile.has_vnni_sums(target)
    staged = not vnni and pays(packed_format(gate), *x.bounds)
    values = avx2_tile.many_values(x.bounds[0], STAGED_COLUMNS if staged else GATED_COLUMNS)
    y = TensorSpec((tokens, n), f32)
    outputs = _outputs(node, y)
    act = node.attrs.get("act", ACT.default)
    constants = {"n": n, "bound": x.bounds[0], "sums": node.attrs["sums"], "act": act, **values}
    constants |= {"vnni": vnni, "staged": staged}
    grid = (ops.Cells(n, BLOCK), ops.Cells(tokens, values["columns"]))
    return product_build(gated_avx2_tile, node, grid, constants, outputs=outputs)


def _build_unpacked(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds one launch with a program per 32 columns and block of tokens."""
    x, gate, _ = node.inputs
    n, tokens = gate.bounds[0], unpacked_tiles.tokens_of(x)
    outputs = _outputs(node, TensorSpec((x.shape[0], n), f32))
    constants = {"n": n, "bound": x.bounds[0], "tokens": tokens, "sums": node.attrs["sums"]}
    constants["act"] = node.attrs.get("act", ACT.default)
    grid = (ops.Cells(n, BLOCK), ops.Cells(x.shape[0], tokens))
    return product_build(gated_unpacked_tiles, node, grid, constants, x=(unpacked_tiles.words_of(x),), outputs=outputs)


def _unpacked_supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    blocks, most = node.inputs[1].bounds[1] // BLOCK, PARTS[-1]
    if blocks > most:
        return f"takes at most {most} blocks of 32 k; got {blocks}"
    return unpacked_tiles.supports(product_node(node), target)


def _unpacked_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    y = float(prod(node.inputs[0].bounds[:1]) * node.inputs[1].bounds[0])
    return 2 * unpacked_tiles.cost(product_node(node), target) + 0.3 * y


def _avx2_supports(node: ops.NodeSpec, target: ops.Target, product: ops.KernelVariant) -> str | None:
    fewest = avx2_tile.AT_ONCE + 1
    if node.inputs[0].bounds[0] < fewest:
        return f"takes {fewest} tokens and more"
    return product.supports(product_node(node), target)


def _packed_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return packed_only(product_node(node), target)


def _tile_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    # Zen 4, n 1536, k 576: 4 us slower than `unfused_tile` for one token (it waits at each block's end), 190 us faster for 512
    y = float(prod(node.inputs[0].bounds[:1]) * node.inputs[1].bounds[0])
    return 2 * tile_cost(product_node(node), target) + 0.3 * y + 2.5 * node.inputs[1].bounds[0]


def _avx2_cost(node: ops.NodeSpec, target: ops.Target, product: ops.KernelVariant) -> float:
    y = float(prod(node.inputs[0].bounds[:1]) * node.inputs[1].bounds[0])
    return 2 * product.cost(product_node(node), target) + 0.3 * y


def _avx2(product: ops.KernelVariant) -> ops.KernelVariant:
    """Returns the variant whose products are those of int16_sums or vnni_sums."""
    return ops.KernelVariant(
        product.name,
        frozenset({"simd"}),
        _build_avx2,
        lambda node, target: _avx2_supports(node, target, product),
        lambda node, target: _avx2_cost(node, target, product),
    )


def _samples() -> Iterable[ops.Sample]:
    from camshaft.ops.quantized.samples import gated_samples  # only validation needs them

    return gated_samples(FORMATS)


def _error_samples() -> Iterable[ops.ErrorSample]:
    from camshaft.ops.quantized.samples import gated_errors

    return gated_errors()


def _gated(use: Use, uses: Uses) -> Match | None:
    """Matches an activation's op of two quantized_matmuls of one q8 tensor on one device, if nothing else reads the products."""
    products = [m for t in use.inputs if (m := uses.maker(t)) is not None and m.op is PRODUCT]
    if use.attrs.get("floats") or len(products) != 2 or products[0] is products[1]:
        return None
    gate, up = products
    if gate.inputs[0] is not up.inputs[0] or not gate.device == up.device == use.device:
        return None
    if any(len(uses.readers(p.outputs[0])) > 1 or uses.is_output(p.outputs[0]) for p in products):
        return None
    inputs = (*gate.inputs, up.inputs[1])
    attrs = {"sums": use.attrs["sums"], "act": use.op.name.removesuffix("_multiply_q8")}
    if not OP.accepts(tuple(t.spec for t in inputs), attrs):
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        return dict(zip(use.outputs, new.apply(OP, inputs, attrs, use.name), strict=True))

    return Match(build, (gate, up))


OP = ops.Op(
    vjp=ops.NoGradient("its input is rounded to 8 bits"),
    name=NAME,
    formula="q8 of act(x Wg) * (x Wu); act is silu or gelu",
    parameters=Parameters("x gate up", (SUMS, ACT), results=None),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("tile", frozenset({"simd", "c"}), _build_tile, _packed_only, _tile_cost),
        _avx2(avx2_tile.INT16),
        _avx2(avx2_tile.VNNI),
        ops.KernelVariant(
            "unpacked_tiles",
            frozenset({"simd"}),
            _build_unpacked,
            _unpacked_supports,
            _unpacked_cost,
            tolerance=COARSE,
        ),
        # those take f32, and other formats
        *(unfused(product) for product in PRODUCT.variants if product.name not in ("unpacked", "multiples")),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={layout.name: fused_quantize.TOLERANCE for layout in q8.FORMS.values()},
    flops=lambda node: 2 * PRODUCT.flops(product_node(node)),
    decompose=_decompose,
    rules=(Rule(Stage.GATED_PRODUCT, tuple(op.name for op in SECOND.values()), _gated),),
)
