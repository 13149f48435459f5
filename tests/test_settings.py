"""Settings: what the environment may say, and the one line where it says nonsense."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from camshaft.errors import SettingError
from camshaft.process import thread_count
from camshaft.settings import TABLE, Settings, settings


@pytest.mark.parametrize("text", ["0", "-1", "1025", "two", "1.5", "²", "9" * 5000, " 1"])
def test_a_wrong_number_of_threads_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_THREADS", text)
    with pytest.raises(SettingError, match=r"CAMSHAFT_THREADS=.*wanted an integer from 1 to 1024"):
        settings()


def test_unknown_activations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_ACTIVATIONS", "f64")
    with pytest.raises(SettingError, match="CAMSHAFT_ACTIVATIONS=f64: wanted auto, q8 or f32"):
        settings()


def test_a_folder_that_is_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path / "file"))
    with pytest.raises(SettingError, match=r"CAMSHAFT_DUMP=.*file: wanted a folder"):
        settings()
    monkeypatch.delenv("CAMSHAFT_DUMP")
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "file"))  # a cache that cannot be used stops nothing
    assert settings().cache_dir == tmp_path / "file"


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


def test_the_table_has_a_row_for_every_field_and_none_twice() -> None:
    assert [row.field for row in TABLE] == [f.name for f in fields(Settings)]
    assert len({row.variable for row in TABLE}) == len(TABLE)


def test_the_page_of_settings_is_current() -> None:
    root = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location("settings_page", root / "scripts" / "settings_page.py")
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(script)
    assert script.PAGE.read_text("utf-8") == script.page(), "run scripts/settings_page.py"


def test_every_variable_that_the_sources_name_is_in_the_table() -> None:
    root = Path(__file__).parents[1]
    named = {
        name
        for path in (root / "src").rglob("*.py")
        if "emit" not in path.relative_to(root).parts  # its words are macros of C
        for name in re.findall("CAMSHAFT_[A-Z_]+", path.read_text("utf-8"))
    }
    assert named == {row.variable for row in TABLE}


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("DEBUG", "6", "an integer from 0 to 5"),
        ("VALIDATE", "yes", "0 or 1"),
        ("INTERPRET", "true", "0 or 1"),
        ("OVERRIDE", "/not/there", "an existing folder"),
        ("TRACE", "/not/there/trace.json", "a file in an existing folder"),
        ("DUMP", __file__, "a folder"),
    ],
)
def test_a_setting_of_the_ladder_that_cannot_be_used_is_refused(
    variable: str, text: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"CAMSHAFT_{variable}", text)
    with pytest.raises(SettingError, match=f"CAMSHAFT_{variable}={text}: wanted {wanted}"):
        settings()


@pytest.mark.parametrize("threads", [0, 1025, "2", 1.5])
def test_threads_are_a_whole_number(threads) -> None:
    with pytest.raises(SettingError, match=f"^threads={threads!r}: wanted 1 to 1024$"):
        thread_count(threads)
