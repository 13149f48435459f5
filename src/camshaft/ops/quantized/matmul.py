"""quantized_matmul: y[t, n] = sum_k x[t, k] w[n, k], weights in a GGUF block format, packed once (packing.py).

Activations are f32, or quantized once per tensor (quantize_activations). Kernels are in kernels.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i8
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.lang.kernel import Kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.target import has_threads, plan_workers
from camshaft.ops.parameters import Parameters
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantized import gemv, k_quant, kernels, matrix_unit
from camshaft.ops.quantized.packing import BLOCK, INTERLEAVED, ROWS, PackedFormat, packed_format
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec

# Rows and tokens of a register tile. On NEON 8 x 6 takes about as many instructions per product as 16 x 12, and a
# quarter to a seventh of the stack traffic (counted in LLVM's code, tests/emit/test_llvm_levels.py; not timed).
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
# none 21.
AHEAD = 128


def _is_q8(x: TensorSpec) -> bool:
    return x.layout in q8.LAYOUTS.values()


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "quantized_matmul", specs, "x [T, k] and w [n, k]")
    x, w = specs
    ops.expect(len(x.shape) == 2 and x.dtype == f32, "quantized_matmul", x, "x of f32 [T, k], plain or quantized")
    good = isinstance(w.dtype, BlockFormat) and len(w.shape) == 2 and w.shape[1] == x.shape[1]
    ops.expect(good, "quantized_matmul", w, f"w [n, {x.shape[1]}] in a block format")
    form = packed_format(w)
    if _is_q8(x):
        ops.expect(
            x.layout is q8.LAYOUTS[form.sums], "quantized_matmul", x, f"{q8.LAYOUTS[form.sums].name} for {w.dtype.name}"
        )
    return (TensorSpec((x.shape[0], w.shape[0]), f32),)


def _constants(node: ops.NodeSpec) -> dict[str, Any]:
    w = node.inputs[1]
    return {"blocks": w.bounds[1] // BLOCK, "block": w.dtype.name}


def weight_operands(node: ops.NodeSpec, index: int = 1) -> tuple[ops.Operand, ...]:
    """Returns the operands of input `index`: codes, scales, and the scales' steps or the minima. For a format with neither,
    the third is the scales again, which kernels do not read."""
    form = packed_format(node.inputs[index])
    extra = "steps" if form.is_nested else "minima" if form.has_minima else "scales"
    return ops.read(index, "codes"), ops.read(index, "scales"), ops.read(index, extra)


def tile_values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default rows and tokens of the tile, and the prefetch distance in words."""
    x = node.inputs[0]
    rows, tokens_of = _tile_of(target)
    most = tokens_of["q8" if _is_q8(x) else "f32"]
    if _is_q8(x) and target.lanes == ROWS and not has_threads(target):
        most = MOST_TOKENS if x.bounds[0] <= MOST_TOKENS or _is_easy(node.inputs[1]) else most
    tokens = min(x.bounds[0], most)
    if has_threads(target):
        return {"rows": THREADS, "tokens": tokens, "ahead": 0}
    rows = ROWS if tokens == 1 else rows  # one token: each cache line of codes is read once, from memory
    once = tokens == x.bounds[0]  # otherwise weights stay in a cache after the first tile
    return {"rows": rows, "tokens": tokens, "ahead": AHEAD if once and _is_q8(x) else 0}


def _tile_of(target: ops.Target) -> tuple[int, dict[str, int]]:
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
    if values["ahead"] and not _is_q8(x):
        return "the kernel of f32 activations prefetches nothing"
    return None


def _build_tile(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return _build_tile_with(node, target, tile_values(node, target))


def _tile_kernel(w: TensorSpec, quantized: bool) -> Kernel:
    if not quantized:
        return kernels.f32_tile
    return k_quant.nested_tile if by_whole_numbers(packed_format(w)) else kernels.q8_tile


def by_whole_numbers(form: PackedFormat) -> bool:
    """Returns whether k_quant.py's tile is faster. With minima per 32 k it is 3 % slower (Q4_K, Q5_K on Zen 4: 65 % of the
    int8 peak, 67 % with float scales)."""
    return form.is_nested and (form.is_joint or not form.has_minima)


def _build_tile_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    x, w = node.inputs
    tokens, n, rows, columns = x.shape[0], w.bounds[0], values["rows"], values["tokens"]
    quantized = _is_q8(x)
    inputs = tuple(ops.read(0, part.name, (prod(part.shape),)) for part in x.parts)
    constants = _constants(node) | {"n": n, "rows": rows, "columns": columns, "bound": x.bounds[0]}
    launch = ops.Launch(
        _tile_kernel(w, quantized),
        (*inputs, *weight_operands(node), ops.write(0)),
        (ops.Cells(n, rows), ops.Cells(tokens, columns)),
        constants | ({"ahead": values["ahead"]} if quantized else {}),
        (tokens,) if isinstance(tokens, Extent) else (),
        rows if rows > ROWS else None,
    )
    return ops.Build((launch,))


_TUNABLES = ops.Tunables(
    {"rows": (8, 16, 32, 64, 128), "tokens": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16), "ahead": (0, 16, 32, 64, 128, 256)},
    tile_values,
    _build_tile_with,
    _refusal,
)


def _build_row(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, w = node.inputs
    grid = (ops.Cells(w.bounds[0]), ops.Cells(x.shape[0]))
    if _is_q8(x):
        codes = ops.Operand("input", 0, "codes", x.bounds, "read", i8)
        inputs: tuple[ops.Operand, ...] = (codes, ops.read(0, "scales"), ops.read(0, "sums"))
        kernel = kernels.q8_row
    else:
        inputs, kernel = (ops.read(0),), kernels.f32_row
    return ops.Build((ops.Launch(kernel, (*inputs, *weight_operands(node), ops.write(0)), grid, _constants(node)),))


def _packed_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return None if node.inputs[1].layout is INTERLEAVED else "weights are not packed (graph/rewrite.py packs them)"


def _row_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.5 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[1].bounds))


def _tile_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    # Zen 4, one core: 0.028 ns per weight for one token (memory), 0.0072 ns per weight and token for many (vpdpbusd)
    return max(0.028, 0.0072 * node.inputs[0].bounds[0]) * float(np.prod(node.inputs[1].bounds))


def _build_gemv(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return _build_gemv_with(node, target, gemv.values_of(node, target))


def _build_gemv_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    whole_numbers = by_whole_numbers(packed_format(node.inputs[1]))
    return ops.Build((gemv.launch(node, weight_operands(node), values, whole_numbers),))


def _gemv_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    x, w = node.inputs
    if w.dtype.name not in gemv.FASTEST:
        return f"takes weights of {', '.join(gemv.FASTEST)}: a tile reads others as fast"
    if target.lanes != ROWS:  # not measured elsewhere; 16 registers would be too few
        return f"takes CPUs with vectors of {ROWS} numbers"
    return _packed_only(node, target) if _is_q8(x) and x.bounds[0] == 1 else "takes one quantized token"


def _gemv_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    # Zen 4, one core: 0.024 ns per weight, a tile 0.028. But it waits for each stream's first lines, and two cores that share
    # scarce bandwidth read 22 to 25 GB/s with one stream each, 15 to 20 with several.
    gains = plan_workers() == 1 and prod(node.inputs[1].bounds) >= gemv.LEAST_WEIGHTS
    return (0.85 if gains else 1.2) * _tile_cost(node, target)


_GEMV_TUNABLES = ops.Tunables(
    {"streams": gemv.STREAMS, "step": gemv.STEPS},
    gemv.values_of,
    _build_gemv_with,
    gemv.refusal,
)


def _build_matrix_unit(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return ops.Build((matrix_unit.launch(node, target, weight_operands(node)),))


def _matrix_unit_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    if not _is_q8(node.inputs[0]):
        return "takes quantized activations"
    return matrix_unit.refusal(node.inputs[0], target) or _packed_only(node, target)


def _matrix_unit_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    # an estimate: half of the tile's instructions per weight and token
    return 0.0036 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[1].bounds))


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
    yield ops.ErrorSample((x, TensorSpec((16, 64), BLOCK_FORMATS["IQ1_S"])), {}, "no kernel for weights of IQ1_S")
    yield ops.ErrorSample((TensorSpec((2, 64), f32, q8.LAYOUTS[16, 8]), w), {}, "sums of 32 by -8")


def _quantized_input(use: Use, uses: Uses) -> Match | None:
    """Makes quantized_matmul(x, w) of plain x read quantize_activations(x), with one of these per x, kind of sums and device."""
    x, w = use.inputs
    if not x.spec.is_plain:
        return None
    attrs = dict(zip(("group", "zero"), packed_format(w.spec).sums, strict=True))

    def build(new: Builder) -> Mapping[Any, Any]:
        (quantized,) = new.once(q8.OP, (x,), attrs, f"{x.name}.q8")
        return dict(zip(use.outputs, new.apply(use.op, (quantized, w), use.attrs, use.name), strict=True))

    return Match(build)


OP = ops.Op(
    name="quantized_matmul",
    formula="y[t, n] = sum_k x[t, k] dequantize(w)[n, k]",
    parameters=Parameters("x w"),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("tile", ops.VECTORS, _build_tile, _packed_only, _tile_cost, _TUNABLES),
        ops.KernelVariant("gemv", frozenset({"simd"}), _build_gemv, _gemv_only, _gemv_cost, _GEMV_TUNABLES),
        ops.KernelVariant("row", ops.EVERYWHERE, _build_row, _packed_only, _row_cost),
        ops.KernelVariant("matrix_unit", frozenset({"simd"}), _build_matrix_unit, _matrix_unit_only, _matrix_unit_cost),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[1].bounds)),
    decompose=_decompose,
    rules=(Rule(Stage.QUANTIZE, ("quantized_matmul",), _quantized_input),),
)
