"""exp, log, tanh, erf, sin and cos in units in the last place against a wider type, over sweeps of every exponent."""

import numpy as np
import pytest

from camshaft.lang import kernel
from tests.support.compilers.emit_harness import native, trace
from tests.support.quick import full

N = 1 << 17
# what lang/instructions.py states
WORST_ULP = {"exp": 1.0, "log": 1.0, "tanh": 2.0, "erf": 1.5, "sin": 1.0, "cos": 1.0}
WIDER = {np.float32: np.float64, np.float64: np.longdouble}


def erf(x):
    """By its series without cancellation, e^(-x^2) times powers of 2 x^2 over odd factorials; 1 to any precision beyond 8."""
    size = np.clip(x, -8, 8).astype(np.longdouble)
    term = total = size
    for n in range(1, 200):
        term = term * (2 * size * size) / (2 * n + 1)
        total = total + term
    root_pi = 2 * np.sqrt(np.arctan(np.longdouble(1)))
    return 2 / root_pi * np.exp(-size * size) * total


# what a wider type computes; sin and cos of f32 need all of its digits for great numbers, which f64 has
WIDE = {"erf": erf}


@kernel
def apply(k, x, out, *, n, name):
    for c in k.lanes(n):
        out[c] = k.apply(name, x[c])


def compiled(name, x, lanes):
    out = np.zeros_like(x)
    native(trace(apply, [x, out], n=x.size, name=name), lanes)([x, out])
    return out


def sweeps(name, dtype):
    """Bit patterns of every exponent; the whole range of finite results; where cancellation is worst."""
    bits = np.uint32 if dtype == np.float32 else np.uint64
    patterns = (np.arange(N, dtype=bits) * bits(np.iinfo(bits).max // N)).view(dtype)
    low, high = (-104, 89) if dtype == np.float32 else (-746, 710)
    ranges = {
        "exp": (low, high),
        "log": (0.4, 2.6),
        "tanh": (-1.3, 1.3),
        "erf": (-1.5, 6.1),
        "sin": (-9, 9),
        "cos": (-9, 9),
    }
    subnormals = np.linspace(0, 2 * np.finfo(dtype).tiny, N).astype(dtype)
    parts = [patterns, np.linspace(*ranges[name], N).astype(dtype), subnormals]
    if name in ("sin", "cos"):  # next to their zeros, on both sides of where lanes go one by one
        quarters = np.random.default_rng(1).integers(1, 2**28, N // 4)
        parts.append((np.concatenate([quarters, np.arange(N // 4)]) * (np.pi / 2)).astype(dtype))
    return np.concatenate([part[:: 8 if name == "erf" else 1] for part in parts])  # whose truth is slow to find


def ulps(got, wide, dtype):
    """Errors in units of the last place of the rounded truth, that of the smallest normal for subnormals' exponents."""
    truth = wide.astype(dtype)
    step = np.spacing(np.maximum(np.abs(truth), np.finfo(dtype).tiny)).astype(wide.dtype)
    return np.abs(got.astype(wide.dtype) - wide) / step


@pytest.mark.parametrize("dtype", [np.float32, full(np.float64)])
@pytest.mark.parametrize("name", WORST_ULP)
def test_accuracy_is_what_the_instruction_table_states(name, dtype):
    x = sweeps(name, dtype)
    got = compiled(name, x, 16)
    with np.errstate(all="ignore"):
        wide = WIDE.get(name, getattr(np, name, None))(x.astype(WIDER[dtype]))
        finite = np.isfinite(wide.astype(dtype))
        np.testing.assert_array_equal(got[~finite], wide[~finite].astype(dtype))
        assert ulps(got[finite], wide[finite], dtype).max() <= WORST_ULP[name]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lanes", [1, 8])
def test_limits_are_exact(dtype, lanes):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1000, -1000, -1e-30, 1.0], dtype)
    nan, inf = np.nan, np.inf
    np.testing.assert_array_equal(compiled("exp", x, lanes)[:7], [1, 1, inf, 0, nan, inf, 0])
    np.testing.assert_array_equal(
        compiled("log", x, lanes)[[0, 1, 2, 3, 4, 6, 7, 8]], [-inf, -inf, inf, nan, nan, nan, nan, 0]
    )
    tanh = compiled("tanh", x, lanes)
    np.testing.assert_array_equal(tanh[:7], [0, -0.0, 1, -1, nan, 1, -1])
    assert np.signbit(tanh[1])
    erf = compiled("erf", x, lanes)
    np.testing.assert_array_equal(erf[:7], [0, -0.0, 1, -1, nan, 1, -1])
    assert np.signbit(erf[1])
    sin = compiled("sin", x, lanes)
    np.testing.assert_array_equal(sin[[0, 1, 2, 3, 4, 7]], np.array([0, -0.0, nan, nan, nan, -1e-30], dtype))
    assert np.signbit(sin[1])
    np.testing.assert_array_equal(compiled("cos", x, lanes)[[0, 1, 2, 3, 4, 7]], [1, 1, nan, nan, nan, 1])


def test_every_width_rounds_alike():
    x = np.linspace(-80, 80, 999).astype(np.float32)
    for name in WORST_ULP:
        results = [compiled(name, x, lanes) for lanes in (1, 4, 64)]
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])
