"""What the scripts beside the package import is there: most of them are run by hand only."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("bench", "scripts") for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The modules that a script imports, and the names of each; none for `import MODULE`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


def _of_the_package(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))


def _of_bench(module: str, name: str) -> bool:
    place = ROOT.joinpath(*module.split("."))
    found = place / name
    return place.with_suffix(".py").exists() or found.with_suffix(".py").exists() or found.is_dir()


def test_scripts_import_what_is_there() -> None:
    wanted = {(module, name) for path in SCRIPTS for module, names in imports(path) for name in names}
    lost = [(m, n) for m, n in sorted(wanted) if m.partition(".")[0] == "camshaft" and not _of_the_package(m, n)]
    lost += [(m, n) for m, n in sorted(wanted) if m.partition(".")[0] == "bench" and not _of_bench(m, n)]
    assert not lost


def test_a_script_of_bench_imports_its_neighbours_as_modules_of_bench() -> None:
    """`python -m bench.ops.NAME` would not find the others."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        neighbours = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
        assert not neighbours & {module for module, _ in imports(path)}, path
