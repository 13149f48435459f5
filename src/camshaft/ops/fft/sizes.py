"""The forms and the sizes of fft_rows, and its table of factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from camshaft.dtypes import DType, f32, f64
from camshaft.ops import op as ops
from camshaft.ops.checks import expect_tensor
from camshaft.ops.fft.factors import factors, radices
from camshaft.ops.spec import TensorSpec

MOST_POINTS = 1 << 28  # of a transform: its table of factors has 16 bytes for each

NAME = "fft_rows"
# What a form reads and makes: 'pairs' or 'real'.
FORMS = {
    "complex": ("pairs", "pairs"),
    "from_real": ("real", "pairs"),
    "to_real": ("pairs", "real"),
    "rfft": ("real", "pairs"),
    "irfft": ("pairs", "real"),
}
HALVED = ("rfft", "irfft")


@dataclass(frozen=True)
class Sizes:
    """A transform's numbers: `points` of its passes, `width` real numbers of a row that it reads, `keep` elements made,
    the spectrum of `real` real numbers or of others."""

    form: str
    n: int
    points: int
    rows: int
    width: int
    keep: int
    inverse: bool
    scale: float
    before: int = 0
    after: int = 0
    real: int = 0

    @property
    def makes(self) -> str:
        return FORMS[self.form][1]


def sizes_of(specs: Sequence[TensorSpec], attrs: ops.Attrs) -> Sizes:
    """The sizes of a transform. ShapeError for what it cannot be."""
    ops.expect(len(specs) == 2, NAME, tuple(specs), "x and its table of factors")
    x, form = specs[0], attrs.get("form", "complex")
    ops.expect(form in FORMS, NAME, f"form {form!r}", f"a form of {', '.join(FORMS)}")
    expect_tensor(NAME, x, (f32, f64))
    pairs = FORMS[form][0] == "pairs"
    rank = 3 if pairs else 2
    fits = len(x.shape) == rank and (not pairs or x.bounds[2] == 2) and isinstance(x.shape[0], int)
    ops.expect(fits, NAME, x, "x [rows, width, 2]" if pairs else "x [rows, width]")
    n, halves = attrs.get("n"), 2 if form in HALVED else 1
    n = own_points(form, x.bounds[1]) if n is None else n
    fits = isinstance(n, int) and 0 < n <= MOST_POINTS and n % halves == 0 and radices(n // halves) is not None
    even = "even " if halves == 2 else ""
    ops.expect(fits, NAME, f"n {n!r}", f"n of {even}points without a prime factor above 13, at most {MOST_POINTS}")
    assert isinstance(n, int)
    most = n // 2 + 1 if form == "rfft" else n
    keep = attrs.get("keep") or most
    fits = isinstance(keep, int) and 0 < keep <= most and (keep == most or form not in HALVED)
    ops.expect(fits, NAME, f"keep {keep!r}", f"keep of 1 to {most}")
    real = real_points(form, n, attrs)
    fits = real == 0 or (0 < real <= n and FORMS[form][1] == "pairs" and halves == 1)
    ops.expect(fits, NAME, f"real {real!r} with {form}", f"real up to {n}, with pairs made")
    own, turned = table(form, n, f32).shape[1], [bool(attrs.get(name)) for name in ("turn_in", "turn_out")]
    ops.expect(not any(turned) or halves == 1, NAME, f"turn_in or turn_out with {form}", "neither for rfft and irfft")
    wanted = TensorSpec((2, own + n * sum(turned)), x.dtype)
    ops.expect(specs[1] == wanted, NAME, specs[1], f"the table of factors, {wanted}")
    inverse, width = bool(attrs.get("inverse")), int(np.prod(x.bounds[1:]))
    before, after = own * turned[0], (own + n * turned[0]) * turned[1]
    scale = attrs.get("scale", 1.0)
    return Sizes(form, n, n // halves, x.bounds[0], width, keep, inverse, scale, before, after, real)


def real_points(form: str, n: int, attrs: ops.Attrs) -> int:
    """The number of real numbers whose spectrum is made, with its parts as they are; 0 for other spectra."""
    own = form == "from_real" and not attrs.get("turn_in") and not attrs.get("turn_out")
    return attrs.get("real") or (n if own else 0)


def own_points(form: str, width: int) -> int:
    """The default number of points for rows of this many elements."""
    return 2 * (width - 1) if form == "irfft" else width


def real_at(n: int) -> list[int]:
    """Where the spectrum of n real numbers is real."""
    return [0] if n % 2 else [0, n // 2]


def complex_at(n: int, keep: int) -> ops.Array:
    """Which parts of the first `keep` pairs of such a spectrum may differ from 0."""
    found = np.ones((n, 2), np.bool_)
    found[real_at(n), 1] = False
    return found[:keep]


def table(form: str, n: int, dtype: DType, *turned: ops.Array) -> ops.Array:
    """The table of factors of a form of n points, and complex factors [n] of what is read or made."""
    found = factors(n // 2, n) if form in HALVED else factors(n)
    return np.concatenate([found, *(np.stack([t.real, t.imag]) for t in turned)], 1).astype(dtype.numpy)
