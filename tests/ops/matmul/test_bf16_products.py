"""`precision` "bf16x3" of matmul: what it computes and how exactly, its gradients, and that nothing else takes it."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.ops.op import Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.played_amx import device
from tests.support.needs import require_level
from tests.support.quick import full

OP = ops.get("matmul")
THREE = {"precision": "bf16x3"}
VARIANT = next(v for v in OP.variants if v.name == "bf16_products")


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("m", "k", "n", "transpose_b"),
    [
        (33, 31, 33, True),
        (32, 31, 32, False),
        full(32, 33, 31, False),
        full(65, 64, 32, True),
        full(32, 530, 131, False),
    ],
)
def test_halves_of_ragged_sizes_are_multiplied_on_amx(m: int, k: int, n: int, transpose_b: bool) -> None:
    require_level("avx512-bf16")
    b = drawn(n, k) if transpose_b else drawn(k, n)
    checked = check_sample(OP, VARIANT, device(), Sample("", (drawn(m, k), b), THREE | {"transpose_b": transpose_b}))
    assert 1e-13 < checked.max_error <= checked.tolerance  # 1e-13: two products more than f32 alone


def test_active_rows_have_the_bits_that_all_rows_have() -> None:
    require_level("avx512-bf16")
    rows, a, b = Extent("rows", 70), drawn(70, 40), drawn(40, 33)
    specs = TensorSpec((rows, 40), cs.dtypes.f32), TensorSpec((40, 33), cs.dtypes.f32)
    node = node_of(OP, Sample("", (a, b), THREE, specs))
    (whole,) = run_variant(VARIANT, node, device(), (a, b), {rows: 70})
    for n in (1, 33, 69):
        (found,) = run_variant(VARIANT, node, device(), (a, b), {rows: n})
        np.testing.assert_array_equal(found[:n], whole[:n])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinity_becomes_nan_and_stays_in_its_row() -> None:
    require_level("avx512-bf16")
    a, b = drawn(40, 32), drawn(32, 32)
    a[3, 5], a[7, 1], a[9, 9] = np.inf, np.nan, 3.4e38
    (found,) = run_variant(VARIANT, node_of(OP, Sample("", (a, b), THREE)), device(), (a, b), {})
    assert np.isnan(found[[3, 7, 9]]).all()
    assert np.isfinite(np.delete(found, [3, 7, 9], axis=0)).all()


def test_gradients_have_the_products_precision() -> None:
    def precisions(a: str, to: str) -> list[str]:
        graph = cs.Graph()
        x, w = graph.input("x", (4, 6), a), graph.input("w", (6, 5), a)
        attrs = THREE if a == "f32" else {}
        graph.gradients(cs.sum(cs.cast(cs.matmul(x, w, to=to, **attrs), to="f32")), [x, w])
        return [node.attrs.get("precision", "f32") for node in graph.nodes if node.op is OP]

    assert precisions("f32", "f32") == ["bf16x3"] * 3
    assert precisions("f32", "bf16") == ["bf16x3", "f32", "f32"]  # the gradient of the result is of bf16
    assert precisions("bf16", "f32") == ["f32"] * 3


def test_it_is_allowed_and_not_demanded() -> None:
    a, b = drawn(5, 6), drawn(6, 7)
    assert cs.matmul(a, b, precision="bf16x3").tobytes() == cs.matmul(a, b).tobytes()  # too few rows for it
    with pytest.raises(ShapeError, match="wanted a precision of f32 or bf16x3"):
        cs.matmul(a, b, precision="tf32")
