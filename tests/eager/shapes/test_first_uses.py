"""A product of a new shape runs a kernel for all shapes first, then the chosen one, with the same bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from camshaft import DispatchTable, ops
from camshaft.backends.cpu.device import counts
from camshaft.eager import elementwise_call
from camshaft.eager.shapes import runners
from camshaft.eager.shapes.shaped_call import FIRST_USES, node_of
from tests.support.how_to_validate import same_process

__all__ = ["same_process"]

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
# Shapes for which the cost model chooses skinny, tiled and blocked, batches among them.
SHAPES = (
    ((2, 9), (9, 100)),
    ((40, 30), (30, 50)),
    ((17, 200), (200, 70)),
    ((2, 1, 9, 20), (3, 20, 41)),
)


def draw(shape: tuple[int, ...], dtype: Any) -> Array:
    return RNG.normal(size=shape).astype(np.float32).astype(dtype)


def steps(t: DispatchTable, a: Array, b: Array) -> list[str]:
    """The names of the kernels of the remembered call."""
    op = t.matmul.__self__  # type: ignore[attr-defined]
    prepared = op.known((((a.shape, a.dtype), (b.shape, b.dtype)), ()))
    return [step.code.name for step in prepared.run.steps]


FULL = [pytest.param(dtype, marks=pytest.mark.full) for dtype in (np.float16, ml_dtypes.bfloat16)]


@pytest.mark.parametrize("dtype", [np.float32, *FULL])
def test_first_uses_have_the_bits_of_the_chosen_kernel(dtype: Any) -> None:
    t = DispatchTable("simd")
    for shapes in SHAPES:
        a, b = (draw(shape, dtype) for shape in shapes)
        first = t.matmul(a, b)
        names = steps(t, a, b)
        for _ in range(FIRST_USES):
            again = t.matmul(a, b)
            assert again.tobytes() == first.tobytes()
        if dtype == np.float32:
            assert names == ["weights_by_column"] != steps(t, a, b)


def test_new_shapes_of_products_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runners, elementwise_call):  # workers load code of their own
        monkeypatch.setattr(module, "eager_threads", lambda: 1)
    t = DispatchTable("simd")
    for shape in (
        ((3, 4), (4, 5)),
        ((40, 30), (30, 50)),
        ((2, 9), (9, 100)),
        ((2, 3, 4), (2, 4, 5)),
        ((30, 40), (40, 1)),
    ):
        t.matmul(*(draw(s, np.float32) for s in shape))

    def kernels_of(calls: int) -> int:
        before = counts.compiled + counts.loaded
        for _ in range(calls):
            m, k, n = (int(size) for size in RNG.integers(2, 60, 3))
            a, b = draw((m, k), np.float32), draw((k, n), np.float32)
            np.testing.assert_allclose(t.matmul(a, b), a.astype(float) @ b, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(t.matmul(a[None], b[None])[0], a.astype(float) @ b, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(t.matmul(a, b[:, :1].copy()), a.astype(float) @ b[:, :1], rtol=1e-4, atol=1e-4)
        return counts.compiled + counts.loaded - before

    kernels_of(10)  # the variants' kernels for all shapes
    assert kernels_of(20) <= 4


def test_other_orders_of_sums_have_no_first_use() -> None:
    op = ops.get("matmul")
    variants = {v.name: v for v in op.variants}
    deep = node_of(op, [draw((300, 1100), np.float32), draw((1100, 80), np.float32)], {})
    turned = node_of(op, [draw((30, 40), np.float32), draw((50, 40), np.float32)], {"transpose_b": True})
    column = node_of(op, [draw((30, 40), np.float32), draw((40, 1), np.float32)], {})
    assert op.first_use(deep, variants["blocked"]) is None
    assert op.first_use(turned, variants["tiled"]) is None
    assert op.first_use(column, variants["skinny"]) is None
    assert op.first_use(column, variants["blas"]) is None
    assert op.first_use(deep, variants["tiled"]) is variants["lanes"]
