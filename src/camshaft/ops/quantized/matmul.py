"""quantized_matmul: y[t, n] = sum_k x[t, k] w[n, k], weights in a GGUF block format, packed once (packing.py).

Activations are f32, or 8 bits or bf16 in tiles, made once per tensor (quantize_activations). The variants are a register tile
(here; its kernel is in kernels.py), one row per program (kernels.py), several streams for one token (gemv.py), slices of the
depth for few tokens on GPUs (sliced.py), matrix units (matrix_unit.py and unpacked_tiles.py, on GPUs unpacked_units.py), unpacked
weights (unpacked.py), and products of scales that are looked up (multiples.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.parameters import Parameters
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import TILES
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS, packed_format
from camshaft.ops.quantized.products import (
    gemv,
    matrix_unit,
    multiples,
    sliced,
    unpacked,
    unpacked_tiles,
    unpacked_units,
)
from camshaft.ops.quantized.products.avx2 import tile as avx2_tile
from camshaft.ops.quantized.products.kernels import (
    FEW_ROWS,
    ROW,
    is_q8,
    packed_only,
    product_build,
    product_tile,
    tile_cost,
)
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec

# Rows and tokens of a register tile. On NEON 8 x 6 takes about as many instructions per product as 16 x 12, and a
# quarter to a seventh of the stack traffic (counted in LLVM's code, tests/emit/llvm/test_levels.py; not timed).
NARROW_TILE = (8, {"q8": 6, "f32": 5})
# AVX2 alone, on Zen 4 restricted to it: 8 x 12 gives 153, 85 and 152 Gop/s for Q4_0, Q8_0 and Q4_K, 16 x 12 119, 81 and 137.
AVX2_TILE = (8, {"q8": 12, "f32": 5})
# AVX-VNNI: 4 tokens take the fewest instructions of 2 to 6, and nearly all of them stay in 16 registers (counted, not timed).
VNNI_TILE = (8, {"q8": 4, "f32": 5})
WIDEST_TILE = (ROWS, {"q8": 12, "f32": 6})
# With 32 registers of 512 bits: 16 tokens are 1 to 3 % faster than 12 where codes are unpacked by few instructions and have a
# zero point, elsewhere up to 9 % slower. For up to 16 tokens in all, one tile is fastest: it loads and unpacks weights once.
MOST_TOKENS, EASY_BITS = 16, (4, 8)
# On GPUs a row is a thread, and two warps share loads of the tokens.
THREADS = 64
# Distance of prefetches of codes in a GEMV, in words of 64 bytes: 8 KiB gave 27 to 30 GB/s on one Zen 4 core, 4 KiB 26 to 28,
# none 21. One token of Q8_0 is 5 to 14 % faster without, by one and two threads: a line of codes takes five instructions.
AHEAD, PLAIN_BITS = 128, 8


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "quantized_matmul", specs, "x [T, k] and w [n, k]")
    x, w = specs
    ops.expect(
        len(x.shape) == 2 and x.dtype == f32, "quantized_matmul", x, "x of f32 [T, k], plain, quantized or tiled"
    )
    good = isinstance(w.dtype, BlockFormat) and len(w.shape) == 2 and w.shape[1] == x.shape[1]
    ops.expect(good, "quantized_matmul", w, f"w [n, {x.shape[1]}] in a block format")
    form = packed_format(w)
    if is_q8(x):
        ops.expect(
            x.layout is q8.LAYOUTS[form.sums], "quantized_matmul", x, f"{q8.LAYOUTS[form.sums].name} for {w.dtype.name}"
        )
    return (TensorSpec((x.shape[0], w.shape[0]), f32),)


def tile_values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default rows and tokens of the tile, and the prefetch distance in words."""
    x = node.inputs[0]
    rows, tokens_of = tile_of(target)
    most = tokens_of["q8" if is_q8(x) else "f32"]
    if is_q8(x) and target.lanes == ROWS and not has_threads(target):
        most = MOST_TOKENS if x.bounds[0] <= MOST_TOKENS or _is_easy(node.inputs[1]) else most
    tokens = min(x.bounds[0], most)
    if has_threads(target):
        return {"rows": THREADS, "tokens": tokens, "ahead": 0}
    rows = ROWS if tokens == 1 else rows  # one token: each cache line of codes is read once, from memory
    once = tokens == x.bounds[0]  # otherwise weights stay in a cache after the first tile
    return {"rows": rows, "tokens": tokens, "ahead": ahead_of(node, target, tokens) if once else 0}


def ahead_of(node: ops.NodeSpec, target: ops.Target, tokens: int) -> int:
    """Returns how far kernels of quantized activations prefetch codes of input 1, in words, where they read these once."""
    x, w = node.inputs[:2]
    alone = tokens == 1 and target.lanes == ROWS and packed_format(w).bits == PLAIN_BITS
    return 0 if alone or has_threads(target) or not is_q8(x) else AHEAD


def tile_of(target: ops.Target) -> tuple[int, dict[str, int]]:
    """Returns the rows, and the most tokens by kind of activations, that fit the target's registers."""
    if target.backend != "simd" or target.lanes not in (4, 8):
        return WIDEST_TILE
    if target.lanes == 4:
        return NARROW_TILE
    return VNNI_TILE if "avxvnni" in target.features else AVX2_TILE


def _is_easy(w: TensorSpec) -> bool:
    form = packed_format(w)
    return form.bits in EASY_BITS and form.group == BLOCK and not form.has_minima


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    x = node.inputs[0]
    if values["tokens"] > x.bounds[0]:
        return f"a tile of {values['tokens']} tokens for {x.bounds[0]}"
    if values["rows"] > ROWS and not has_threads(target):
        return f"{values['rows']} rows need threads; {target.backend} has none"
    if values["rows"] > ROWS and values["ahead"]:
        return "threads prefetch nothing"
    if values["ahead"] and not is_q8(x):
        return "the kernel of f32 activations prefetches nothing"
    return None


def _build_tile(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    (x, w), rows = node.inputs, values["rows"]
    grid = (ops.Cells(w.bounds[0], rows), ops.Cells(x.shape[0], values["tokens"]))
    lanes = rows if rows > ROWS else None
    return product_build(product_tile, node, grid, tile_constants(node, values), lanes=lanes)


def tile_constants(node: ops.NodeSpec, values: ops.Values) -> dict[str, Constant]:
    """Returns the constants of a kernel that computes tiles of input 0 times input 1."""
    (n, _), bound = node.inputs[1].bounds, node.inputs[0].bounds[0]
    return {"n": n, "rows": values["rows"], "columns": values["tokens"], "bound": bound, "ahead": values["ahead"]}


_TUNABLES = ops.Tunables(
    {"rows": (8, 16, 32, 64, 128), "tokens": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16), "ahead": (0, 16, 32, 64, 128, 256)},
    tile_values,
    _build_tile,
    _refusal,
)
TILE = ops.KernelVariant("tile", ops.VECTORS, _TUNABLES.build_default, packed_only, tile_cost, _TUNABLES)


def tiled_input(use: Use, uses: Uses) -> Match | None:
    """Makes a product of many tokens of plain x with w read bf16 in tiles."""
    x, _ = use.inputs
    fits = x.spec.is_plain and x.spec.bounds[0] > FEW_ROWS and x.spec.bounds[1] % BLOCK == 0
    return read_form(use, TILES, "tiles") if fits else None


def read_form(use: Use, kind: tuple[int, int], suffix: str) -> Match:
    """Makes a product read a form of x, with one quantize_activations per x, form and device."""
    x, w, *others = use.inputs
    attrs = dict(zip(("group", "zero"), kind, strict=True))

    def build(new: Builder) -> Mapping[Any, Any]:
        (quantized,) = new.once(q8.OP, (x,), attrs, f"{x.name}.{suffix}")
        return dict(zip(use.outputs, new.apply(use.op, (quantized, w, *others), use.attrs, use.name), strict=True))

    return Match(build)


def _samples() -> Iterable[ops.Sample]:
    from camshaft.ops.quantized.samples import samples  # only validation needs them

    return samples()


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """Returns the float64 product of the file's dequantized weights, which samples have as an attribute, so that packing is
    validated too. Without it, the inputs are dequantized values."""
    if "wanted" in attrs:
        return (attrs["wanted"](),)
    x, w = (a.astype(np.float64) for a in inputs)
    return (x @ w.T,)


def _decompose(f: Any, x: Any, w: Any) -> Any:
    """The product of the numbers; x is quantized or f32."""
    return f.matmul(x if x.spec.is_plain else f.dequantize(x), f.dequantize(w), transpose_b=True)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 64), f32), TensorSpec((16, 64), BLOCK_FORMATS["Q4_0"])
    yield ops.ErrorSample((x, TensorSpec((16, 32), BLOCK_FORMATS["Q4_0"])), {}, r"w \[n, 64\]")
    yield ops.ErrorSample((x, TensorSpec((16, 64), BLOCK_FORMATS["Q8_K"])), {}, "no kernel for weights of Q8_K")
    yield ops.ErrorSample((TensorSpec((2, 64), f32, q8.LAYOUTS[16, 8]), w), {}, "sums of 32 by -8")


def quantized_input(use: Use, uses: Uses) -> Match | None:
    """Makes a quantized product of plain x with w read quantize_activations(x), with one of these per x, kind of sums and
    device."""
    x, w, *_ = use.inputs
    return read_form(use, packed_format(w.spec).sums, "q8") if x.spec.is_plain else None


OP = ops.Op(
    name="quantized_matmul",
    formula="y[t, n] = sum_k x[t, k] dequantize(w)[n, k]",
    parameters=Parameters("x w"),
    infer=_infer,
    reference=_reference,
    variants=(
        TILE,
        gemv.VARIANT,
        ROW,
        sliced.VARIANT,
        multiples.VARIANT,
        matrix_unit.VARIANT,
        avx2_tile.INT16,
        avx2_tile.VNNI,
        unpacked.variant(turns=False),
        unpacked_tiles.variant(turns=False),
        unpacked_units.VARIANT,
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[1].bounds)),
    decompose=_decompose,
    vjp=lambda f, dy, y, x, w: (f.quantized_matmul_transposed(dy, w), None) if x.spec.is_plain else NotImplemented,
    rules=(
        Rule(Stage.TILES, ("quantized_matmul",), tiled_input),
        Rule(Stage.QUANTIZE, ("quantized_matmul",), quantized_input),
    ),
)
