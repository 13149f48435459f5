"""Overrides of the table: context-local, obeyed by every op that they speak of, or refused with the reason; single kernels."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import camshaft as cs
from camshaft import DispatchTable, backend, get_dispatch_table, init_dispatch_table, select_kernels, table
from camshaft.backends.registry import backend_named
from camshaft.errors import BackendError, CamshaftError
from camshaft.validation.evidence import BackendValidation, ValidationResult, summary

RNG = np.random.default_rng(6)
NAMES = ["scalar", "simd", "blas", "webgpu", "cuda", "metal"]


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_an_override_takes_effect_in_every_op_it_speaks_of_or_says_why_not(name: str) -> None:
    reason = backend_named(name).absent()
    if reason is not None:
        with pytest.raises(CamshaftError, match=r"absent|pip install"), backend(name):
            pass
        with pytest.raises(CamshaftError, match=r"absent|pip install"):
            table(name)
        return
    a, b = draw(5, 7), draw(7, 3)
    with backend(name):
        chosen = {
            "matmul": table().choice("matmul", a, b).backend,
            "add": table().choice("add", a, a).backend,
            "softmax": table().choice("softmax", a).backend,
            "dot": table().choice("dot", a[0], a[1]).backend,
        }
        np.testing.assert_allclose(table().dot(a[0], a[1]), a[0] @ a[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(table().matmul(a, b), a @ b, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(table().add(a, a), a + a, rtol=1e-6)
    assert chosen["matmul"] == chosen["dot"] == name
    assert {chosen["add"], chosen["softmax"]} == {"simd" if name == "blas" else name}


def test_threads_do_not_disturb_each_other() -> None:
    seen: dict[str, set[str | None]] = {"scalar": set(), "simd": set()}
    turn = threading.Barrier(2, timeout=60)

    def work(name: str) -> None:
        with backend(name):
            for _ in range(20):
                turn.wait()
                seen[name].add(table().override)
                turn.wait()
                seen[name].add(table().choice("add", draw(2), draw(2)).backend)

    threads = [threading.Thread(target=work, args=(name,)) for name in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"scalar": {"scalar"}, "simd": {"simd"}}
    assert table().override is None


def test_tasks_do_not_disturb_each_other() -> None:
    async def work(name: str, seen: list[str | None]) -> None:
        with backend(name):
            for _ in range(5):
                seen.append(table().override)
                await asyncio.sleep(0)

    async def both() -> dict[str, list[str | None]]:
        seen: dict[str, list[str | None]] = {"scalar": [], "simd": []}
        await asyncio.gather(*(work(name, found) for name, found in seen.items()))
        assert table().override is None
        return seen

    assert asyncio.run(both()) == {"scalar": ["scalar"] * 5, "simd": ["simd"] * 5}


def test_a_table_once_held_never_changes() -> None:
    held, a = table(), draw(4, 4)
    add = held.add
    with backend("scalar"):
        assert held.override is None
        assert held.choice("add", a, a).backend == "simd"
        assert held.add is add
        assert table().add is not add


def test_tables_are_made_once_by_many_threads() -> None:
    made: list[DispatchTable] = []
    threads = [threading.Thread(target=lambda: made.append(init_dispatch_table())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, made))) == 1
    assert made[0] is table() is get_dispatch_table()
    assert set(made[0].ops) <= set(vars(made[0]))
    assert len({id(getattr(t, "add")) for t in made}) == 1  # noqa: B009 - each table's own attribute


def validation(*proved: tuple[str, str]) -> dict[str, BackendValidation]:
    results = [ValidationResult(op, variant, "simd", "proved") for op, variant in proved]
    return {"simd": summary("simd", results, None)}


def test_selected_kernels_are_those_that_were_proved() -> None:
    a = draw(3, 4)
    name = table().choice("softmax", a).variant.name
    chosen = select_kernels(validation(("softmax", name)))
    np.testing.assert_allclose(chosen.softmax(a).sum(-1), 1, rtol=1e-5)
    assert chosen is not table()
    with pytest.raises(BackendError, match=r"add of .*is not among what the validation proved"):
        chosen.add(a, a)


def test_measurements_choose() -> None:
    a, b = draw(40, 40), draw(40, 40)
    everything = validation(("matmul", "lanes"), ("matmul", "tiled"))
    for wanted in ("lanes", "tiled"):
        chosen = select_kernels(everything, lambda case, node, wanted=wanted: 1.0 if case.variant == wanted else 2e9)
        assert chosen.choice("matmul", a, b).variant.name == wanted
        np.testing.assert_allclose(chosen.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "where"),
    [("scalar", "scalar"), ("simd", "simd"), ("blas_direct", "blas"), ("webgpu", "webgpu"), ("metal", "metal")],
)
def test_single_products(name: str, where: str) -> None:
    function, a, b = getattr(cs, f"kernel_matmul_{name}"), draw(5, 7), draw(7, 3)
    assert function.__name__ == f"kernel_matmul_{name}"
    if backend_named(where).absent() is not None:
        with pytest.raises(CamshaftError, match=r"absent|pip install"):
            function(a, b)
        return
    out = np.empty((5, 3), np.float32)
    assert function(a, b, out=out) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


def test_single_kernels_by_name() -> None:
    a, b = draw(3, 5), draw(3, 5)
    for function in (cs.kernel_elementwise_simd, cs.dispatch_elementwise_generic):
        np.testing.assert_array_equal(function("multiply", a, b), a * b)
        with pytest.raises(BackendError, match="no elementwise op 'softmax'"):
            function("softmax", a)
        with pytest.raises(BackendError, match="no elementwise op 'blend'"):
            function("blend", a)
    np.testing.assert_allclose(cs.kernel_reduction_simd("sum", a, axes=0), a.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(cs.kernel_reduction_simd("max", a), a.max())
    with pytest.raises(BackendError, match="no reduction 'add'; wanted one of"):
        cs.kernel_reduction_simd("add", a)
