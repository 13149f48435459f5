"""Fourier transforms of many lengths against NumPy, and complex numbers in graphs and arrays."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.errors import ShapeError
from camshaft.ops.fft import prime
from camshaft.ops.fft.factors import factors, padded, passes, radices, roots

RNG = np.random.default_rng(9)
INVERSES = {"fft": "ifft", "rfft": "irfft"}
# Each radix alone and with others, both sides of a split, primes above 13, a length whose half is prime
QUICK, LENGTHS = (
    (1, 34),
    (2, 3, 4, 6, 8, 11, 16, 26, 49, 64, 81, 100, 127, 143, 256, 360, 1000, 2310, 4096, 5000, 65536),
)


def numbers(n: int, name: str, dtype=np.float64):
    real = name == "rfft"
    x = RNG.normal(size=(2, n)) + (0 if real else 1j * RNG.normal(size=(2, n)))
    return x.astype(np.result_type(dtype, np.float32 if real else np.complex64))


def near(a, b, error: float) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=error * np.abs(b).max())


@pytest.mark.parametrize("name", INVERSES)
@pytest.mark.parametrize("n", [*QUICK, *(pytest.param(n, marks=pytest.mark.full) for n in LENGTHS)])
def test_a_transform_is_numpy_s_and_its_inverse_undoes_it(name, n) -> None:
    x = numbers(n, name)
    found = getattr(cs, name)(x)
    near(found, getattr(np.fft, name)(x), 1e-13)
    back = getattr(cs, INVERSES[name])(found, n=n)
    near(back, x, 1e-13)
    assert (found.dtype, back.dtype) == (np.complex128, x.dtype)


@pytest.mark.full
@pytest.mark.parametrize("n", [1 << 12, 1 << 16, 10007, 65537, 3**8])
def test_f32_is_as_exact_as_its_table(n) -> None:
    x = numbers(n, "rfft", np.float32)
    near(cs.rfft(x), np.fft.rfft(x.astype(np.float64)), 1e-6)


@pytest.mark.parametrize("n", [19, *(pytest.param(n, marks=pytest.mark.full) for n in (5, 7, 37, 4201))])
def test_a_real_transform_of_a_prime_length_is_a_convolution_of_one_point_less(n, monkeypatch) -> None:
    monkeypatch.setattr(prime, "LEAST", 5)
    x = RNG.normal(size=(3, n + 2))
    for norm in ("backward", "ortho"):
        near(cs.rfft(x, n=n, norm=norm), np.fft.rfft(x, n, norm=norm), 1e-13)


# By half as many points, by passes of an odd length, by chirps (odd and even), by Rader's convolution
@pytest.mark.parametrize("n", [1, 2, 9, 16, 37, 34, 64, 19])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("backend", ["simd", "scalar"])
def test_a_spectrum_of_real_numbers_is_real_at_its_ends_whatever_they_are(n, bad, backend, monkeypatch) -> None:
    monkeypatch.setattr(prime, "LEAST", 19)
    ends = [0, n // 2] if n % 2 == 0 else [0]
    x = RNG.normal(size=(2, n)).astype(np.float32)
    x[0, n // 2] = bad
    for name in ("rfft", "fft"):
        for norm in (None, "ortho"):
            with cs.backend(backend), np.errstate(invalid="ignore"):
                (wanted,) = ops.get(name).reference((x,), {"norm": norm})
                found = getattr(cs, name)(x, norm=norm)
            assert not found.imag[:, ends].any()
            assert not wanted.imag[:, ends].any()
            assert not np.isfinite(found.real[0, ends]).any()
            near(found[1], getattr(np.fft, name)(x[1], norm=norm), 1e-5)


def test_a_spectrogram_of_infinities_is_real_at_its_ends() -> None:
    x = np.full(40, np.inf, np.float32)
    for normalized in (False, True):
        attrs = {"n_fft": 16, "normalized": normalized}
        found = cs.stft(x, np.ones(16, np.float32), **attrs)
        with np.errstate(invalid="ignore"):
            (wanted,) = ops.get("stft").reference((x, np.ones(16)), attrs)
        for each in (found, wanted):
            assert not each.imag[[0, 8]].any()
            assert not np.isfinite(each.real[[0, 8]]).any()


def test_primes_of_one_point_more_than_a_transform_by_passes_are_known() -> None:
    found = [n for n in range(4096, 5000) if prime.is_rader(n)]
    assert found[:4] == [4159, 4201, 4357, 4481]
    assert [prime.is_rader(n) for n in (65537, 10007, 4097, 19)] == [True, False, False, False]


def test_imaginary_parts_that_a_real_result_has_no_place_for_count_as_0() -> None:
    x = numbers(9, "fft")
    for n in (15, 16):
        near(cs.irfft(x, n=n), np.fft.irfft(x, n), 1e-13)


def test_radices_are_those_of_the_length() -> None:
    for n in (1, 2, 24, 512, 13 * 11, 2 * 3 * 5 * 7):
        assert np.prod(radices(n) or ()) == n
        assert np.prod([one.radix for one in passes(n)]) == n
    assert radices(34) is None
    assert [padded(n) for n in (1, 5, 7, 17, 1000)] == [1, 5, 8, 20, 1024]


def test_factors_are_exact_at_eighths() -> None:
    real, imaginary = roots(np.arange(8) / 8)
    assert set(np.abs(real)) | set(np.abs(imaginary)) == {0.0, np.sqrt(0.5), 1.0}
    assert factors(64, 128).shape[0] == 2


# --- complex numbers ---------------------------------------------------------------------------------------------------
def test_complex_arithmetic_is_numpy_s() -> None:
    a, b = numbers(5, "fft", np.float32), numbers(1, "fft", np.float32)
    for name in ("add", "subtract", "multiply"):
        near(getattr(cs, name)(a, b), getattr(np, name)(a, b), 1e-6)
        assert getattr(cs, name)(a, b).dtype == np.complex64
    near(cs.abs(a), np.abs(a), 1e-6)
    np.testing.assert_array_equal(cs.abs(np.array([0j, np.inf + 1j, 3e38 + 0j, 1e-30j], np.complex64))[:2], [0, np.inf])
    some = np.array(
        [complex(a, b) for a in (np.nan, np.inf, -np.inf, 1) for b in (np.nan, np.inf, 0, -1)], np.complex64
    )
    np.testing.assert_allclose(cs.abs(some), np.abs(some), rtol=1e-6)
    for name in ("conj", "real", "imag"):
        np.testing.assert_array_equal(getattr(cs, name)(a), getattr(np, name)(a))
    assert cs.cast(np.ones(3, np.float32), to="complex64").dtype == np.complex64
    np.testing.assert_array_equal(cs.cast(a, to="f32"), a.real)


def test_a_plan_takes_and_gives_complex_arrays() -> None:
    graph = cs.Graph()
    z = graph.input("z", (2, 6), "complex64")
    graph.output("y", cs.abs(z * z + z))
    graph.output("parts", z.pairs().reshape(2, 12))
    graph.output("row", z.pairs().as_complex().reshape(12))
    given = numbers(6, "fft", np.float32)
    with cs.compile(graph) as plan:
        made = plan.run(z=given)
    near(made["y"], np.abs(given * given + given), 1e-6)
    np.testing.assert_array_equal(made["parts"], given.view(np.float32))
    np.testing.assert_array_equal(made["row"], given.reshape(12))


def test_views_of_parts_are_refused_for_others() -> None:
    graph = cs.Graph()
    x = graph.input("x", (2, 3), "f32")
    with pytest.raises(ShapeError, match="wanted a tensor of complex64 or complex128"):
        x.pairs()
    with pytest.raises(ShapeError, match=r"wanted pairs \[.., 2\]"):
        x.as_complex()
    z = graph.input("z", (2,), "complex64")
    with pytest.raises(ShapeError, match="wanted tensors of"):
        cs.exp(z)


@pytest.mark.oracle
def test_transforms_are_torch_s() -> None:
    import torch

    x = numbers(60, "fft", np.float32)
    for norm in ("backward", "ortho", "forward"):
        near(cs.fft(x, n=50, axis=0, norm=norm), torch.fft.fft(torch.from_numpy(x), 50, 0, norm).numpy(), 1e-5)
        near(cs.irfft(x, norm=norm), torch.fft.irfft(torch.from_numpy(x), norm=norm).numpy(), 1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("center", "mode", "normalized"), [(True, "reflect", False), (True, "constant", True), (False, "reflect", False)]
)
def test_spectrograms_are_torch_s(center, mode, normalized) -> None:
    import torch

    x, window = RNG.normal(size=(2, 700)), np.hanning(96)
    found = cs.stft(x, window, n_fft=128, hop_length=50, center=center, pad_mode=mode, normalized=normalized)
    wanted = torch.stft(
        torch.from_numpy(x), 128, 50, 96, torch.from_numpy(window), center, mode, normalized, return_complex=True
    )
    near(found, wanted.numpy(), 1e-13)


@pytest.mark.oracle
@pytest.mark.parametrize("mel", ["htk", "slaney"])
@pytest.mark.parametrize("norm", [None, "slaney"])
def test_mel_filters_are_those_of_transformers(mel, norm) -> None:
    from transformers.audio_utils import mel_filter_bank

    from camshaft.ops.fft.audio import mel_filters

    wanted = mel_filter_bank(201, 80, 20.0, 7600.0, 16000, norm, mel)
    np.testing.assert_allclose(mel_filters(201, 80, 16000, 20.0, 7600.0, norm, mel), wanted.T, rtol=1e-9, atol=1e-12)
