"""triangular_solve and cholesky: what they do not read, and torch's results."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops, table


def test_the_other_triangle_is_not_read() -> None:
    a = np.where(np.tri(9, dtype=bool), np.eye(9) + 0.1, np.nan).astype(np.float32)
    x = table().triangular_solve(a, np.ones((9, 2), np.float32))
    np.testing.assert_allclose(np.nan_to_num(a) @ x, np.ones((9, 2)), rtol=1e-6)


def test_a_unit_diagonal_is_not_read() -> None:
    a = np.tri(9, k=-1) * 0.5 + np.diag(np.full(9, np.nan))
    x = table().triangular_solve(a, np.ones((9, 2)), unit_diagonal=True)
    np.testing.assert_allclose((np.tri(9, k=-1) * 0.5 + np.eye(9)) @ x, np.ones((9, 2)), rtol=1e-12)


def test_a_factor_times_itself_is_the_matrix() -> None:
    x = np.random.default_rng(0).normal(size=(3, 20, 20))
    a = x @ x.transpose(0, 2, 1) + 20 * np.eye(20)
    found = table().cholesky(a)
    np.testing.assert_allclose(found, np.linalg.cholesky(a), rtol=1e-12, atol=1e-14)


@pytest.mark.oracle
def test_references_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    for sample in ops.get("triangular_solve").samples():
        (a, b), attrs = (x.astype(np.float64) for x in sample.inputs), sample.attrs
        options = {"upper": not attrs.get("lower", True), "unitriangular": attrs.get("unit_diagonal", False)}
        expected = torch.linalg.solve_triangular(torch.from_numpy(a), torch.from_numpy(b), **options)
        np.testing.assert_allclose(
            ops.get("triangular_solve").reference((a, b), attrs)[0], expected, rtol=1e-9, atol=1e-12
        )
