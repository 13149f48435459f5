"""matmul by BLAS: by pointer, on slices, in one thread; NumPy's BLAS is not touched."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends import registry
from camshaft.backends.blas import library, trampoline
from camshaft.backends.registry import backend_named, backends
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.graph import functions
from camshaft.graph.graph import Graph
from camshaft.ops.matmul import blas
from camshaft.ops.op import Sample
from camshaft.plan.compile import compile
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of

OP = ops.get("matmul")
VARIANTS = [v for v in OP.variants if "blas" in v.backends]
needs_blas = pytest.mark.skipif(library.absent() is not None, reason="no BLAS here")


@needs_blas
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_blas_variants_agree_with_the_reference(variant) -> None:
    device = registry.device("blas")
    checked = 0
    for sample in OP.samples():
        if variant.supports(node_of(OP, sample), device) is None:
            result = check_sample(OP, variant, device, sample)
            assert result.max_error <= result.tolerance, sample.name
            checked += 1
    assert checked > 30


@needs_blas
def test_slices_cover_more_than_one_block_of_rows_and_columns() -> None:
    rng, device = np.random.default_rng(4), registry.device("blas")
    a, b = (
        rng.normal(size=shape).astype(np.float32) for shape in ((blas.LEAST_ROWS + 3, 40), (blas.WHOLE_COLUMNS + 1, 40))
    )
    sample = Sample("several slices", (a, b), {"transpose_b": True})
    node = node_of(OP, sample)
    build = VARIANTS[0].build(node, device)
    assert [-(-cells.dim // cells.per) for cells in build.launches[-1].grid] == [1, 2, 9]
    result = check_sample(OP, VARIANTS[0], device, sample)
    assert result.max_error <= result.tolerance


@needs_blas
def test_what_the_output_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some BLAS multiply by beta = 0, and 0 times NaN is NaN."""
    from camshaft.validation import run

    monkeypatch.setattr(run, "GUARD_BYTE", 0xFF)  # NaN as f32
    a, b = np.ones((1, 40), np.float32), np.ones((40, 30), np.float32)
    for first, second in ((a, b), (np.ones((9, 40), np.float32), b)):
        node = node_of(OP, Sample("", (first, second)))
        (out,) = run_variant(VARIANTS[0], node, registry.device("blas"), (first, second))
        assert (out == 40).all()


@pytest.mark.parametrize("name", ["scalar", "simd", pytest.param("blas", marks=needs_blas)])
@pytest.mark.parametrize("bound", [5, 300])
def test_a_plan_multiplies_the_active_rows_alike_for_any_thread_count(name: str, bound: int) -> None:
    rng, rows = np.random.default_rng(5), Extent("rows", bound)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((bound, 70), (150, 70)))
    results = []
    for threads in (1, 2):
        graph = Graph()
        graph.output("y", functions.matmul(graph.input("x", (rows, 70), "f32"), w, transpose_b=True))
        with compile(graph, backend=name, threads=threads) as plan:
            assert f"matmul/{'blas' if name == 'blas' else ''}" in plan.explain()
            for active in (bound, 3, bound - 1):
                y = plan.run(x=x[:active])["y"]
                np.testing.assert_allclose(y, x[:active] @ w.T, rtol=1e-4, atol=1e-4)
                results.append(y.tobytes())
    assert results[:3] == results[3:]


@needs_blas
def test_our_library_runs_one_thread_and_is_not_numpys() -> None:
    found = library.blas_library()
    assert found.threads in (1, None)
    assert found is library.blas_library()
    assert "numpy" not in found.path


def test_the_text_names_no_address_and_no_size() -> None:
    assert trampoline.llvm_ir("s", extent=True) != trampoline.llvm_ir("s", extent=False)
    words = trampoline.Slices(3, 5, 7, True, 2, 4).words(0x1234, [(0, 0), (21, 35)])
    assert words.tolist() == [3, 5, 7, 112, 2, 4, 7, 0x1234, 0, 0, 21, 35]


def test_a_package_without_its_library_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "lib").mkdir()
    spec = importlib.util.spec_from_file_location("scipy_openblas32", tmp_path / "__init__.py")
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(BackendError, match="its library is not there"):
        library.openblas_path()
    (tmp_path / "lib" / "libscipy_openblas.so").write_bytes(b"no library")
    with pytest.raises(BackendError, match="does not load"):
        library._open_openblas(library.openblas_path())


def test_the_registry_names_what_there_is() -> None:
    assert list(backends()) == ["scalar", "simd", "blas", "c", "webgpu", "cuda", "metal", "null"]
    assert backend_named("cpu").name == "simd"
    assert registry.device("cpu:scalar").lanes == 1
    with pytest.raises(BackendError, match="wanted one of scalar, simd, blas"):
        backend_named("SIMD")
    with pytest.raises(BackendError, match="wanted one of scalar"):
        backend_named("cpu:9")


def test_evidence_depends_on_the_library_and_its_core() -> None:
    if library.absent() is None:
        found = library.blas_library()
        assert replace(found, core="another").key() != found.key()
