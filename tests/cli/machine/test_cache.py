"""`camshaft cache` and `camshaft cache clear`: output, removal, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camshaft.store import objects
from camshaft.store.store import Store, store

KEYS = tuple(f"{i:064x}" for i in range(1, 6))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with three objects under five names, evidence and a model."""
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CAMSHAFT_CACHE_SIZE", "16M")
    made = store()
    for key in KEYS[:3]:
        made.kernels.objects.put(key, b"machine code")
    for i, key in enumerate(KEYS):
        made.kernels.keys.put(key, KEYS[i % 3].encode())
    made.evidence.put(KEYS[0], {"verdicts": {}})
    made.kernels.object(KEYS[0])
    made.kernels.object("f" * 64)
    made.flush_counters()
    (made.models_dir / "hf").mkdir(parents=True)
    (made.models_dir / "hf" / "a.gguf").write_bytes(bytes(1000))
    pull = made.models_dir / ".unfinished"
    pull.mkdir()
    (pull / "b.gguf").write_bytes(bytes(10))
    return made


def test_every_kind_is_shown_apart(cli: Any, kept: Store) -> None:
    report = json.loads(cli("cache", "--json").stdout)
    assert report["cache_dir"] == str(kept.root)
    rows = report["kinds"]
    assert list(rows) == ["objects", "evidence", "measurements", "schedules", "headers", "prompts", "packed", "models"]
    found = {kind: (row["n_entries"], row["nbytes"] > 0, row["hits"], row["misses"]) for kind, row in rows.items()}
    assert found["objects"] == (3, True, 1, 1)
    assert found["evidence"] == (1, True, 0, 0)
    assert found["measurements"] == (0, False, 0, 0)
    assert found["models"] == (1, True, None, None)
    assert (rows["objects"]["n_names"], rows["objects"]["max_nbytes"]) == (5, 16 * 10**6)
    lines = [line.split() for line in cli("cache").stdout.splitlines()]
    assert lines[0] == ["entries", "size", "at", "most", "hits", "misses"]
    assert lines[1][:2] == ["objects", "3"]
    assert lines[1][-2:] == ["1", "1"]
    assert lines[8] == ["models", "1", "1.0", "kB"]


def test_an_empty_cache_is_shown_and_cleared_without_being_made(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "none"))
    assert "objects             0  0 bytes" in cli("cache").stdout
    assert cli("cache", "clear").exit_code == 0
    assert not (tmp_path / "none").exists()


def test_clear_leaves_the_models(cli: Any, kept: Store) -> None:
    removed = json.loads(cli("cache", "clear", "--json").stdout)["removed"]
    counted = {kind: row["n_entries"] for kind, row in removed.items()}
    assert counted == {
        "objects": 3,
        "evidence": 1,
        "measurements": 0,
        "schedules": 0,
        "headers": 0,
        "prompts": 0,
        "packed": 0,
    }
    left = {kind: row["n_entries"] for kind, row in json.loads(cli("cache", "--json").stdout)["kinds"].items()}
    assert left == {
        "objects": 0,
        "evidence": 0,
        "measurements": 0,
        "schedules": 0,
        "headers": 0,
        "prompts": 0,
        "packed": 0,
        "models": 1,
    }
    assert list((kept.root / "keys").iterdir()) == list((kept.root / "objects").iterdir()) == []
    assert json.loads(cli("cache", "--json").stdout)["kinds"]["objects"]["hits"] == 0


def test_clear_removes_what_is_named_and_no_more(cli: Any, kept: Store) -> None:
    assert cli("cache", "clear", "models").stdout.split() == ["models", "1", "removed", "1.0", "kB"]
    assert not (kept.models_dir / "hf" / "a.gguf").exists()
    assert (kept.models_dir / ".unfinished" / "b.gguf").exists()
    assert kept.kernels.object(KEYS[0]) == b"machine code"
    cli("cache", "clear", "evidence")
    assert (kept.evidence.get(KEYS[0]), kept.kernels.second(KEYS[4])) == (None, KEYS[1])


def one_line(result: Any, *words: str) -> None:
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("camshaft: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["cache", "clear", "model"],
            ("no kind 'model'", "objects, evidence, measurements, schedules, headers, prompts, packed, models"),
        ),
        (["cache", "clear", "objects", "../models"], ("no kind '../models'",)),
        (["cache", "empty"], ("no such command 'empty'", "camshaft cache --help")),
        (["cache", "--json", "clear"], ("--json comes after",)),
    ],
)
def test_what_is_not_known_is_one_line_and_removes_nothing(cli: Any, kept: Store, arguments: Any, words: Any) -> None:
    one_line(cli(*arguments), *words)
    assert kept.kernels.object(KEYS[0]) is not None


@pytest.mark.parametrize("text", ["1M", "0", "-1", "16MB", "lots", "2.5G", "9" * 40, "999999999T"])
def test_a_bound_of_nonsense_is_one_line(cli: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_SIZE", text)
    one_line(cli("cache"), f"CAMSHAFT_CACHE_SIZE={text}: ", "512M")


def removing(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int) -> None:
    """Removing an entry raises the error once so many were removed."""
    unlink: Callable[..., None] = Path.unlink
    done: list[Path] = []

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if len(done) == after:
            raise error
        done.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)


def test_an_interrupted_clear_leaves_whole_entries(cli: Any, kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        removing(patched, KeyboardInterrupt(), 3)
        assert cli("cache", "clear").exit_code == 130
    left = [entry for part in kept.parts.values() for entry in part.entries()]
    assert len(left) == 9 - 3
    assert all(kept.kernels.object(key) == b"machine code" for key in KEYS[:3])
    assert cli("cache", "clear").exit_code == 0
    assert [entry for part in kept.parts.values() for entry in part.entries()] == []


@pytest.mark.skipif(os.name == "nt", reason="messages of POSIX")
def test_a_folder_that_cannot_be_changed_is_one_line(cli: Any, kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    removing(monkeypatch, PermissionError(13, "Permission denied"), 1)
    one_line(
        cli("cache", "clear"), str(kept.root / "keys"), "cannot be removed: permission denied", "CAMSHAFT_CACHE_DIR"
    )


def test_files_in_the_folders_places(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path))
    (tmp_path / "objects").write_text("no folder")
    assert cli("cache").exit_code == 0
    assert cli("cache", "clear").exit_code == 0
    assert (tmp_path / "objects").read_text() == "no folder"


@pytest.mark.soak
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on a file's size there")
def test_doctor_on_a_full_disk_proves_and_leaves_no_verdict(tmp_path: Path) -> None:
    import resource

    def no_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    source = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environment = os.environ | {"CAMSHAFT_CACHE_DIR": str(tmp_path), "PYTHONPATH": source}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode cut short would break every later process
    command = [sys.executable, "-m", "camshaft.cli", "doctor"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, env=environment, text=True, preexec_fn=no_files, timeout=1200, **pipes)
    said = [line for line in done.stderr.splitlines() if "cannot be written" in line]
    assert (done.returncode, len(said)) == (0, 1)
    assert said[0].endswith("cannot be written: file too large (CAMSHAFT_CACHE_DIR moves the cache)")
    assert "proved" in done.stdout
    assert list((tmp_path / "evidence").glob("*/*")) == []


def test_the_bound_is_held_over_processes(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds less than makes it list the store; the sum does."""
    monkeypatch.setattr(objects, "_LIST_FRACTION", 1)
    monkeypatch.setattr(kept.objects, "max_nbytes", 3000)
    listings: list[object] = []
    monkeypatch.setattr(kept.objects, "evict", lambda: listings.append(None))
    for i in range(4):
        kept.objects.put(f"{i:064x}", bytes(917))
        kept.flush_counters()
    assert len(listings) == 1


def test_models_are_one_json_object_too(cli: Any, kept: Store) -> None:
    found = json.loads(cli("models", "--json").stdout)
    assert found["models_dir"] == str(kept.models_dir)
    assert [(Path(model["path"]).name, model["nbytes"]) for model in found["models"]] == [("a.gguf", 1000)]
