"""README.md and the pages of docs/: the Quick start's two commands, the examples, the links, the figures and the chart."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from camshaft import ops
from camshaft.cli.main import COMMANDS, app
from camshaft.models.convert.architectures import ARCHITECTURES
from camshaft.models.families import FAMILIES
from camshaft.ops.primitives import PRIMITIVES
from camshaft.settings import TABLE
from tests.support.models.files import require_default_model
from tests.support.quick import full

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def section(title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"README has no section {title!r}"
    return match[1]


def quick_start() -> list[str]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", section("Quick start"), re.MULTILINE | re.DOTALL)


def test_quick_start_is_two_commands_of_one_line() -> None:
    blocks = quick_start()
    assert [language for language, _ in blocks] == ["sh", "sh"]
    for _, body in blocks:
        assert body.count("\n") == 1
        assert body.strip()
        assert not body.rstrip("\n").endswith("\\")


def test_each_command_works_alone() -> None:
    """Both make the environment themselves and install the clone in place, so their order does not matter."""
    (_, generates), (_, tests) = quick_start()
    for body in (generates, tests):
        assert body.startswith("python3 -m venv .venv && .venv/bin/pip install ")
        assert " -e " in body
    assert "camshaft generate -p" in generates
    assert " camshaft pull " in tests.replace(".venv/bin/", ""), "tests that need the model must not skip"
    assert tests.rstrip().endswith("-m pytest -n auto")


def script(name: str) -> Any:
    """A module of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 170
    assert len(script("figures").SUMMARY) <= 10


def test_the_extras_of_the_pages_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pages = README + (ROOT / "docs" / "commands.md").read_text("utf-8")
    named = {extra for found in re.findall(r"(?:camshaft|\.)\[([\w,]+)\]", pages) for extra in found.split(",")}
    extras = set(project["optional-dependencies"])
    assert named <= extras
    assert extras - named <= {"dev", "oracles", "bench"}, "docs/commands.md says what each extra adds"


def test_the_numbers_of_the_pages_are_those_of_today() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    models = [row for row in FAMILIES.values() if not row.encoder]
    wanted = {
        r"\*\*(\d+) ops\*\*": (README, len(ops.NAMES)),
        r"of (\d+) architectures": (README, len(models)),
        r"from (\d+) kinds of encoders": (README, len(FAMILIES) - len(models)),
        r"\n- (\d+) ops": (changes, len(ops.NAMES)),
        r"models of (\d+) architectures": (changes, len(models)),
        r"of (\d+) classes of transformers": (changes, len(ARCHITECTURES)),
        r"\n- (\d+) primitive ops": (changes, len(PRIMITIVES)),
    }
    assert {what: re.findall(what, page) for what, (page, _) in wanted.items()} == {
        what: [str(n)] for what, (_, n) in wanted.items()
    }
    assert "sixteen of them with recurrent" in changes
    assert sum(bool(row.recurrent) for row in models) == 16


def test_the_commands_page_says_which_print_no_json() -> None:
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    found = re.search(r"All of them but (.*) take `--json`", page)
    assert found
    without = {name for name in COMMANDS if "--json" not in CliRunner().invoke(app, [*name.split(), "--help"]).stdout}
    assert set(re.findall(r"`(\w+)`", found[1])) == without


def test_the_sections_a_reader_wants_are_there() -> None:
    for title in ("Quick start", "What it does", "Speed", "Commands", "Python", "Limits", "Read on"):
        assert section(title).strip()


def test_what_contributors_and_workflows_run_is_there() -> None:
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    pages = workflow, (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for page in pages:
        paths = re.findall(r"(?<![\w./])(?:tests|scripts|bench|src|\.ci)/[\w/]+(?:\.py)?", page)
        assert paths
        for path in paths:
            assert (ROOT / path).exists(), path
    _, (_, tests) = quick_start()
    assert workflow.count(f"run: {tests}") == 2, "Linux runs the README's test command"


def test_links_to_files_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("folder", ["docs", "docs/performance", "docs/adr"])
def test_an_index_names_every_page_of_its_folder(folder: str) -> None:
    index = (ROOT / folder / "README.md").read_text("utf-8")
    assert not [p.name for p in (ROOT / folder).glob("*.md") if p.name != "README.md" and f"]({p.name})" not in index]


@pytest.mark.parametrize("page", script("figures").PAGES, ids=lambda path: path.stem)
def test_tables_hold_the_rows_of_the_benchmarks(page: Path) -> None:
    """Made again by: python scripts/figures.py"""
    text = page.read_text("utf-8")
    assert text == script("figures").written(text)


def test_every_table_of_figures_stands_on_a_page() -> None:
    figures = script("figures")
    shown = {found[2] for page in figures.PAGES for found in figures.BLOCK.finditer(page.read_text("utf-8"))}
    assert shown == set(figures.TABLES)


def test_the_chart_shows_the_rows_of_the_benchmarks() -> None:
    """Made again by: python scripts/speed_chart.py"""
    made = script("speed_chart")
    assert made.CHART.read_text("utf-8") == made.chart(json.loads(made.ROWS.read_text("utf-8")))


def test_the_settings_of_the_pages_are_settings() -> None:
    """docs/settings.md has all of them (test_settings.py)."""
    known = {row.variable for row in TABLE}
    for page in PAGES:
        assert set(re.findall(r"CAMSHAFT_\w+", page.read_text("utf-8"))) <= known, page
    named = set(re.findall(r"CAMSHAFT_\w+", (ROOT / "docs" / "commands.md").read_text("utf-8")))
    assert {"CAMSHAFT_CACHE_DIR", "CAMSHAFT_BACKEND", "CAMSHAFT_THREADS"} <= named


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


FITTED, GENTLY, ALONG = examples("docs/gradients.md")
EXAMPLES = [*examples("README.md"), *examples("docs/python.md"), GENTLY]


def test_there_are_examples_of_each_way_to_use_it() -> None:
    for word in ("LanguageModel", "camshaft.table", "camshaft.Graph", "camshaft.jit", "sync="):
        assert any(word in example for example in EXAMPLES)


@pytest.mark.parametrize(
    "example",
    [*EXAMPLES, full(FITTED), full(ALONG)],
    ids=lambda text: "-".join(re.findall(r"camshaft\.([A-Za-z_]+)\(", text)[:1]),
)
def test_examples_run_as_they_stand(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    if '"smollm2"' in example:
        example = example.replace('"smollm2"', repr(str(require_default_model())))
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
