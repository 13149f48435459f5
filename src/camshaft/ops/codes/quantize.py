"""pack_codes, affine_quantize and quantize_dequantize_affine: numbers to codes, and to codes and back.

pack_codes rounds to the nearest number of a kind of code, ties to even, and beyond the largest to that. affine_quantize chooses
scales and biases as MLX does (mlx.core.quantize): of a group's minimum and maximum, the one farther from 0 is exact, and so
is 0 where a code can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f16, f32, i32, u32
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import expect_tensor
from camshaft.ops.codes.code import CODES, FLOATS, INTEGERS, WORD, code_of, codes_of, packed, unit_words
from camshaft.ops.codes.dequantize import by_groups, of_groups, rounded_to
from camshaft.ops.codes.weights import AFFINE, SCALES, expect_group
from camshaft.ops.gradient import OF_INTEGERS, rule_in_f32
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_LEAST_SCALE = 1e-7


@kernel
def words_of_units(k: Tracer, x: Array, out: Array, *, units: int, block: int, code: str) -> None:
    # the words of each unit of codes nearest to x[r, unit ..]
    kind, row = CODES[code], k.program(0)
    first = k.program(1) * block
    for u in k.lanes(first, k.minimum(first + block, units)):
        near = [code_of(k, k.gather(x, row, u * kind.unit + j), kind) for j in range(kind.unit)]
        for i, word in enumerate(unit_words(k, near, kind)):
            k.scatter(out, word, row, u * kind.unit_words + i)


# --- pack_codes --------------------------------------------------------------------------------------------------------
def _infer_pack(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "pack_codes", specs, "one tensor x [n, k]")
    name, (x,) = attrs.get("code", "u4"), specs
    ops.expect(
        name in (*INTEGERS, *FLOATS), "pack_codes", f"code {name!r}", f"a code of {', '.join(INTEGERS + FLOATS)}"
    )
    expect_tensor("pack_codes", x, SCALES)
    kind = CODES[name]
    fits = len(x.shape) == 2 and x.bounds[1] % kind.unit == 0
    ops.expect(fits, "pack_codes", x, f"x [n, k] with k a multiple of {kind.unit} for {name}")
    return (TensorSpec((x.shape[0], x.bounds[1] * kind.bits // WORD), u32),)


def _build_pack(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, kind = node.inputs[0], CODES[node.attrs.get("code", "u4")]
    units = x.bounds[1] // kind.unit
    block = blocks.even_block(units, blocks.BLOCK // 8)
    grid = ops.Cells(x.shape[0]), ops.Cells(units, per=block)
    constants: dict[str, Constant] = {"units": units, "block": block, "code": kind.name}
    return ops.Build((ops.Launch(words_of_units, (ops.read(0), ops.write(0)), grid, constants),))


def _packed(arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    kind = CODES[attrs.get("code", "u4")]
    return (packed(codes_of(arrays[0].astype(np.float64), kind), kind),)


def _pack_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(33)
    for i, name in enumerate((*INTEGERS, *FLOATS)):
        kind = CODES[name]
        x = np.asarray(rng.normal(size=(3, kind.unit * (17 if i % 4 == 0 else 3))) * 2.0 ** rng.integers(-9, 6, (3, 1)))
        if not kind.is_float:
            x = rng.uniform(-1, kind.mask + 1, x.shape)
        x[0, :4] = np.inf, -np.inf, 2.5, -0.0
        yield ops.Sample(name, (x.astype(SCALES[i % 3].numpy),), {"code": name})
    halves = np.arange(64).reshape(1, -1) / 512  # ties of subnormal numbers
    yield ops.Sample("ties", (halves.astype(np.float32),), {"code": "e4m3"})
    yield ops.Sample("NaN", (np.full((2, 8), np.nan, np.float32),), {"code": "e4m3"})


def _pack_errors() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 40), f32)
    yield ops.ErrorSample((x, x), {}, "one tensor")
    yield ops.ErrorSample((x,), {"code": "e8m0"}, "wanted a code of u2")
    yield ops.ErrorSample((x,), {"code": "u3"}, "k a multiple of 32 for u3")
    yield ops.ErrorSample((TensorSpec((2, 40), i32),), {}, "wanted a tensor of f32")


# --- affine_quantize ---------------------------------------------------------------------------------------------------
def _infer_affine(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "affine_quantize", specs, "one tensor w [n, k]")
    (w,), bits, group = specs, attrs.get("bits", 4), attrs.get("group_size", 64)
    ops.expect(f"u{bits}" in CODES, "affine_quantize", f"bits {bits!r}", "bits of 2, 3, 4, 5, 6 or 8")
    expect_tensor("affine_quantize", w, SCALES)
    ops.expect(len(w.shape) == 2, "affine_quantize", w, "w [n, k]")
    expect_group("affine_quantize", group, w.bounds[1])
    unit = CODES[f"u{bits}"].unit
    ops.expect(group % unit == 0, "affine_quantize", f"group_size {group}", f"a multiple of {unit} for {bits} bits")
    words, groups = w.bounds[1] * bits // WORD, w.bounds[1] // group
    scales = TensorSpec((w.shape[0], groups), w.dtype)
    return TensorSpec((w.shape[0], words), u32), scales, scales


def _affine_parameters(groups: ops.Array, bits: int) -> tuple[ops.Array, ...]:
    """The scales and biases of groups [.., group] in f32, as MLX computes them."""
    low, high, one = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True), np.float32(1)
    mask = np.abs(low) > np.abs(high)
    scales = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(_LEAST_SCALE))
    scales = np.where(mask, scales, -scales)
    edge = np.where(mask, low, high)
    steps = np.rint(edge / scales)
    scales = np.where(steps == 0, scales, edge / np.where(steps == 0, one, steps))
    return scales, np.where(steps == 0, 0 * edge, edge)


def _affine_reference(arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """In f32, because codes depend on its rounding."""
    bits, group = attrs.get("bits", 4), attrs.get("group_size", 64)
    w, dtype = arrays[0].astype(np.float32), arrays[0].dtype
    n, k = w.shape
    groups = w.reshape(n, k // group, group)
    scales, biases = _affine_parameters(groups, bits)
    codes = codes_of((groups - biases) / scales, CODES[f"u{bits}"])
    return packed(codes.reshape(n, k), CODES[f"u{bits}"]), *(p[..., 0].astype(dtype) for p in (scales, biases))


def _affine_quantized(f: Any, w: Any, bits: int = 4, group_size: int = 64) -> Any:
    wide = w if w.dtype == f32 else f.cast(w, to="f32")
    groups = by_groups(wide, group_size)
    low, high = f.min(groups, axes=-1, keepdims=True), f.max(groups, axes=-1, keepdims=True)
    mask = f.less(f.abs(high), f.abs(low))
    size = f.maximum((high - low) / float(2**bits - 1), _LEAST_SCALE)
    size = f.where(mask, size, -size)
    edge = f.where(mask, low, high)
    steps = f.round(edge / size)
    is_zero = f.equal(steps, 0.0)
    scales = f.where(is_zero, size, edge / f.where(is_zero, 1.0, steps))
    biases = f.where(is_zero, 0.0, edge)
    codes = f.pack_codes(((groups - biases) / scales).reshape(wide.shape), code=f"u{bits}")
    shape = scales.shape[:2]
    return codes, *(rounded_to(f, p.reshape(shape), w.dtype.name) for p in (scales, biases))


def _affine_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(34)
    for bits, group, n, k, dtype in ((4, 64, 5, 128, f32), (3, 32, 3, 96, f16)):
        w = rng.normal(size=(n, k))
        w[0, :group] = 0.25  # a group of one number
        w[-1, :group] = abs(w[-1, :group])
        yield ops.Sample(f"u{bits} {n}x{k} by {group}", (w.astype(dtype.numpy),), {"bits": bits, "group_size": group})


def _affine_errors() -> Iterable[ops.ErrorSample]:
    w = TensorSpec((4, 96), f32)
    yield ops.ErrorSample((w, w), {}, "one tensor w")
    yield ops.ErrorSample((w,), {"bits": 7}, "wanted bits of 2, 3, 4, 5, 6 or 8")
    yield ops.ErrorSample((w,), {}, "group_size that divides 96 columns")
    yield ops.ErrorSample((w,), {"bits": 3, "group_size": 48}, "a multiple of 32 for 3 bits")


# --- quantize_dequantize_affine ----------------------------------------------------------------------------------------
def _infer_round_trip(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "quantize_dequantize_affine"
    ops.expect(len(specs) == 3, name, specs, "w [n, k], scales and biases")
    (w, *others), bits, group = specs, attrs.get("bits", 4), attrs.get("group_size", 64)
    ops.expect(isinstance(bits, int) and 1 <= bits <= 8, name, f"bits {bits!r}", "bits of 1 to 8")
    expect_tensor(name, w, SCALES)
    ops.expect(len(w.shape) == 2, name, w, "w [n, k]")
    expect_group(name, group, w.bounds[1])
    wanted = (w.shape[0], w.bounds[1] // group)
    for spec in others:
        fits = spec.is_plain and spec.dtype in SCALES and spec.shape == wanted
        ops.expect(fits, name, spec, f"scales and biases {list(wanted)} of f32, f16 or bf16")
    return (w,)


def _round_trip(f: Any, w: Any, scales: Any, biases: Any, bits: int = 4, group_size: int = 64) -> Any:
    wide = w if w.dtype == f32 else f.cast(w, to="f32")
    scale, bias = of_groups(f, scales), of_groups(f, biases)
    codes = f.clip(f.round((by_groups(wide, group_size) - bias) / scale), 0.0, float(2**bits - 1))
    return rounded_to(f, (codes * scale + bias).reshape(wide.shape), w.dtype.name)


@rule_in_f32
def _round_trip_vjp(
    f: Any, dy: Any, y: Any, w: Any, scales: Any, biases: Any, bits: int = 4, group_size: int = 64
) -> tuple[Any, Any, Any]:
    """Straight through to w where its code is not clipped; to scales and biases as if the codes were constants."""
    wide, change = by_groups(w, group_size), by_groups(dy, group_size)
    nearest = f.round((wide - of_groups(f, biases)) / of_groups(f, scales))
    codes = f.clip(nearest, 0.0, float(2**bits - 1))
    through = f.where(f.equal(nearest, codes), change, 0).reshape(w.shape)
    of_scales, of_biases = f.sum(change * codes, axes=-1), f.sum(change, axes=-1)
    return through, of_scales.reshape(scales.shape), of_biases.reshape(biases.shape)


def _round_trip_reference(arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    w, scale, bias = arrays[0].astype(np.float32), *(a.astype(np.float32)[..., None] for a in arrays[1:])
    groups = w.reshape(*scale.shape[:2], -1)
    codes = np.clip(np.rint((groups - bias) / scale), 0, 2 ** attrs.get("bits", 4) - 1).astype(np.float64)
    return ((codes * scale + bias).reshape(w.shape),)


def _round_trip_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(35)
    for bits, dtype in ((4, f32), (8, bf16)):
        w = rng.normal(size=(3, 128)).astype(dtype.numpy)
        made, biases = _affine_parameters(w.astype(np.float32).reshape(3, 2, 64), bits)
        parts = (0.8 * made[..., 0]).astype(np.float32), biases[..., 0].astype(np.float32)
        yield ops.Sample(f"u{bits} {dtype.name}", (w, *parts), {"bits": bits, "group_size": 64})


def _round_trip_errors() -> Iterable[ops.ErrorSample]:
    w, scales = TensorSpec((4, 96), f32), TensorSpec((4, 3), f32)
    yield ops.ErrorSample((w, scales), {}, "wanted w")
    yield ops.ErrorSample((w, scales, scales), {"bits": 9, "group_size": 32}, "wanted bits of 1 to 8")
    yield ops.ErrorSample((w, scales, scales), {"group_size": 48}, r"scales and biases \[4, 2\]")


_TOLERANCE = {"f32": 1e-12, "f16": 1e-7, "bf16": 1e-5}
OPS = {
    row.name: row
    for row in (
        ops.Op(
            name="pack_codes",
            vjp=OF_INTEGERS,
            formula="codes[r, c] = the code of the number nearest to x[r, c]",
            parameters=Parameters("x", (Attribute("code", "str", "u4"),)),
            infer=_infer_pack,
            reference=_packed,
            variants=(ops.KernelVariant("units", ops.EVERYWHERE, _build_pack),),
            samples=_pack_samples,
            error_samples=_pack_errors,
            tolerance={},
        ),
        ops.Op(
            name="affine_quantize",
            formula="codes, scales, biases of w[r, c] = code[r, c] scale[r, g] + bias[r, g], g = c // group_size",
            parameters=Parameters("w", AFFINE, results=3),
            infer=_infer_affine,
            reference=_affine_reference,
            decompose=_affine_quantized,
            samples=_affine_samples,
            error_samples=_affine_errors,
            tolerance=_TOLERANCE,
        ),
        ops.Op(
            name="quantize_dequantize_affine",
            formula="y = clip(round((w - bias) / scale), 0, 2^bits - 1) scale + bias, by groups of columns",
            parameters=Parameters("w scales biases", AFFINE),
            infer=_infer_round_trip,
            reference=_round_trip_reference,
            decompose=_round_trip,
            vjp=_round_trip_vjp,
            samples=_round_trip_samples,
            error_samples=_round_trip_errors,
            tolerance=_TOLERANCE,
        ),
    )
}
