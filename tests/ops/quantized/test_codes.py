"""Weights of codes with scales, against MLX (frozen), ml_dtypes, torch, and what AWQ, GPTQ and compressed-tensors store."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import ShapeError
from camshaft.ops.codes.code import CODES, FLOATS, codes_of, numbers, packed, unpacked
from camshaft.ops.codes.repack import from_awq, from_compressed_tensors, from_gptq
from tests.support.fixtures import DATA
from tests.support.quick import quick_of

MLX = np.load(DATA / "mlx_codes.npz")
AFFINE = {"u2": 32, "u3": 32, "u4": 64, "u5": 64, "u6": 32, "u8": 128}
FLOAT = {
    "nvfp4": {"code": "e2m1", "group_size": 16, "scales_as": "e4m3"},
    "mxfp4": {"code": "e2m1", "group_size": 32, "scales_as": "e8m0"},
    "mxfp8": {"code": "e4m3", "group_size": 32, "scales_as": "e8m0"},
}


def close(a, b, error: float = 1e-6) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=error * np.abs(b).max())


@pytest.mark.parametrize("name", quick_of(AFFINE, [*AFFINE][::2]))
def test_affine_weights_are_mlx_s(name) -> None:
    codes, scales, biases, values = (MLX[f"{name}_{what}"] for what in ("codes", "scales", "biases", "numbers"))
    attrs = {"bits": int(name[1:]), "group_size": AFFINE[name]}
    close(cs.affine_dequantize(codes, scales, biases, **attrs), values)
    close(cs.affine_matmul(MLX["x"], codes, scales, biases, **attrs), MLX[f"{name}_y"], 1e-5)
    wanted = cs.ops.get("affine_quantize").reference((MLX["w"],), attrs)
    np.testing.assert_array_equal(wanted[0], codes)
    close(wanted[1], scales)
    close(wanted[2], biases)


@pytest.mark.full
def test_affine_quantize_gives_mlx_s_codes() -> None:
    codes, scales, biases = cs.affine_quantize(MLX["w"], bits=5)
    np.testing.assert_array_equal(codes, MLX["u5_codes"])
    close(scales, MLX["u5_scales"])
    close(biases, MLX["u5_biases"])


@pytest.mark.parametrize("name", FLOAT)
def test_float_weights_are_mlx_s(name) -> None:
    codes, scales = (MLX[f"{name}_{what}"] for what in ("codes", "scales"))
    close(cs.minifloat_dequantize(codes, scales, **FLOAT[name]), MLX[f"{name}_numbers"])
    close(cs.minifloat_matmul(MLX["x"], codes, scales, **FLOAT[name]), MLX[f"{name}_y"], 1e-5)


@pytest.mark.parametrize("name", quick_of(FLOATS, FLOATS[:1]))
def test_every_16_bit_float_gets_the_code_that_ml_dtypes_gives(name) -> None:
    """But where it is beyond the greatest number."""
    form = CODES[name]
    x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    greatest = numbers(np.array([form.most], np.uint8), form)[0]
    x = x[np.abs(x) <= greatest]
    x = x[: len(x) // form.unit * form.unit].reshape(1, -1)
    codes = unpacked(cs.pack_codes(x, code=name), form)
    np.testing.assert_array_equal(codes, x.astype(form.numpy).view(np.uint8))
    large = np.array([[1.5, -2, 9e9, -np.inf] * 8]).astype(np.float32) * np.float32(greatest)
    limited = numbers(unpacked(cs.pack_codes(large, code=name), form), form)
    np.testing.assert_array_equal(limited, np.sign(large) * greatest)


@pytest.mark.parametrize("name", CODES)
def test_unpacking_undoes_packing(name) -> None:
    form = CODES[name]
    codes = np.random.default_rng(1).integers(0, form.mask + 1, (3, 2 * form.unit), dtype=np.uint8)
    words = packed(codes, form)
    np.testing.assert_array_equal(unpacked(words, form), codes)
    stream = sum(int(code) << (i * form.bits) for i, code in enumerate(codes[0]))
    assert words[0].tobytes() == stream.to_bytes(words[0].nbytes, "little")


def test_each_slot_is_multiplied_by_its_expert() -> None:
    rng = np.random.default_rng(5)
    codes, scales, biases = (np.stack([MLX[f"u4_{what}"]] * 3) for what in ("codes", "scales", "biases"))
    scales *= np.array([1, 2, 3], np.float32)[:, None, None]
    experts, x = np.array([[2, 0], [1, 3]], np.int32), rng.normal(size=(2, 2, 128)).astype(np.float32)
    found = cs.affine_matmul_grouped(x, codes, scales, biases, experts)
    for (t, s), expert in np.ndenumerate(experts):
        wanted = np.zeros(2)
        if expert < 3:
            wanted = x[t, s] @ cs.affine_dequantize(codes[expert], scales[expert], biases[expert]).T
        np.testing.assert_allclose(found[t, s], wanted, atol=1e-4)


# --- AWQ, GPTQ, compressed-tensors -------------------------------------------------------------------------------------
N, K, GROUP = 16, 64, 32
RNG = np.random.default_rng(7)
SCALES = RNG.uniform(0.01, 0.02, (N, K // GROUP)).astype(np.float16)


def drawn(bits: int):
    codes = RNG.integers(0, 1 << bits, (N, K))
    zeros = RNG.integers(0, (1 << bits) - 1, (N, K // GROUP))
    wanted = (codes - np.repeat(zeros, GROUP, 1)) * np.repeat(SCALES.astype(np.float64), GROUP, 1)
    return codes, zeros, wanted


def in_words(columns, bits: int):
    """int32 words, each with 32 / bits of the last axis, lowest first."""
    per = 32 // bits
    parts = columns.reshape(*columns.shape[:-1], -1, per).astype(np.uint64)
    return (parts << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32).view(np.int32)


def values_of(weights):
    return cs.affine_dequantize(weights.codes, weights.scales, weights.biases, **weights.attrs)


def test_awq() -> None:
    codes, zeros, wanted = drawn(4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ's order_map
    qweight, qzeros = (
        in_words(a.T.reshape(a.shape[1], -1, 8)[..., order].reshape(a.shape[1], -1), 4) for a in (codes, zeros)
    )
    made = from_awq(qweight, qzeros, SCALES.T)
    close(values_of(made), wanted)
    with pytest.raises(ShapeError, match=r"awq: got qzeros \[1, 2\]"):
        from_awq(qweight, qzeros[:1], SCALES.T)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq(bits) -> None:
    codes, zeros, wanted = drawn(bits)
    qweight, qzeros = in_words(codes, bits).T, in_words(zeros.T, bits)
    close(values_of(from_gptq(qweight, qzeros, SCALES.T, bits=bits, version=2)), wanted)
    less = values_of(from_gptq(qweight, qzeros, SCALES.T, bits=bits))
    close(less, wanted - np.repeat(SCALES.astype(np.float64), GROUP, 1))


def test_gptq_of_3_bits() -> None:
    codes, zeros = RNG.integers(0, 8, (32, K)), RNG.integers(0, 7, (32, 2))
    scales = RNG.uniform(0.01, 0.02, (32, 2)).astype(np.float16)

    def streams(rows) -> np.ndarray:
        whole = [sum(int(code) << (3 * i) for i, code in enumerate(row)) for row in rows]
        words = [[(s >> (32 * i)) & 0xFFFFFFFF for i in range(len(rows[0]) * 3 // 32)] for s in whole]
        return np.array(words, np.uint32).view(np.int32)

    made = from_gptq(streams(codes).T, streams(zeros.T), scales.T, bits=3, version=2)
    wanted = (codes - np.repeat(zeros, GROUP, 1)) * np.repeat(scales.astype(np.float64), GROUP, 1)
    close(values_of(made), wanted)


def test_columns_of_groups_in_another_order_are_put_side_by_side() -> None:
    codes, zeros, _ = drawn(4)
    g_idx = np.tile([1, 0], K // 2).astype(np.int32)
    made = from_gptq(in_words(codes, 4).T, in_words(zeros.T, 4), SCALES.T, g_idx, version=2)
    x = RNG.normal(size=(2, K)).astype(np.float32)
    wanted = x @ ((codes - zeros[:, g_idx]) * SCALES.astype(np.float64)[:, g_idx]).T
    found = cs.affine_matmul(x[:, made.order], made.codes, made.scales, made.biases, **made.attrs)
    close(found, wanted, 1e-5)


@pytest.mark.parametrize(
    "g_idx", [[1] * 3 + [0] * (K - 3), [0] * 3 + [1] * (K - 3), [-1, 0] * (K // 2), [1, 2] * (K // 2)]
)
def test_groups_of_other_columns_than_the_scales_are_refused(g_idx) -> None:
    codes, zeros, _ = drawn(4)
    with pytest.raises(ShapeError, match="unlike in size; wanted 2 groups of"):
        from_gptq(in_words(codes, 4).T, in_words(zeros.T, 4), SCALES.T, np.array(g_idx))


def test_arrays_that_are_no_words_are_refused() -> None:
    codes, zeros, _ = drawn(4)
    words, points = in_words(codes, 4), in_words(zeros.T, 4)
    with pytest.raises(ShapeError, match="gptq: got qweight of int64; wanted int32"):
        from_gptq(words.T.astype(np.int64), points, SCALES.T)
    with pytest.raises(ShapeError, match=r"gptq: got g_idx int64 \[3\]; wanted integers"):
        from_gptq(words.T, points, SCALES.T, np.array([0, 0, 1]))
    with pytest.raises(ShapeError, match=r"gptq: got scales \[\d+\]; wanted a matrix"):
        from_gptq(words.T, points, SCALES.T[0])
    with pytest.raises(ShapeError, match="awq: got qzeros of float32; wanted int32"):
        from_awq(words, points.astype(np.float32), SCALES.T)
    with pytest.raises(ShapeError, match="compressed-tensors: got weight of uint8; wanted int32"):
        from_compressed_tensors(words.view(np.uint8), SCALES)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(bits) -> None:
    codes, zeros, wanted = drawn(bits)
    weight, points = in_words(codes, bits), in_words(zeros.T, bits).T
    close(values_of(from_compressed_tensors(weight, SCALES, points, bits=bits)), wanted)
    symmetric = (codes - (1 << (bits - 1))) * np.repeat(SCALES.astype(np.float64), GROUP, 1)
    close(values_of(from_compressed_tensors(weight, SCALES, bits=bits)), symmetric)
    if bits == 8:
        by_byte = from_compressed_tensors((codes - 128).astype(np.int8), SCALES, (zeros - 128).astype(np.int8))
        close(values_of(by_byte), wanted)


@pytest.mark.oracle
def test_codes_are_torch_s() -> None:
    import torch

    x = np.random.default_rng(3).normal(size=4096).astype(np.float32) * 100
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        wanted = torch.from_numpy(x).to(dtype).view(torch.uint8).numpy()
        np.testing.assert_array_equal(codes_of(x.astype(np.float64), CODES[name]), wanted)
