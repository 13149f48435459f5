"""Entry points of other packages are found wherever importlib.metadata finds them, which is imported for them alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from camshaft.backends.installed import entry_points

GROUP = "camshaft.test_group"


def _package(folder: Path, text: str) -> None:
    package = folder / "thing-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(text)


def _values(found) -> list[str]:
    return [point.value for point in found]


def test_a_package_that_names_the_group_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert not _values(entry_points(group=GROUP))
    _package(tmp_path, f"[{GROUP}]\nmine = math:pi\n")
    assert _values(entry_points(group=GROUP)) == ["math:pi"] == _values(metadata.entry_points(group=GROUP))


def test_one_in_an_archive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, f"[{GROUP}]\nmine = math:e\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in (tmp_path / "thing-1.0.dist-info").iterdir():
            archive.write(file, f"thing-1.0.dist-info/{file.name}")
    monkeypatch.syspath_prepend(tmp_path / "a.zip")
    assert _values(entry_points(group=GROUP)) == ["math:e"]


def test_a_finder_of_its_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder(metadata.DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: object = None) -> list[metadata.Distribution]:
            class Only(metadata.Distribution):
                def read_text(self, filename: str) -> str | None:
                    texts = {"METADATA": "Name: x\n", "entry_points.txt": f"[{GROUP}]\nmine = math:tau\n"}
                    return texts.get(filename)

                def locate_file(self, path: object) -> Path:
                    raise NotImplementedError

            return [Only()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert _values(entry_points(group=GROUP)) == ["math:tau"]


def test_opening_camshaft_imports_nothing_that_few_starts_need() -> None:
    program = "import sys, camshaft; camshaft.LanguageModel; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    assert "camshaft.generate.language_model" in said
    unused = {
        "importlib.metadata",
        "camshaft.plan.compile",
        "camshaft.emit.llvm.module",
        "camshaft.lang.interpreter.interpret",
        "numpy.random",
        "secrets",
        "asyncio",
    }
    assert not unused & set(said)
