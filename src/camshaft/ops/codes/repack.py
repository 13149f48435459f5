"""Repacks integer weights as safetensors files have them (AWQ, GPTQ, compressed-tensors) for affine_matmul and affine_dequantize.

All three store w = (code - zero) scale by groups of k, which is code scale + bias with bias = -zero scale: exact in f32 for
scales of f16 and bf16. Float weights need no repacking: F8_E4M3 and F8_E5M2 as u8 are minifloat's codes, weight_packed of
nvfp4-pack-quantized and mxfp4-pack-quantized is e2m1 with scales_as 'e4m3' (global_scale: 1 / weight_global_scale) or 'e8m0'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import ShapeError
from camshaft.ops.codes.code import CODES, packed, unpacked
from camshaft.ops.op import Array

# Column of each nibble of a word of AWQ, lowest first.
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])


@dataclass(frozen=True)
class AffineWeights:
    """Weights [n, k] of affine_matmul: codes uint32 [n, k bits / 32], scales and biases (f32) [n, k / group_size].

    `order`: None, or int32 [k] where the file has its columns in another order: multiply x[:, order].
    """

    codes: Array
    scales: Array
    biases: Array
    bits: int
    group_size: int
    order: Array | None = None

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of affine_matmul and affine_dequantize."""
        return {"bits": self.bits, "group_size": self.group_size}

    def numbers(self) -> Array:
        """The weights as float32 [n, k], in the file's order: exact for scales of f16 and bf16."""
        codes = unpacked(self.codes.view(np.uint32), CODES[f"u{self.bits}"]).astype(np.float32)
        groups = codes.reshape(*self.scales.shape, self.group_size)
        made = groups * self.scales.astype(np.float32)[..., None] + self.biases.astype(np.float32)[..., None]
        made = made.reshape(codes.shape)
        if self.order is None:
            return made
        found = np.empty_like(made)
        found[:, self.order] = made
        return found


def from_awq(qweight: Array, qzeros: Array, scales: Array) -> AffineWeights:
    """Weights of 4 bits as AutoAWQ stores them: qweight int32 [k, n / 8], qzeros int32 [k / group, n / 8], scales [k / group, n].

    ShapeError for arrays that do not fit each other.
    """
    _expect_words("awq", qweight=qweight, qzeros=qzeros)
    _expect_matrix("awq", "scales", scales)
    _expect("awq", qweight, (len(qweight), scales.shape[-1] // 8), "qweight")
    _expect("awq", qzeros, (len(scales), scales.shape[-1] // 8), "qzeros")
    codes, zeros = (_awq_columns(a) for a in (qweight, qzeros))
    return _affine("awq", codes.T, zeros.T, scales.T, 4)


def _awq_columns(words: Array) -> Array:
    found = unpacked(words.view(np.uint32), CODES["u4"]).reshape(len(words), -1, 8)
    made = np.empty_like(found)
    made[..., _AWQ_ORDER] = found
    return made.reshape(len(words), -1)


def from_gptq(
    qweight: Array, qzeros: Array, scales: Array, g_idx: Array | None = None, *, bits: int = 4, version: int = 1
) -> AffineWeights:
    """Weights as GPTQ stores them: qweight int32 [k bits / 32, n], qzeros int32 [groups, n bits / 32], scales [groups, n], g_idx
    int32 [k], the group of each k. Version 1 of the format stores zeros less one, version 2 does not.

    ShapeError for other bits than 2, 3, 4 and 8, groups unlike in size, and arrays that do not fit each other.
    """
    if bits not in (2, 3, 4, 8) or version not in (1, 2):
        raise ShapeError(f"gptq: got bits {bits}, version {version}; wanted bits 2, 3, 4 or 8, version 1 or 2")
    _expect_words("gptq", qweight=qweight, qzeros=qzeros)
    _expect_matrix("gptq", "scales", scales)
    code, (groups, n) = CODES[f"u{bits}"], scales.shape
    _expect("gptq", qweight, (len(qweight), n), "qweight")
    _expect("gptq", qzeros, (groups, n * bits // 32), "qzeros")
    codes = unpacked(np.ascontiguousarray(qweight.T).view(np.uint32), code)
    zeros = unpacked(qzeros.view(np.uint32), code).T.astype(np.int32) + (version == 1)
    order = _order(g_idx, codes.shape[1], groups)
    made = _affine("gptq", codes if order is None else codes[:, order], zeros, scales.T, bits)
    return made if order is None else AffineWeights(made.codes, made.scales, made.biases, bits, made.group_size, order)


def _order(g_idx: Array | None, k: int, groups: int) -> Array | None:
    """The order that puts columns of one group side by side; None where they are."""
    if g_idx is None:
        return None
    if g_idx.shape != (k,) or g_idx.dtype.kind not in "iu":
        raise ShapeError(f"gptq: got g_idx {g_idx.dtype} {list(g_idx.shape)}; wanted integers [{k}]")
    if not np.array_equal(np.sort(g_idx), np.arange(groups).repeat(k // groups)):
        raise ShapeError(f"gptq: got g_idx of groups unlike in size; wanted {groups} groups of {k // groups}")
    return None if bool((g_idx[:-1] <= g_idx[1:]).all()) else np.argsort(g_idx, kind="stable").astype(np.int32)


def from_compressed_tensors(
    weight: Array, weight_scale: Array, weight_zero_point: Array | None = None, *, bits: int = 4
) -> AffineWeights:
    """Weights of compressed-tensors: weight_packed int32 [n, k bits / 32] (pack-quantized, with zero points packed along n, int32
    [n bits / 32, groups]) or weight int8 [n, k] (int-quantized, with zero points int8 [n, groups]); weight_scale [n, groups].

    ShapeError for packed bits other than 2, 4 and 8, and arrays that do not fit each other.
    """
    _expect_matrix("compressed-tensors", "weight_scale", weight_scale)
    if weight.dtype != np.int8:
        words = {} if weight_zero_point is None else {"weight_zero_point": weight_zero_point}
        _expect_words("compressed-tensors", weight=weight, **words)
    bits = 8 if weight.dtype == np.int8 else bits
    if bits not in (2, 4, 8):
        raise ShapeError(f"compressed-tensors: got bits {bits}; wanted 2, 4 or 8")
    code, n, middle = CODES[f"u{bits}"], len(weight_scale), 1 << (bits - 1)
    _expect("compressed-tensors", weight, (n, weight.shape[-1]), "weight")
    if weight.dtype == np.int8:
        codes = weight.view(np.uint8) ^ np.uint8(middle)
        zeros = None if weight_zero_point is None else weight_zero_point.astype(np.int32) + middle
    else:
        codes, zeros = unpacked(np.ascontiguousarray(weight).view(np.uint32), code), None
        if weight_zero_point is not None:
            columns = np.ascontiguousarray(weight_zero_point.T).view(np.uint32)
            zeros = unpacked(columns, code)[:, :n].T.astype(np.int32)
    zeros = np.full(weight_scale.shape, middle, np.int32) if zeros is None else zeros
    return _affine("compressed-tensors", codes, zeros, weight_scale, bits)


def _affine(name: str, codes: Array, zeros: Array, scales: Array, bits: int) -> AffineWeights:
    """Codes [n, k] (uint8), zeros and scales [n, groups] as AffineWeights."""
    (n, k), groups = codes.shape, scales.shape[-1]
    _expect(name, zeros, scales.shape, "zero points")
    if scales.shape[0] != n or groups == 0 or k % groups or k % CODES[f"u{bits}"].unit:
        raise ShapeError(f"{name}: got scales {list(scales.shape)} for weights [{n}, {k}]; wanted one per group of k")
    biases = -zeros.astype(np.float32) * scales.astype(np.float32)
    words = packed(np.ascontiguousarray(codes), CODES[f"u{bits}"])
    return AffineWeights(words, np.ascontiguousarray(scales), np.ascontiguousarray(biases), bits, k // groups)


def _expect_words(name: str, **arrays: Array) -> None:
    for what, array in arrays.items():
        _expect_matrix(name, what, array)
        if array.dtype not in (np.int32, np.uint32):
            raise ShapeError(f"{name}: got {what} of {array.dtype}; wanted int32")


def _expect_matrix(name: str, what: str, array: Array) -> None:
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"{name}: got {what} {list(array.shape)}; wanted a matrix with elements")


def _expect(name: str, array: Array, shape: tuple[int, ...], what: str) -> None:
    if array.shape != shape:
        raise ShapeError(f"{name}: got {what} {list(array.shape)}; wanted {list(shape)}")
