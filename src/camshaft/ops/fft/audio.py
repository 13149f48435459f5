"""stft and mel_scale: the spectrogram of sound, and its bands on the mel scale, as torch.stft and torchaudio have them.

    stft:       y[.., f, t] = s sum_j w[j] x[.., t hop + j] exp(-2 pi sqrt(-1) f j / n), j from 0 to n_fft
    mel_scale:  y[.., m, t] = sum_f filters[m, f] x[.., f, t]

With `center`, x is continued by n_fft / 2 samples on both sides as pad's `pad_mode` does. A window of fewer than n_fft samples is
in the middle of n_fft. With `normalized`, s is 1 / sqrt(n_fft), else 1; only f up to n_fft / 2 is given (`onesided`).

The filters are triangles between n_mels + 2 frequencies that are evenly spaced in mel between f_min and f_max: "htk", 2595
log10(1 + f / 700) (O'Shaughnessy 1987), or "slaney", 3 f / 200 below 1 kHz and logarithmic above (Auditory Toolbox, Slaney 1998).
`norm` "slaney" divides each by half its width in Hz, so that all have the same area.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import numpy as np

from camshaft.dtypes import complex64, complex128, f32, f64
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import same_dtype
from camshaft.ops.fft.sizes import real_at
from camshaft.ops.movement.moved import check_attributes, expect_whole
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_WHOLE = {f32: complex64, f64: complex128}
_STFT = Parameters(
    "x window",
    (
        Attribute("n_fft", "int"),
        Attribute("hop_length", "int | None", None),
        Attribute("center", "bool", True),
        Attribute("pad_mode", "str", "reflect"),
        Attribute("normalized", "bool", False),
    ),
)
_MEL = Parameters(
    "x",
    (
        Attribute("n_mels", "int"),
        Attribute("sample_rate", "int"),
        Attribute("f_min", "float", 0.0),
        Attribute("f_max", "float | None", None),
        Attribute("norm", "str | None", None),
        Attribute("mel", "str", "htk"),
    ),
)
# What reaches over the ends of x; `constant` gives zeros.
_MODES = ("reflect", "constant", "edge", "replicate", "circular", "wrap", "symmetric")
# The Slaney scale: up to KNEE Hz a mel is 200 / 3 Hz, above it 27 mels are a factor of 6.4.
KNEE, HZ_PER_MEL, STEP = 1000.0, 200.0 / 3.0, log(6.4) / 27.0


# --- stft ----------------------------------------------------------------------------------------------------------------
def _hop(n_fft: int, hop_length: int | None) -> int:
    return n_fft // 4 if hop_length is None else hop_length


def _stft_infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "stft", specs, "x and window")
    check_attributes("stft", attrs, " ".join(a.name for a in _STFT.attributes))
    dtype = same_dtype("stft", specs, (f32, f64))
    x, window = specs
    plain = 1 <= len(x.shape) <= 2 and 0 not in x.bounds and not any(isinstance(d, Extent) for d in x.shape)
    ops.expect(plain, "stft", x, "x [time] or [batch, time], not empty and of fixed size")
    n_fft = expect_whole("stft", "n_fft", attrs.get("n_fft"))
    hop = expect_whole("stft", "hop_length", _hop(n_fft, attrs.get("hop_length")))
    fits = len(window.shape) == 1 and isinstance(n := window.shape[0], int) and 0 < n <= n_fft
    ops.expect(fits, "stft", window, f"a window of 1 to n_fft = {n_fft} numbers")
    mode, center = attrs.get("pad_mode", "reflect"), attrs.get("center", True)
    ops.expect(mode in _MODES, "stft", f"pad_mode {mode!r}", f"pad_mode {', '.join(_MODES)}")
    time = x.bounds[-1] + 2 * (n_fft // 2) * bool(center)
    ops.expect(
        time >= n_fft, "stft", f"{x.bounds[-1]} samples", f"at least n_fft = {n_fft} samples with what center adds"
    )
    reach = n_fft // 2 < x.bounds[-1] or not center or mode != "reflect"
    ops.expect(reach, "stft", f"{x.bounds[-1]} samples", f"more than n_fft / 2 = {n_fft // 2}, which are reflected")
    return (TensorSpec((*x.shape[:-1], n_fft // 2 + 1, 1 + (time - n_fft) // hop), _WHOLE[dtype]),)


def _middle(window: Any, n_fft: int) -> tuple[tuple[int, int], ...]:
    before = (n_fft - window.shape[0]) // 2
    return ((before, n_fft - window.shape[0] - before),)


def _stft_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, window = (i.astype(np.longdouble) for i in inputs)
    n_fft, half = attrs["n_fft"], attrs["n_fft"] // 2
    if attrs.get("center", True):
        given = attrs.get("pad_mode", "reflect")
        mode: Any = {"replicate": "edge", "circular": "wrap"}.get(given, given)
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode=mode)
    frames = np.lib.stride_tricks.sliding_window_view(x, n_fft, -1)[..., :: _hop(n_fft, attrs.get("hop_length")), :]
    norm: Any = "ortho" if attrs.get("normalized", False) else None
    made = np.fft.rfft(frames * np.pad(window, _middle(window, n_fft)), norm=norm)
    made.imag[..., real_at(n_fft)] = 0
    return (np.ascontiguousarray(np.moveaxis(made, -1, -2)).astype(np.complex128),)


def _stft(
    f: Any, x: Any, window: Any, n_fft: int, hop_length: int | None = None, center: bool = True, pad_mode: str = "reflect",
    normalized: bool = False,
) -> Any:  # fmt: skip
    lead, half, hop = x.shape[:-1], n_fft // 2, _hop(n_fft, hop_length)
    rows = x.reshape((int(np.prod(lead, dtype=np.int64)), x.shape[-1]))
    if center and half:
        rows = f.pad(rows, pad_width=((0, 0), (half, half)), mode=pad_mode)
    frames = f.im2col(rows.reshape((rows.shape[0], 1, 1, rows.shape[1])), patch=(1, n_fft), stride=(1, hop))
    if window.shape[0] < n_fft:
        window = f.pad(window, pad_width=_middle(window, n_fft))
    made = f.rfft(frames * window, norm="ortho" if normalized else None)
    pairs = f.transpose(made.pairs(), axes=(0, 2, 1, 3))
    return pairs.reshape((*lead, half + 1, made.shape[1], 2)).as_complex()


# --- mel_scale -----------------------------------------------------------------------------------------------------------
def _mels(hz: Any, mel: str) -> Any:
    if mel == "htk":
        return 2595.0 * np.log10(1.0 + np.asarray(hz) / 700.0)
    above = KNEE / HZ_PER_MEL + np.log(np.maximum(hz, KNEE) / KNEE) / STEP
    return np.where(np.asarray(hz) < KNEE, np.asarray(hz) / HZ_PER_MEL, above)


def _hz(mels: Any, mel: str) -> Any:
    if mel == "htk":
        return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    knee = KNEE / HZ_PER_MEL
    return np.where(mels < knee, mels * HZ_PER_MEL, KNEE * np.exp(STEP * (np.maximum(mels, knee) - knee)))


def mel_filters(
    n_freqs: int, n_mels: int, sample_rate: int, f_min: float = 0.0, f_max: float | None = None, norm: str | None = None,
    mel: str = "htk",
) -> ops.Array:  # fmt: skip
    """The triangles of the module's text, f64 [n_mels, n_freqs]; frequency j is j sample_rate / (2 (n_freqs - 1)) Hz."""
    ends = _mels(np.array([f_min, sample_rate / 2 if f_max is None else f_max]), mel)
    points = _hz(np.linspace(ends[0], ends[1], n_mels + 2), mel)
    freqs = np.linspace(0.0, sample_rate / 2, n_freqs)
    rise = (freqs - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    fall = (points[2:, None] - freqs) / (points[2:] - points[1:-1])[:, None]
    found: ops.Array = np.maximum(0.0, np.minimum(rise, fall))
    return found * (2.0 / (points[2:] - points[:-2]))[:, None] if norm == "slaney" else found


def _mel_infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "mel_scale", specs, "one tensor x")
    check_attributes("mel_scale", attrs, " ".join(a.name for a in _MEL.attributes))
    dtype = same_dtype("mel_scale", specs, (f32, f64))
    (x,) = specs
    plain = len(x.shape) >= 2 and 0 not in x.bounds and not any(isinstance(d, Extent) for d in x.shape)
    ops.expect(plain and x.bounds[-2] > 1, "mel_scale", x, "x [.., frequencies, time] of 2 frequencies or more")
    n_mels = expect_whole("mel_scale", "n_mels", attrs.get("n_mels"))
    rate = expect_whole("mel_scale", "sample_rate", attrs.get("sample_rate"))
    norm, mel = attrs.get("norm"), attrs.get("mel", "htk")
    ops.expect(norm in (None, "slaney"), "mel_scale", f"norm {norm!r}", "norm slaney or None")
    ops.expect(mel in ("htk", "slaney"), "mel_scale", f"mel {mel!r}", "mel htk or slaney")
    low, high = attrs.get("f_min", 0.0), attrs.get("f_max")
    high = rate / 2 if high is None else high
    ops.expect(0 <= low < high, "mel_scale", f"f_min {low!r} and f_max {high!r}", "0 <= f_min < f_max")
    return (TensorSpec((*x.shape[:-2], n_mels, x.shape[-1]), dtype),)


def _mel_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    return (mel_filters(x.shape[-2], **attrs).astype(x.dtype).astype(np.float64) @ x.astype(np.float64),)


def _mel(f: Any, x: Any, **attrs: Any) -> Any:
    filters = mel_filters(x.shape[-2], **attrs).astype(x.dtype.numpy)
    return f.matmul(filters, x)


# --- the ops -------------------------------------------------------------------------------------------------------------
def _stft_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(53)
    for shape, size, attrs in (
        ((2, 40), 16, {"n_fft": 16}),
        ((33,), 9, {"n_fft": 12, "hop_length": 5, "center": False, "normalized": True}),
    ):
        x, window = (rng.normal(size=n).astype(np.float32) for n in (shape, (size,)))
        yield ops.Sample(f"{shape} {attrs}", (x, window), attrs)


def _stft_errors() -> Iterable[ops.ErrorSample]:
    x, window = TensorSpec((2, 8), f32), TensorSpec((8,), f32)
    yield ops.ErrorSample((x,), {"n_fft": 8}, "wanted x and window")
    yield ops.ErrorSample((x, window), {"n_fft": 4}, "a window of 1 to n_fft = 4 numbers")
    ragged = TensorSpec((Extent("window", 8),), f32)
    yield ops.ErrorSample((x, ragged), {"n_fft": 8}, "a window of 1 to n_fft = 8 numbers")
    yield ops.ErrorSample(
        (x, window), {"n_fft": 8, "hop_length": 0}, "got hop_length 0; wanted an integer of 1 or more"
    )
    yield ops.ErrorSample((x, window), {"n_fft": 10, "center": False}, "at least n_fft = 10 samples")
    yield ops.ErrorSample((x, window), {"n_fft": 20}, "more than n_fft / 2 = 10")


def _mel_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(54)
    for shape, attrs in (
        ((17, 5), {"n_mels": 4, "sample_rate": 8000}),
        (
            (2, 33, 3),
            {"n_mels": 6, "sample_rate": 16000, "f_min": 20.0, "f_max": 7000.0, "norm": "slaney", "mel": "slaney"},
        ),
    ):
        yield ops.Sample(f"{shape} {attrs}", (rng.random(shape).astype(np.float32),), attrs)


def _mel_errors() -> Iterable[ops.ErrorSample]:
    x, attrs = TensorSpec((17, 5), f32), {"n_mels": 4, "sample_rate": 8000}
    yield ops.ErrorSample((x, x), attrs, "wanted one tensor x")
    yield ops.ErrorSample((x,), {**attrs, "n_mels": 0}, "got n_mels 0; wanted an integer of 1 or more")
    yield ops.ErrorSample((x,), {**attrs, "f_min": 4000.0}, "wanted 0 <= f_min < f_max")
    yield ops.ErrorSample((x,), {**attrs, "mel": "bark"}, "wanted mel htk or slaney")


OPS = {
    "stft": ops.Op(
        name="stft",
        formula="y[f, t] = sum_j window[j] x[t hop_length + j] exp(-2 pi sqrt(-1) f j / n_fft), f up to n_fft / 2",
        parameters=_STFT,
        infer=_stft_infer,
        reference=_stft_reference,
        decompose=_stft,
        samples=_stft_samples,
        error_samples=_stft_errors,
        tolerance={"complex64": 1e-12, "complex128": 1e-28},
    ),
    "mel_scale": ops.Op(
        name="mel_scale",
        formula="y[m, t] = sum_f filters[m, f] x[f, t], triangles that are evenly spaced in mel",
        parameters=_MEL,
        infer=_mel_infer,
        reference=_mel_reference,
        decompose=_mel,
        samples=_mel_samples,
        error_samples=_mel_errors,
        tolerance={"f32": 1e-12, "f64": 1e-28},
    ),
}
