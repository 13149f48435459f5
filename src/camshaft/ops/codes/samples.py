"""Samples of the ops on codes: every kind of code, with sizes on both sides of a vector's width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, u8, u32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.codes.code import CODES, Code, packed
from camshaft.ops.spec import TensorSpec

# (bits, group, n, k, dtype of scales): sizes around 16 lanes of units
_AFFINE = (
    (4, 64, 7, 192, f32),
    (2, 32, 33, 64, f16),
    (3, 64, 5, 640, bf16),
    (5, 32, 2, 96, f32),
    (6, 128, 4, 384, f16),
    (8, 32, 9, 160, f32),
    (4, 24, 3, 72, f32),
)
# (attributes, n, k, dtype of scales, words of codes, a global scale): FP8 per column, per tensor and per block, NVFP4, MXFP4, FP6
_MINIFLOAT: tuple[tuple[dict[str, Any], int, int, DType, DType, bool], ...] = (
    ({"code": "e4m3"}, 5, 68, f32, u8, False),
    ({"code": "e4m3", "group_size": 128, "group_rows": 128}, 131, 136, f32, u8, False),
    ({"code": "e2m1", "group_size": 16, "scales_as": "e4m3"}, 7, 160, u8, u8, True),
    ({"code": "e5m2", "group_rows": 3}, 3, 36, bf16, u8, False),
    ({"code": "e2m1", "group_size": 32, "scales_as": "e8m0"}, 3, 64, u8, u32, False),
    ({"code": "e3m2", "group_size": 32, "scales_as": "e8m0"}, 2, 96, u8, u32, False),
    ({"code": "e2m3"}, 2, 48, f16, u32, True),
)
ROWS = (1, 3, 11)


def dtype_of(array: ops.Array) -> DType:
    """The dtype of an array's elements."""
    return as_dtype(array.dtype)


def random_codes(rng: np.random.Generator, shape: tuple[int, ...], form: Code, dtype: DType = u32) -> ops.Array:
    """Codes of finite numbers, packed."""
    codes = rng.integers(0, form.mask + 1, shape, dtype=np.uint8)
    if form.most:
        codes = np.where((codes & form.magnitude) > form.most, 1, codes).astype(np.uint8)
    return packed(codes, form, dtype.numpy)


def of_codes() -> Iterable[ops.Sample]:
    """unpack_codes: all codes of every kind, NaN and infinity among them."""
    for name, form in CODES.items():
        columns = form.unit * 3
        codes = np.arange(columns * 16, dtype=np.int64).reshape(16, columns) % (form.mask + 1)
        dtype = u8 if form.bits in (4, 8) else u32
        yield ops.Sample(name, (packed(codes.astype(np.uint8), form, dtype.numpy),), {"code": name})
    yield ops.Sample("u4 to f16", (np.arange(9, dtype=np.uint8).reshape(3, 3),), {"to": "f16"})


def affine(
    rng: np.random.Generator, bits: int, group: int, n: int, k: int, dtype: DType = f32
) -> tuple[ops.Array, ...]:
    """Random codes, scales and biases, as a quantizer makes them."""
    scales = rng.uniform(0.5, 1, (n, k // group)) * 2.0**-bits
    biases = -scales * rng.uniform(0.3, 0.7, scales.shape) * 2.0**bits
    codes = random_codes(rng, (n, k), CODES[f"u{bits}"])
    return codes, scales.astype(dtype.numpy), biases.astype(dtype.numpy)


def minifloat(
    rng: np.random.Generator, attrs: dict[str, Any], n: int, k: int, scales: DType, words: DType, factor: bool
) -> tuple[ops.Array, ...]:
    """Random codes and scales, and a global scale where `factor`."""
    shape = -(-n // attrs.get("group_rows", 1)), -(-k // attrs.get("group_size", k))
    drawn = rng.uniform(0.5, 1, shape) * 2.0 ** rng.integers(-2, 3, shape)
    if coded := attrs.get("scales_as"):
        drawn = drawn.astype(CODES[coded].numpy).view(np.uint8)
    codes = random_codes(rng, (n, k), CODES[attrs["code"]], words)
    return codes, drawn.astype(scales.numpy), *((np.array([0.3], np.float32),) if factor else ())


def _cases(kind: str, rng: np.random.Generator) -> Iterable[tuple[str, tuple[ops.Array, ...], dict[str, Any]]]:
    if kind == "affine":
        for bits, group, n, k, dtype in _AFFINE:
            attrs = {"bits": bits, "group_size": group}
            yield f"u{bits} {n}x{k} by {group}", affine(rng, bits, group, n, k, dtype), attrs
        return
    for attrs, n, k, scales, words, factor in _MINIFLOAT:
        yield f"{attrs['code']} {n}x{k}", minifloat(rng, attrs, n, k, scales, words, factor), attrs


def of_weights(kind: str) -> Iterable[ops.Sample]:
    """Weights [n, k] of each form of 'affine' or 'minifloat'."""
    rng = np.random.default_rng(31)
    for i, (name, arrays, attrs) in enumerate(_cases(kind, rng)):
        yield ops.Sample(name, arrays, attrs | ({"to": "bf16"} if i == 1 else {}))


def of_products(kind: str) -> Iterable[ops.Sample]:
    """x [T, k] and weights of each form: one row, a few, more than a tile, and a part of them."""
    rng = np.random.default_rng(32)
    for i, (name, arrays, attrs) in enumerate(_cases(kind, rng)):
        k = arrays[0].shape[1] * arrays[0].itemsize * 8 // CODES[attrs.get("code", f"u{attrs.get('bits')}")].bits
        rows = ROWS[i % 3]
        x = rng.normal(size=(rows, k)).astype((f32, f16, bf16)[i // 2 % 3].numpy)
        full = ops.Sample(f"{rows} rows, {name}", (x, *arrays), attrs)
        yield partly_active(full, 4, fixed=range(1, len(full.inputs))) if rows == max(ROWS) else full


def affine_errors(x: tuple[TensorSpec, ...]) -> Iterable[ops.ErrorSample]:
    """Weights that the affine ops refuse, after the other inputs `x`, whose rows have 64 columns."""
    codes, scales = TensorSpec((16, 8), u32), TensorSpec((16, 1), f32)
    yield ops.ErrorSample((*x, codes, scales), {}, "codes, scales and biases")
    yield ops.ErrorSample((*x, codes, scales, scales), {"bits": 7}, "wanted bits of 2, 3, 4, 5, 6 or 8")
    yield ops.ErrorSample((*x, codes, scales, scales), {"group_size": 48}, "group_size that divides 64 columns")
    yield ops.ErrorSample((*x, codes, scales, scales), {"group_size": 32}, r"wanted scales \[16, 2\]")
    yield ops.ErrorSample((*x, codes, scales, TensorSpec((16, 1), u8)), {}, r"wanted biases \[16, 1\] of f32")


def minifloat_errors(x: tuple[TensorSpec, ...]) -> Iterable[ops.ErrorSample]:
    """As `affine_errors`, of the minifloat ops."""
    codes, scales = TensorSpec((16, 64), u8), TensorSpec((16, 1), f32)
    yield ops.ErrorSample((*x, codes), {}, "codes, scales and perhaps")
    yield ops.ErrorSample((*x, codes, scales), {"code": "u8"}, "wanted a code of e2m1")
    yield ops.ErrorSample((*x, codes, scales), {"scales_as": "e5m2"}, "wanted scales_as e4m3, e8m0 or None")
    yield ops.ErrorSample((*x, codes, scales), {"group_size": 32}, r"wanted scales \[16, 2\]")
    yield ops.ErrorSample((*x, codes, scales), {"group_rows": 0}, "wanted group_rows of 1 or more")
    yield ops.ErrorSample((*x, codes, scales, TensorSpec((2,), f32)), {}, r"wanted global_scale \[1\]")
