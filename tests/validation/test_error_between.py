"""error_between at magnitudes where float64 squares overflow or vanish."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.validation.validate import error_between

WANT = np.array([1.0, -2.0, 4.0, 0.5])
OFF = WANT * np.array([1.0, 1.0, 1.001, 1.0])


@pytest.mark.parametrize("scale", [1.0, 2.0**-1000, 2.0**-500, 2.0**500, 2.0**1000])
def test_the_error_is_relative_at_every_scale(scale: float) -> None:
    error = error_between(OFF * scale, WANT * scale, 1e-9)
    assert error == pytest.approx(error_between(OFF, WANT, 1e-9), rel=1e-12)
    assert 1e-7 < error < 1e-5
    assert error_between(WANT * scale, WANT * scale, 1e-9) == 0.0


def test_out_of_all_proportion_is_infinite_and_zeros_have_a_floor() -> None:
    assert error_between(np.full(4, 1e300), WANT, 1e-9) == float("inf")
    assert error_between(np.zeros(4), np.zeros(4), 1e-9) == 0.0
    assert error_between(np.full(4, 1e-3), np.zeros(4), 1e-9) > 1.0


def test_what_is_not_finite_must_be_equal() -> None:
    inf = np.array([1.0, np.inf])
    assert error_between(inf, inf, 1e-9) == 0.0
    assert error_between(np.array([1.0, np.nan]), inf, 1e-9) == float("inf")
    assert error_between(np.array([np.inf, np.inf]), inf, 1e-9) == float("inf")


def test_an_element_far_above_the_rest_may_be_off_in_proportion_to_itself() -> None:
    want = np.full(10_000, 0.1)
    want[7] = 100.0
    near, far, other = want.copy(), want.copy(), want.copy()
    near[7], far[7], other[8] = 100.9, 102.0, 1.2
    assert error_between(near, want, 1e-4) <= 1e-4
    assert error_between(far, want, 1e-4) > 1e-4
    assert error_between(other, want, 1e-4) > 1e-4  # its magnitude excuses no other
