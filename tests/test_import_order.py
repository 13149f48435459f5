"""Every import points back up the list of docs/layout.md: the order is read from there and held here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "camshaft"
_ROW = re.compile(r"^\d+\. ((?:`[\w./]+` ?)+):", re.MULTILINE)
# An import at the start of a line, to the end of its line or bracket; and texts and comments, in which such lines are none.
_STATEMENT = re.compile(r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+import\b|import[ \t])[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_TEXT = re.compile(r'"""(?s:.*?)"""|"(?:[^"\\\n]|\\.)*"|#.*|' r"'(?:[^'\\\n]|\\.)*'")
_BY_NAME = re.compile(r"import_module\(\s*f?[\"'](camshaft[\w.]*)")


def read_order(text: str) -> dict[str, int]:
    """Position in the list by the name of a folder or top-level module, without slash and suffix."""
    rows = [re.findall(r"`([\w./]+)`", match[1]) for match in _ROW.finditer(text)]
    return {name.removesuffix("/").removesuffix(".py"): i for i, names in enumerate(rows) for name in names}


ORDER = read_order((ROOT / "docs" / "layout.md").read_text("utf-8"))


def imported(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that `source`, a module inside `package`, imports anywhere in it.

    Only its import statements are parsed: the whole package takes 0.1 s, where its trees take 3.
    """
    for match in _BY_NAME.finditer(source):
        yield source.count("\n", 0, match.start()) + 1, match[1].rstrip(".")
    for match in _STATEMENT.finditer(_TEXT.sub(lambda text: "\n" * text[0].count("\n"), source)):
        line = source.count("\n", 0, match.start()) + 1
        yield from ((line, name) for name in _names(ast.parse(match[0].strip()).body[0], package))


def _names(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = list(package[: len(package) - node.level + 1]) if node.level else []
        base += [node.module] if node.module else []
        yield from (".".join([*base, alias.name]) for alias in node.names)


def floor_of(dotted: str) -> str | None:
    """The name in the list that an absolute import belongs to; None where it is not ours."""
    parts = dotted.split(".")
    if parts[0] != "camshaft":
        return None
    if len(parts) == 1:
        return "__init__"
    return parts[1] if (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists() else "__init__"


def violations(path: Path) -> list[str]:
    place = path.relative_to(PACKAGE).with_suffix("").parts
    own = ORDER[place[0]]
    found = []
    for line, name in imported(path.read_text("utf-8"), ("camshaft", *place[:-1])):
        floor = floor_of(name)
        if floor is not None and ORDER[floor] > own:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {name}, which comes later")
    return found


def test_every_folder_and_module_has_its_row() -> None:
    there = {p.stem for p in PACKAGE.glob("*.py")} | {p.parent.name for p in PACKAGE.glob("*/*.py")}
    assert there - set(ORDER) == set()


def test_imports_point_back_up_the_list() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert modules
    assert [line for path in modules for line in violations(path)] == []


@pytest.mark.full
def test_the_parser_finds_the_same_statements() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        source, place = path.read_text("utf-8"), path.relative_to(PACKAGE).with_suffix("").parts
        package = ("camshaft", *place[:-1])
        parsed = [name for node in ast.walk(ast.parse(source)) for name in _names(node, package)]
        by_name = [match[1].rstrip(".") for match in _BY_NAME.finditer(source)]
        assert sorted(name for _, name in imported(source, package)) == sorted(parsed + by_name), path


def test_the_check_sees_each_kind_of_import() -> None:
    source = """
from __future__ import annotations
import camshaft.cli.main
from camshaft import plan  # import
from . import sibling
from ..plan.memory import plan_memory
def f():
    try:
        import camshaft.serve
    except ImportError:
        import camshaft.tune.one
    finally:
        import camshaft.tune.two
    match f:
        case _:
            with f:
                from camshaft.tune import (  # (
                    three,
                )
    import_module(f"camshaft.tune.{name}")
"""
    names = [name for _, name in imported(source, ("camshaft", "ops"))]
    assert names.pop(0) == "camshaft.tune"
    assert names[1:4] == ["camshaft.cli.main", "camshaft.plan", "camshaft.ops.sibling"]
    assert names[4:6] == ["camshaft.plan.memory.plan_memory", "camshaft.serve"]
    assert sorted(names[6:]) == [f"camshaft.tune.{name}" for name in ("one", "three", "two")]
    assert not list(imported('"""How to:\nimport camshaft.cli\n"""', ("camshaft",)))
    assert floor_of("camshaft.LanguageModel") == "__init__"
    assert floor_of("numpy.linalg") is None
