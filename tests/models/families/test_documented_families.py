"""The table of docs/models.md says of each architecture what there is: tiny models, conversions, figures."""

from __future__ import annotations

import re
from pathlib import Path

from camshaft.models.convert.architectures import ARCHITECTURES
from camshaft.models.families import FAMILIES
from camshaft.text.tokenizers.pretokenizers import PRETOKENIZERS
from tests.support.fixtures import DATA, TINY_MODELS
from tests.support.models.renamed_families import RENAMED
from tests.support.models.tiny_families import row_of

DOCS = Path(__file__).parents[3] / "docs" / "models.md"
TEXT = DOCS.read_text(encoding="utf-8")
_NAME = re.compile(r"`([^`]+)`")
SEE = {"qwen2vl", "qwen3vl", "qwen3vlmoe"}  # tests/data/vision
ENCODERS = {path.name.removesuffix(".gguf.gz") for path in (DATA / "encoders").glob("*.gguf.gz")}


def letters_of_rows() -> dict[str, str]:
    """The letters under `compared`, by architecture."""
    found: dict[str, str] = {}
    for line in re.findall(r"^\| `.*\|$", TEXT.split("\n## ")[0], re.MULTILINE):
        names, _, _, compared, _ = (cell.strip() for cell in line.strip("|").split(" | "))
        for part in compared.split("; "):
            letters, _, some = part.partition(" ")
            found |= dict.fromkeys(_NAME.findall(some or names), letters)
    return found


def having(letters: str) -> set[str]:
    return {name for name, all_ in letters_of_rows().items() if set(letters) & set(all_)}


def test_every_architecture_has_a_row() -> None:
    assert letters_of_rows().keys() == FAMILIES.keys()
    assert set("".join(letters_of_rows().values())) == set("TSPRLlQC")


def test_those_with_tiny_models_of_their_own_have_them() -> None:
    encoders = {name for name, row in FAMILIES.items() if row.encoder}
    assert having("TSP") == {row_of(name) for name in TINY_MODELS} | SEE | encoders
    assert encoders == ENCODERS & FAMILIES.keys()
    assert having("R") == {row.family or name for name, row in RENAMED.items()}


def test_those_that_are_converted_have_a_class() -> None:
    of_classes = {row.name for row in ARCHITECTURES.values()} & FAMILIES.keys()
    assert having("C") == of_classes | {"nemotron_h_moe"}  # by the class of nemotron_h


def test_those_with_figures_have_a_line_of_them() -> None:
    figures = TEXT.split("\n## Quantized files")[1].split("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|.*\d\.\d\d", figures, re.MULTILINE)
    assert having("Q") == {
        row_of(name) if name in TINY_MODELS else "bert" if name == "xlm-r" else name for name in names
    }


def test_pre_tokenizers_are_counted() -> None:
    assert f"of {len(PRETOKENIZERS)} names" in TEXT
