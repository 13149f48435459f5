"""Settings: what the environment may say, and the one line where it says nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.errors import SettingError
from camshaft.settings import settings, thread_count


@pytest.mark.parametrize("text", ["0", "-1", "1025", "two", "1.5", "²", "9" * 5000, " 1"])
def test_a_wrong_number_of_threads_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_THREADS", text)
    with pytest.raises(SettingError, match=r"CAMSHAFT_THREADS=.*wanted a whole number from 1 to 1024"):
        settings()


def test_unknown_activations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_ACTIVATIONS", "f64")
    with pytest.raises(SettingError, match="CAMSHAFT_ACTIVATIONS=f64: wanted auto, q8 or f32"):
        settings()


def test_a_cache_folder_that_is_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(SettingError, match=r"CAMSHAFT_CACHE_DIR=.*file: wanted a folder"):
        settings()


def test_what_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE_DIR", "BACKEND", "THREADS", "ACTIVATIONS"):
        monkeypatch.delenv(f"CAMSHAFT_{name}", raising=False)
    unset = settings()
    for name in ("CACHE_DIR", "BACKEND", "THREADS", "ACTIVATIONS"):
        monkeypatch.setenv(f"CAMSHAFT_{name}", "")
    assert settings() == unset
    assert (unset.backend, unset.threads, unset.activations) == (None, None, "auto")


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_THREADS", "3")
    assert (thread_count(), thread_count(5)) == (3, 5)
    for wrong in (0, 1025):
        with pytest.raises(SettingError, match="wanted 1 to 1024"):
            thread_count(wrong)
