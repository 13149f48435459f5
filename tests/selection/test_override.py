"""Overrides take effect or fail with a reason; the order is context, process, environment."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from camshaft.backends.blas import library
from camshaft.backends.registry import device
from camshaft.errors import BackendError, MissingExtraError
from camshaft.selection import override
from camshaft.selection.override import backend, get_backend_override, set_backend_override
from camshaft.validation.cases import all_cases
from camshaft.validation.evidence import ValidationResult, validation_cache


def test_nothing_is_asked_for_at_first() -> None:
    assert get_backend_override() is None


def test_context_over_process_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_BACKEND", "scalar")
    assert get_backend_override() == "scalar"
    set_backend_override("simd")
    assert get_backend_override() == "simd"
    with backend("cpu:scalar"):
        assert get_backend_override() == "scalar"
        with backend(None):
            assert get_backend_override() is None
        assert get_backend_override() == "scalar"
    set_backend_override(None)
    assert get_backend_override() == "scalar"


def test_another_thread_does_not_see_the_context() -> None:
    seen: list[str | None] = []
    with backend("scalar"):
        thread = threading.Thread(target=lambda: seen.append(get_backend_override()))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize("ask", [set_backend_override, lambda name: backend(name).__enter__()])
def test_unknown_and_absent_names_are_refused(ask) -> None:
    with pytest.raises(
        BackendError,
        match="no backend or device 'avx'; wanted one of scalar, simd, blas, c, webgpu, cuda, metal, null, cpu",
    ):
        ask("avx")
    with pytest.raises(BackendError, match="backend 'metal' is absent: "):
        ask("metal")
    assert get_backend_override() is None


@pytest.mark.parametrize("name", [None, 3, b"cpu"])
def test_a_device_has_a_name(name) -> None:
    with pytest.raises(BackendError, match=r"no backend or device .*; wanted a name, as 'cpu' or 'webgpu:1'"):
        device(name)


@pytest.mark.parametrize("number", ["00", "01", "-1", "1.5", "\u0661", "\u00b2", "9" * 5000])
def test_a_number_has_one_spelling_so_that_a_device_is_made_once(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.backends.webgpu.device.absent", lambda: None)
    with pytest.raises(BackendError, match="wanted webgpu or webgpu:NUMBER"):
        device(f"webgpu:{number}")


def test_the_environment_is_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_BACKEND", "quantum")
    with pytest.raises(BackendError, match="CAMSHAFT_BACKEND=quantum: no backend or device 'quantum'"):
        get_backend_override()


def test_blas_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "openblas_path", lambda: None)
    monkeypatch.setattr(library.sys, "platform", "linux")
    library.blas_library.cache_clear()
    with pytest.raises(MissingExtraError, match=r"scipy-openblas32.*camshaft\[blas\]"):
        set_backend_override("blas")
    library.blas_library.cache_clear()


def test_a_backend_is_refused_when_all_that_it_claims_failed_its_proof(cache: Path) -> None:
    first, *others = all_cases("scalar")
    failed = {c: ValidationResult(c.op, c.variant, "scalar", "failed", "error 1 above 0") for c in (first, *others)}
    validation_cache().add({case: failed[case] for case in others})
    assert override.check_override("scalar") == "scalar", "one was not tried yet"
    validation_cache().add({first: ValidationResult(first.op, first.variant, "scalar", "proved", "")})
    assert override.check_override("scalar") == "scalar", "one is right"
    validation_cache().add(failed)
    wanted = f"'scalar' failed validation: all {len(failed)} kernels did; {first.op}/{first.variant}: error 1 above 0"
    with pytest.raises(BackendError, match=re.escape(wanted)):
        override.check_override("scalar")
    assert override.check_override("simd") == "simd"
