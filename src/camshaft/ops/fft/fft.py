"""fft, ifft, rfft and irfft: discrete Fourier transforms along an axis, of any length, as numpy.fft has them.

    fft:  y[f] = s sum_t x[t] exp(-2 pi sqrt(-1) f t / n)     ifft: y[t] = s sum_f x[f] exp(2 pi sqrt(-1) f t / n)

rfft is fft of real numbers, f up to n / 2; irfft is ifft where x[n - f] = conj x[f], and real. A spectrum of real numbers is real
at 0 and n / 2, also where one of these is NaN or infinity, as NumPy's and torch's. `n` cuts the axis or continues it with zeros.
`norm`: s is 1 and 1 / n ("backward"), 1 / sqrt(n) for both ("ortho"), or 1 / n and 1 ("forward").

Lengths with a prime factor above 13 are convolutions (Bluestein): f t = (f^2 + t^2 - (f - t)^2) / 2, so that
    y[f] = c[f] sum_t (x[t] c[t]) conj c[f - t],   c[t] = exp(-pi sqrt(-1) t^2 / n),
by transforms of at least 2 n - 1 points; rfft of some primes is one of n - 1 points (prime.py). f32 and complex64 are computed
in f32, f64 and complex128 in f64.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, as_dtype, complex64, complex128, f32, f64
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.fft import prime
from camshaft.ops.fft.factors import padded, radices, roots
from camshaft.ops.fft.sizes import MOST_POINTS, own_points, real_at, table
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_WHOLE = {f32: complex64, f64: complex128}
NORMS = ("backward", "ortho", "forward")
ATTRIBUTES = (Attribute("n", "int | None", None), Attribute("axis", "int", -1), Attribute("norm", "str | None", None))


@dataclass(frozen=True)
class Transform:
    """A transform of the table. `real`: it takes (rfft) or gives (irfft) real numbers."""

    name: str
    inverse: bool
    real: bool

    @property
    def gives_real(self) -> bool:
        return self.inverse and self.real

    def points(self, x: TensorSpec, attrs: ops.Attrs) -> int:
        """The length n of the transform."""
        n, size = attrs.get("n"), x.bounds[attrs.get("axis", -1)]
        found: int = 2 * (size - 1) if n is None and self.gives_real else size if n is None else n
        return found

    def kept(self, n: int) -> int:
        """The elements that the result has along the axis."""
        return n // 2 + 1 if self.real and not self.inverse else n

    def scale(self, n: int, norm: str | None) -> float:
        power = {"backward": 1.0 if self.inverse else 0.0, "ortho": 0.5, "forward": 0.0 if self.inverse else 1.0}
        return float(n ** -power[norm or "backward"])


def _infer(t: Transform, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, t.name, specs, "one tensor x")
    (x,), axis, norm = specs, attrs.get("axis", -1), attrs.get("norm")
    given = (f32, f64) if t.real and not t.inverse else (f32, f64, complex64, complex128)
    fits = x.is_plain and x.dtype in given and len(x.shape) > 0 and 0 not in x.bounds
    fits = fits and not any(isinstance(d, Extent) for d in x.shape)
    ops.expect(
        fits, t.name, x, f"x of {', '.join(d.name for d in given)} with an axis, none of them empty or an Extent"
    )
    rank = len(x.shape)
    inside = isinstance(axis, int) and -rank <= axis < rank
    ops.expect(inside, t.name, f"axis {axis!r} of {x}", f"an axis from {-rank} to {rank - 1}")
    ops.expect(norm is None or norm in NORMS, t.name, f"norm {norm!r}", f"norm {', '.join(NORMS)} or None")
    n = t.points(x, attrs)
    ops.expect(isinstance(n, int) and 0 < n <= MOST_POINTS // 4, t.name, f"n {n!r}", f"n of 1 to {MOST_POINTS // 4}")
    part = PARTS.get(as_dtype(x.dtype), as_dtype(x.dtype))
    shape = list(x.shape)
    shape[axis] = t.kept(n)
    return (TensorSpec(tuple(shape), part if t.gives_real else _WHOLE[part]),)


def _reference(t: Transform, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """By NumPy in longdouble."""
    (x,) = inputs
    wide = x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
    axis = attrs.get("axis", -1)
    found = getattr(np.fft, t.name)(wide, attrs.get("n"), axis, attrs.get("norm"))
    if x.dtype.kind != "c" and not t.gives_real:  # NumPy rounds at n / 2 where it convolves
        np.moveaxis(found.imag, axis, -1)[..., real_at(attrs.get("n") or x.shape[axis])] = 0
    return (found.astype(np.float64 if t.gives_real else np.complex128),)


# --- by rows -----------------------------------------------------------------------------------------------------------
def _decompose(t: Transform, f: Any, x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    attrs = {"n": n, "axis": axis, "norm": norm}
    points = t.points(x.spec, attrs)
    is_complex = x.dtype in PARTS
    x, shape, axis = (x.pairs() if is_complex else x), x.shape, axis % len(x.shape)
    rank = len(shape)
    order = (*(i for i in range(rank) if i != axis), axis)
    moved = axis != rank - 1
    if moved:
        x = f.transpose(x, axes=(*order, rank) if is_complex else order)
    outer = tuple(shape[i] for i in order[:-1])
    rows = x.reshape((int(np.prod(outer, dtype=np.int64)), shape[axis], *((2,) if is_complex else ())))
    made = _rows(t, f, rows, points, t.scale(points, norm))
    pair = () if t.gives_real else (2,)
    made = made.reshape((*outer, t.kept(points), *pair))
    if moved:
        back = tuple(int(i) for i in np.argsort(order))
        made = f.transpose(made, axes=(*back, rank) if pair else back)
    return made if t.gives_real else made.as_complex()


def _rows(t: Transform, f: Any, x: Any, n: int, scale: float) -> Any:
    """The transform of the rows of x, [rows, width] or pairs of them, n points of each."""
    pairs = len(x.shape) == 3
    if t.gives_real:
        return _real_of(f, x if pairs else _as_pairs(f, x), n, scale)
    if t.real and n % 2 == 0 and radices(n // 2) is not None:
        return _by_passes(f, x, n, "rfft", scale=scale)
    keep = t.kept(n)
    if t.real and x.shape[1] >= n and prime.is_rader(n):
        return prime.transformed(f, functools.partial(_by_passes, f), x[:, :n] if n < x.shape[1] else x, n, scale)
    if radices(n) is None:
        return _convolved(f, x, n, keep, t.inverse, scale)
    form = "complex" if pairs else "from_real"
    return _by_passes(f, x, n, form, inverse=t.inverse, scale=scale, keep=keep)


def _real_of(f: Any, x: Any, n: int, scale: float) -> Any:
    """The inverse transform of the first n // 2 + 1 pairs of a spectrum of real numbers."""
    if n % 2 == 0 and radices(n // 2) is not None:
        return _by_passes(f, x, n, "irfft", scale=scale)
    width = min(x.shape[1], n // 2 + 1)
    x = x[:, :width]
    weights = np.full((width, 1), 2.0, x.dtype.numpy)  # each pair but the first, and the middle one, has a conjugate
    weights[0] = 1.0
    if n % 2 == 0 and width == n // 2 + 1:
        weights[-1] = 1.0
    x = x * weights
    if radices(n) is not None:
        return _by_passes(f, x, n, "to_real", inverse=True, scale=scale)
    return _convolved(f, x, n, n, True, scale)[:, :, 0]


def _by_passes(f: Any, x: Any, n: int, form: str, **attrs: Any) -> Any:
    """fft_rows with the attributes that differ from their defaults: array calls with one or two take microseconds less."""
    defaults = {"n": own_points(form, x.shape[1]), "form": "complex", "inverse": False, "scale": 1.0, "keep": n}
    given = {"n": n, "form": form, **attrs}
    others = {name: value for name, value in given.items() if value != defaults[name]}
    return f.fft_rows(x, table(form, n, as_dtype(x.dtype)), **others)


def _as_pairs(f: Any, x: Any) -> Any:
    """Real numbers [rows, width] as pairs, whose imaginary parts are 0."""
    return f.where(np.array([True, False]), x.reshape((*x.shape, 1)), 0.0)


# --- by a convolution --------------------------------------------------------------------------------------------------
def _convolved(f: Any, x: Any, n: int, keep: int, inverse: bool, scale: float) -> Any:
    dtype, m = as_dtype(x.dtype), padded(2 * n - 1)
    chirp, spectrum = _chirp(n, inverse)
    x = x[:, :n] if n < x.shape[1] else x
    form, real = ("complex", None) if len(x.shape) == 3 else ("from_real", n)
    product = f.fft_rows(x, table(form, m, dtype, chirp, spectrum), n=m, form=form, turn_in=True, turn_out=True)
    back = table("complex", m, dtype, chirp)
    return f.fft_rows(product, back, n=m, inverse=True, turn_out=True, scale=scale / m, keep=keep, real=real)


@functools.lru_cache(8)
def _chirp(n: int, inverse: bool) -> tuple[ops.Array, ops.Array]:
    """c, continued with zeros, and the spectrum of conj c[f - t], complex128."""
    t, m = np.arange(n, dtype=np.int64), padded(2 * n - 1)
    real, imaginary = roots((t * t % (2 * n)).astype(np.float64) / (2 * n))
    chirp, around = np.zeros(m, np.complex128), np.zeros(m, np.complex128)
    chirp[:n] = real + (-1j if inverse else 1j) * imaginary
    around[:n] = chirp[:n].conj()
    around[m - n + 1 :] = chirp[:n].conj()[:0:-1]
    return chirp, np.fft.fft(around)


# --- the ops -----------------------------------------------------------------------------------------------------------
# (shape, n, axis, norm): a length continued, a prime one, one cut
_CASES = (
    ((2, 9), 15, -1, None),
    ((37,), None, 0, "ortho"),
    ((3, 20, 2), 18, 1, "forward"),
)


def _samples(t: Transform) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(52)
    for i, (shape, n, axis, norm) in enumerate(_CASES):
        x = rng.normal(size=shape)
        if i != 1 and (t.inverse or not t.real):
            x = x + 1j * rng.normal(size=shape)
        narrow = x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)
        attrs = {"n": n, "axis": axis, "norm": norm}
        yield ops.Sample(f"{shape} n {n} axis {axis} {norm}", (x if i == 2 else narrow,), attrs)


def _error_samples(t: Transform) -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "one tensor x")
    yield ops.ErrorSample((x,), {"axis": 2}, "an axis from -2 to 1")
    yield ops.ErrorSample((x,), {"n": 0}, "n of 1 to")
    yield ops.ErrorSample((x,), {"norm": "unitary"}, "wanted norm backward, ortho, forward or None")
    yield ops.ErrorSample((TensorSpec((2, 8), as_dtype("i32")),), {}, "wanted x of f32")


def _op(t: Transform, formula: str) -> ops.Op:
    return ops.Op(
        name=t.name,
        formula=formula,
        parameters=Parameters("x", ATTRIBUTES),
        infer=functools.partial(_infer, t),
        reference=functools.partial(_reference, t),
        decompose=functools.partial(_decompose, t),
        samples=functools.partial(_samples, t),
        error_samples=functools.partial(_error_samples, t),
        tolerance={"f32": 1e-12, "f64": 1e-28, "complex64": 1e-12, "complex128": 1e-28},
    )


OPS = {
    "fft": _op(Transform("fft", False, False), "y[f] = s sum_t x[t] exp(-2 pi sqrt(-1) f t / n)"),
    "ifft": _op(Transform("ifft", True, False), "y[t] = s sum_f x[f] exp(2 pi sqrt(-1) f t / n)"),
    "rfft": _op(Transform("rfft", False, True), "fft of real x, f up to n / 2; real at 0 and n / 2"),
    "irfft": _op(Transform("irfft", True, True), "ifft where x[n - f] = conj x[f], a real result"),
}
