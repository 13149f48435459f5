"""Quantize floats to blocks of 256: Q2_K to Q6_K, IQ4_XS.

An encoder takes float32 [n, 256], and weights of their errors or None, and returns one record per block, [n]. It finds the best
scale of each group of 16 or 32, quantizes the scales with the block's own scale, and rounds the codes again with the quantized
scales, as ggml does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from camshaft.formats.bits import Bytes, Floats, Records, records
from camshaft.formats.quants import k_quants as k
from camshaft.formats.quants.grid_search import (
    TINY,
    divide,
    fit_affine,
    fit_signed,
    fit_signed_descent,
    fit_unsigned,
    fit_values,
    nearest_values,
)


def _columns(values: Floats, group_size: int) -> Floats:
    """[n, 256] to [group_size, n * groups]: a group is a column."""
    return np.ascontiguousarray(values.reshape(-1, group_size).T)


def _by_block(per_group: npt.NDArray[Any], n_blocks: int) -> npt.NDArray[Any]:
    return per_group.reshape(n_blocks, -1)


def _from_columns(codes: Bytes, n_blocks: int) -> Bytes:
    return np.ascontiguousarray(codes.T).reshape(n_blocks, -1)


def _half(values: Floats) -> Floats:
    """Rounds values to float16, as the decoder sees them."""
    return values.astype(np.float16).astype(np.float32)


def _at_peak(scales: Floats) -> Floats:
    """Returns each block's scale of largest magnitude, the first of equals: [n, groups] to [n]."""
    peaks: Floats = np.take_along_axis(scales, np.abs(scales).argmax(axis=-1)[:, None], axis=-1)[:, 0]
    return peaks


def _rounded(columns: Floats, step: Floats, shift: Floats, low: int, high: int, codes: Bytes) -> Bytes:
    """Returns codes rint((x + shift) / step) in low .. high, minus low; `codes` where step is 0. One step per column."""
    flat, shift = step.reshape(-1), shift.reshape(-1)
    rounded = np.rint(divide(columns + shift, np.broadcast_to(flat, columns.shape))).clip(low, high) - low
    return np.where(flat == 0, codes, rounded).astype(np.uint8)


def _packed_bits(codes: Bytes, n_bits: int, run: int) -> Bytes:
    """[n, 256] codes to bytes: each run of `run` bytes has 8 / n_bits runs of codes, the first in the lowest bits."""
    parts = codes.reshape(len(codes), -1, 8 // n_bits, run) & np.uint8((1 << n_bits) - 1)
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(parts << shifts, axis=2).reshape(len(codes), -1)
    return packed


def _affine(
    values: Floats,
    group_size: int,
    scale_most: int,
    usual: Floats,
    most: int,
    first: float,
    n_steps: int,
    *,
    absolute: bool,
    weights: Floats | None,
) -> tuple[Floats, Floats, Bytes, Bytes, Bytes]:
    """Returns d and dmin [n], the groups' scales and minima [n, groups], and codes [n, 256].

    `usual` weights [group_size, n * groups] hold without `weights` [n, 256], with which the search is finer, and scales and
    minima are fitted too."""
    columns, n = _columns(values, group_size), len(values)
    if weights is None:
        scale, minimum, codes = fit_affine(columns, usual, most, first, n_steps, absolute=absolute)
    else:
        scale, minimum, codes = fit_affine(columns, _columns(weights, group_size), most, -0.9, 36, step=0.05)
    scales, minima = _by_block(scale, n), _by_block(minimum, n)

    def few_bits(wanted: Floats) -> tuple[Floats, Bytes]:
        if weights is not None:
            d, made = fit_unsigned(np.ascontiguousarray(wanted.T), _group_sums(weights, group_size), scale_most)
            return d, made.T
        peak = np.maximum(wanted.max(axis=-1), np.float32(0))
        inverse = divide(np.full_like(peak, scale_most), peak)
        return peak / np.float32(scale_most), np.rint(inverse[:, None] * wanted).clip(0, scale_most).astype(np.uint8)

    (d, scale_codes), (dmin, minimum_codes) = few_bits(scales), few_bits(minima)
    step = _half(d)[:, None] * scale_codes
    shift = _half(dmin)[:, None] * minimum_codes
    codes = _rounded(columns, step, shift, 0, most, codes)
    return d, dmin, scale_codes, minimum_codes, _from_columns(codes, n)


def _group_sums(weights: Floats, group_size: int) -> Floats:
    """The weights of groups: [n, 256] to [groups, n]."""
    return np.ascontiguousarray(weights.reshape(len(weights), -1, group_size).sum(axis=-1).T)


def _magnitude_weights(columns: Floats) -> Floats:
    """Weights of Q4_K and Q5_K: the group's root mean square + |x|."""
    weights: Floats = np.sqrt((columns * columns).sum(axis=0) / np.float32(len(columns))) + np.abs(columns)
    return weights


def encode_q2_k(values: Floats, weights: Floats | None = None) -> Records:
    """16 groups of 16: codes of 2 bits, scales and minima of 4; errors are magnitudes weighted by |x|."""
    usual = np.abs(_columns(values, 16))
    d, dmin, scales, minima, codes = _affine(values, 16, 15, usual, 3, -0.5, 15, absolute=True, weights=weights)
    return records(k.Q2_K, d=d, dmin=dmin, scales=scales | (minima << np.uint8(4)), qs=_packed_bits(codes, 2, 32))


def encode_q3_k(values: Floats, weights: Floats | None = None) -> Records:
    """16 groups of 16: codes of 3 bits, signed scales of 6."""
    columns, n = _columns(values, 16), len(values)
    if weights is None:
        scale, codes = fit_signed_descent(columns, 4)
        scales = _by_block(scale, n)
        inverse = divide(np.full(n, -32, np.float32), _at_peak(scales))
        scale_codes = (np.rint(inverse[:, None] * scales).clip(-32, 31) + 32).astype(np.uint8)
        scale_codes[inverse == 0] = 0
        d = divide(np.ones(n, np.float32), inverse)
    else:
        scale, codes = fit_signed(columns, 4, _columns(weights, 16))
        scales = np.ascontiguousarray(_by_block(scale, n).T)
        d, found = fit_signed(scales, 32, _group_sums(weights, 16))
        scale_codes = np.ascontiguousarray(found.T)
    step = _half(d)[:, None] * (scale_codes.astype(np.float32) - 32)
    final = _from_columns(_rounded(columns, step, np.zeros_like(step), -4, 3, codes), n)
    high = np.packbits(final.reshape(n, 8, 32) >> np.uint8(2), axis=1, bitorder="little").reshape(n, 32)
    return records(k.Q3_K, d=d, hmask=high, qs=_packed_bits(final, 2, 32), scales=_q3_scale_bytes(scale_codes))


def _q3_scale_bytes(scales: Bytes) -> Bytes:
    """[n, 16] of six bits to 12 bytes; k_quants.q3_scales reads them."""
    low = (scales[:, :8] & np.uint8(15)) | (scales[:, 8:] << np.uint8(4))
    return np.hstack([low, _packed_bits(scales >> np.uint8(4), 2, 4)])


def _k_scale_bytes(scales: Bytes, minima: Bytes) -> Bytes:
    """[n, 8] of six bits each to 12 bytes; k_quants.k_scales reads them."""
    top_scales, top_minima = (
        (scales[:, 4:] >> np.uint8(4)) << np.uint8(6),
        (minima[:, 4:] >> np.uint8(4)) << np.uint8(6),
    )
    late = (scales[:, 4:] & np.uint8(15)) | (minima[:, 4:] << np.uint8(4))
    return np.hstack([scales[:, :4] | top_scales, minima[:, :4] | top_minima, late])


def encode_q4_k(values: Floats, weights: Floats | None = None) -> Records:
    """8 groups of 32: codes of 4 bits, scales and minima of 6."""
    d, dmin, scales, minima, codes = _affine(
        values, 32, 63, _magnitude_weights(_columns(values, 32)), 15, -1.0, 20, absolute=False, weights=weights
    )
    return records(k.Q4_K, d=d, dmin=dmin, scales=_k_scale_bytes(scales, minima), qs=_packed_bits(codes, 4, 32))


def encode_q5_k(values: Floats, weights: Floats | None = None) -> Records:
    """8 groups of 32: codes of 5 bits, scales and minima of 6."""
    d, dmin, scales, minima, codes = _affine(
        values, 32, 63, _magnitude_weights(_columns(values, 32)), 31, -0.5, 15, absolute=False, weights=weights
    )
    high = np.packbits(codes.reshape(-1, 8, 32) >> np.uint8(4), axis=1, bitorder="little").reshape(-1, 32)
    return records(
        k.Q5_K, d=d, dmin=dmin, scales=_k_scale_bytes(scales, minima), qh=high, qs=_packed_bits(codes, 4, 32)
    )


def encode_q6_k(values: Floats, weights: Floats | None = None) -> Records:
    """16 groups of 16: codes of 6 bits, signed scales of 8."""
    columns, n = _columns(values, 16), len(values)
    scale, codes = fit_signed(columns, 32, None if weights is None else _columns(weights, 16))
    scales = _by_block(scale, n)
    peak = _at_peak(scales)
    is_zero = np.abs(peak) < TINY
    inverse = divide(np.full(n, -128, np.float32), np.where(is_zero, np.float32(0), peak))
    scale_codes = np.minimum(np.rint(inverse[:, None] * scales), 127).astype(np.int8)
    d = divide(np.ones(n, np.float32), inverse)
    step = _half(d)[:, None] * scale_codes
    final = _from_columns(_rounded(columns, step, np.zeros_like(step), -32, 31, codes), n)
    final[is_zero] = 0
    halves = final.reshape(n, 2, 4, 32)
    low = (halves[:, :, :2] & np.uint8(15)) | (halves[:, :, 2:] << np.uint8(4))
    high = _packed_bits(final >> np.uint8(4), 2, 32)
    return records(k.Q6_K, d=d, ql=low.reshape(n, 128), qh=high, scales=scale_codes)


def encode_iq4_xs(values: Floats, weights: Floats | None = None) -> Records:
    """8 groups of 32: the nearest of 16 values, signed scales of 6 bits."""
    columns, n = _columns(values, 32), len(values)
    scales = _by_block(fit_values(columns, None if weights is None else _columns(weights, 32)), n)
    d = -_at_peak(scales) / np.float32(32)
    scale_codes = np.rint(divide(np.ones(n, np.float32), d)[:, None] * scales).clip(-32, 31)
    step = (d[:, None] * scale_codes).astype(np.float32)
    codes = _from_columns(nearest_values(columns * divide(np.ones_like(step), step).reshape(-1)), n)
    six = (scale_codes + 32).astype(np.uint8)
    low = (six[:, 0::2] & np.uint8(15)) | (six[:, 1::2] << np.uint8(4))
    high = np.bitwise_or.reduce((six >> np.uint8(4)).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16), axis=-1)
    return records(k.IQ4_XS, d=d, scales_h=high, scales_l=low, qs=_packed_bits(codes, 4, 16))
