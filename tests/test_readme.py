"""The README's Quick start: exactly two commands of one line, which need nothing but a clone and Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from camshaft.settings import TABLE
from tests.support.models import require_default_model

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


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


def test_the_extras_of_the_readme_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {extra for found in re.findall(r"(?:camshaft|\.)\[([\w,]+)\]", README) for extra in found.split(",")}
    assert named <= set(project["optional-dependencies"])
    assert "test" in named


def test_the_sections_a_reader_wants_are_there() -> None:
    for title in ("Quick start", "How it works", "Measured", "Commands", "From Python", "Not yet"):
        assert section(title).strip()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_to_files_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text("utf-8")):
        assert (ROOT / target).exists(), target


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


def test_the_settings_it_names_are_settings() -> None:
    """docs/settings.md has all of them (test_settings.py)."""
    named = set(re.findall(r"CAMSHAFT_\w+", README))
    assert {"CAMSHAFT_CACHE_DIR", "CAMSHAFT_BACKEND", "CAMSHAFT_THREADS"} <= named <= {row.variable for row in TABLE}


EXAMPLES = re.findall(r"^```python\n(.*?)^```$", section("From Python"), re.MULTILINE | re.DOTALL)


def test_there_are_examples_of_a_model_a_graph_and_a_jitted_function() -> None:
    for word in ("LanguageModel", "camshaft.compile", "camshaft.jit"):
        assert sum(word in example for example in EXAMPLES) == 1


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda text: "-".join(re.findall(r"camshaft\.([A-Za-z_]+)\(", text)[:1])
)
def test_examples_run_as_they_stand(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    if '"smollm2"' in example:
        example = example.replace('"smollm2"', repr(str(require_default_model())))
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
