"""The examples of docs/training.md: as they are, and in tiny sizes on every run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.train.by_references import by_references  # noqa: F401 - a fixture

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text("utf-8")
MODEL, LOOP = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SIZES = "steps, batch, length, size, heads, layers = 200, 8, 24, 32, 2, 2"


@pytest.mark.usefixtures("by_references")
def test_the_examples_run_in_tiny_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", str(tmp_path)])
    assert SIZES in MODEL
    tiny = MODEL.replace(SIZES, "steps, batch, length, size, heads, layers = 3, 2, 8, 8, 2, 1").replace("< 100", "< 9")
    names: dict[str, Any] = {}
    for text in (tiny, LOOP.replace("save_every=50", "save_every=2")):
        exec(compile(text, "docs/training.md", "exec"), names)
    assert names["value"] > 0
    assert len(names["losses"]) == 3
    assert {p.name for p in tmp_path.iterdir()} == {"step-00000002.safetensors", "step-00000003.safetensors"}


@pytest.mark.full
def test_the_model_from_scratch_learns_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(MODEL, "docs/training.md", "exec"), {"__name__": "__main__"})
    *steps, said = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[1]) for line in steps]
    assert losses[0] > 0.2 > losses[-1]
    assert "would a woodchuck chuck if a woodchuck could chuck wood?" in said
