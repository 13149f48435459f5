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


@pytest.mark.parametrize("path", sorted((ROOT / "bench").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_of_bench_imports_its_neighbours_as_a_module_of_bench(path: Path) -> None:
    neighbours = {p.stem for p in (ROOT / "bench").glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
        assert not neighbours & set(names)  # `python -m bench.NAME` would not find it
