"""TurboQuant: optimal centroids, the transform's inverse, the published distortion, and caches of codes."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.errors import ShapeError
from camshaft.ops.turboquant.codes import encode
from camshaft.ops.turboquant.lloyd_max import boundaries, centroids

D = 128


def signs_of(d: int) -> np.ndarray:
    return np.random.default_rng(3).choice(np.array([-1, 1], np.float32), d)


@pytest.mark.parametrize("bits", range(1, 9))
def test_centroids_are_the_means_between_their_midpoints(bits: int) -> None:
    """Both conditions of an optimal quantizer, by numerical integration of the density."""
    table = centroids(bits)
    assert len(table) == 2**bits
    assert (np.diff(table) > 0).all()
    np.testing.assert_array_equal(table, -table[::-1])
    x, step = np.linspace(-9, 9, 360_001, retstep=True)
    density = np.exp(-x * x / 2) * step / np.sqrt(2 * np.pi)
    cell = np.searchsorted(boundaries(table), x)
    means = np.bincount(cell, density * x) / np.bincount(cell, density)
    np.testing.assert_allclose(means, table, atol=3e-4)


def test_known_centroids() -> None:
    """Max's table of 1960."""
    np.testing.assert_allclose(centroids(1)[1:], [0.7979], atol=5e-5)
    np.testing.assert_allclose(centroids(2)[2:], [0.4528, 1.510], atol=5e-4)
    np.testing.assert_allclose(centroids(3)[4:], [0.2451, 0.7560, 1.344, 2.152], atol=5e-4)
    with pytest.raises(ShapeError, match="wanted 1 to 8"):
        centroids(9)


@pytest.mark.parametrize(("bits", "wanted"), [(1, 0.360), (2, 0.116), (3, 0.034), (4, 0.009)])
def test_distortion_of_unit_rows_is_the_published_one(bits: int, wanted: float) -> None:
    x = np.random.default_rng(bits).normal(size=(2000, D)).astype(np.float32)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    signs, table = signs_of(D), centroids(bits).astype(np.float32)
    made = cs.turboquant_decode(*cs.turboquant_encode(x, signs, table), table, signs)
    assert ((made - x) ** 2).sum(-1).mean() == pytest.approx(wanted, abs=0.001)


def test_the_transform_is_its_own_inverse() -> None:
    x, signs = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32), signs_of(64)
    np.testing.assert_allclose(cs.hadamard(cs.hadamard(x)), x, atol=1e-6)
    np.testing.assert_allclose(cs.hadamard(cs.hadamard(x, signs), signs, signs_after=True), x, atol=1e-6)


def test_the_transform_is_sylvesters_matrix() -> None:
    x, matrix = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32), np.ones((1, 1))
    for _ in range(6):
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    np.testing.assert_allclose(ops.get("hadamard").reference((x,), {})[0], x @ matrix / 8, atol=1e-12)


def test_a_cache_of_codes_is_written_and_read() -> None:
    """encode, kv_cache_update of codes and of norms, turboquant_attention: near attention of the numbers."""
    size, n = 64, 20
    rng = np.random.default_rng(4)
    keys, values, q = (rng.normal(size=(n, size)).astype(np.float32) for _ in range(3))
    signs, table = signs_of(size), centroids(8).astype(np.float32)
    p, slots, blocks = np.arange(n, dtype=np.int32), np.zeros(n, np.int32), np.array([[1, 0]], np.int32)
    (k_codes, k_norms), (v_codes, v_norms) = (cs.turboquant_encode(x, signs, table) for x in (keys, values))
    caches = np.zeros((2, 1, size, 16), np.uint8), np.zeros((2, 1, 16, size), np.uint8)
    norms = np.zeros((2, 1, 1, 16), np.float32), np.zeros((2, 1, 16, 1), np.float32)
    cs.kv_cache_update(*caches, k_codes, v_codes, p, slots, blocks, kv_heads=1, head_dim=size)
    cs.kv_cache_update(*norms, k_norms[:, None], v_norms[:, None], p, slots, blocks, kv_heads=1, head_dim=1)
    attrs = {"heads": 1, "kv_heads": 1, "head_dim": size, "scale": 0.125, "length": 32}
    made = cs.turboquant_attention(q, *caches, p, slots, blocks, *norms, table, table, signs, **attrs)
    wanted = cs.scaled_dot_product_attention(*(x[None, None] for x in (q, keys, values)), causal=True)[0, 0]
    assert np.abs(made - wanted).max() < 0.05
    assert ((made - wanted) ** 2).mean() < 1e-3 * (wanted**2).mean()


def test_a_row_of_zeros_and_one_with_nan() -> None:
    x, table = np.zeros((2, 16), np.float32), centroids(4).astype(np.float32)
    x[1, 3] = np.nan
    made = cs.turboquant_decode(*cs.turboquant_encode(x, signs_of(16), table), table)
    assert not made[0].any()
    assert np.isnan(made[1]).all()


@pytest.mark.oracle
def test_the_transform_is_scipys_matrix() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    for d in (1, 2, 8, 64, 512):
        x = np.random.default_rng(d).normal(size=(3, d)).astype(np.float32)
        want = x.astype(np.float64) @ linalg.hadamard(d) / np.sqrt(d)
        np.testing.assert_allclose(ops.get("hadamard").reference((x,), {})[0], want, atol=1e-13)
        np.testing.assert_allclose(cs.hadamard(x), want, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_of_every_bit_width_agree_with_the_reference(bits: int) -> None:
    x, table = np.random.default_rng(bits).normal(size=(50, D)).astype(np.float32), centroids(bits).astype(np.float32)
    packed, norms = cs.turboquant_encode(x, signs_of(D), table)
    wanted, sizes = encode(x, signs_of(D), table)
    np.testing.assert_allclose(norms, sizes, rtol=1e-6)
    assert (packed != wanted).mean() < 1e-3  # an element as near to two centroids may fall to either
