"""What the scripts beside the package import from it is there: most of them are run by hand only."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("bench", "scripts") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_what_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "camshaft":
            names = [alias.name for alias in node.names]
            module = importlib.import_module(node.module or "")
            for name in names:
                assert hasattr(module, name) or importlib.import_module(f"{node.module}.{name}")


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_of_bench_imports_its_neighbours_as_a_module_of_bench(path: Path) -> None:
    neighbours = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
        assert not neighbours & set(names)  # `python -m bench.ops.NAME` would not find it


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_modules_of_bench_that_are_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "bench":
            continue
        place = ROOT.joinpath(*(node.module or "").split("."))
        if place.with_suffix(".py").exists():
            continue
        assert place.is_dir(), f"{node.module} is no module"
        for alias in node.names:
            found = place / alias.name
            assert found.with_suffix(".py").exists() or found.is_dir(), f"{node.module} has no {alias.name}"
