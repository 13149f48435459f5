"""Perplexity is that of the logits, by chunks as llama.cpp has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from camshaft import LanguageModel
from camshaft.cli.main import make_app
from camshaft.errors import ContextError, SettingError
from camshaft.generate.measures.perplexity import perplexity
from tests.support.fixtures import excerpt, tiny_model
from tests.support.models.files import require_default_model

TEXT = "the winding and the world of a " * 12


def _nll(logits: np.ndarray, ids: list[int]) -> list[float]:
    """Of each token but the first, from the logits of the one before it."""
    wide = logits.astype(np.float64)
    return [float(np.log(np.exp(row).sum()) - row[i]) for row, i in zip(wide[:-1], ids[1:], strict=True)]


def test_it_scores_the_second_half_of_each_chunk(tmp_path: Path) -> None:
    with LanguageModel(tiny_model("llama", tmp_path), threads=1, context=64, activations="f32", sessions=1) as lm:
        ids, wanted = lm.tokenize(TEXT), []
        for first in range(0, len(ids) - 15, 16):
            part = ids[first : first + 16]
            part = [lm.tokenizer.vocabulary.bos_id or 0, *part[1:]] if lm.tokenizer.vocabulary.add_bos else part
            wanted += _nll(lm.logits(part), part)[8:]
        steps: list[tuple[int, int]] = []
        found = perplexity(lm, TEXT, chunk=16, progress=lambda *step: steps.append(step))
        assert (found.n_chunks, found.n_tokens) == (len(ids) // 16, 7 * (len(ids) // 16))
        assert abs(found.value / np.exp(np.mean(wanted)) - 1) < 1e-5
        assert abs(found.error / found.value - np.std(wanted, ddof=1) / np.sqrt(len(wanted))) < 1e-5
        assert steps[-1] == (found.n_chunks, found.n_chunks)
        assert perplexity(lm, TEXT, chunk=16, chunks=2).n_chunks == 2
        with pytest.raises(ContextError, match="wanted at least a chunk of 64"):
            perplexity(lm, "the", chunk=64)
        with pytest.raises(ContextError, match="the context is 64"):
            perplexity(lm, TEXT, chunk=65)
        for wrong in ({"chunk": 3}, {"chunk": 16, "chunks": 0}):
            with pytest.raises(SettingError, match="wanted"):
                perplexity(lm, TEXT, **wrong)


def test_the_command_prints_a_line_or_an_object(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["perplexity", str(tiny_model("llama", tmp_path)), str(tmp_path / "text.txt"), "--chunk", "16"]

    def run(*more: str) -> Any:
        return CliRunner().invoke(make_app(["perplexity"]), [*words, "--threads", "1", *more])

    found = json.loads(run("--json").stdout)
    value, error = found["value"], found["error"]
    assert run().stdout.startswith(f"perplexity {value:.4f} +- {error:.4f} (")
    (tmp_path / "text.txt").write_bytes(b"\xff")
    assert "is not UTF-8: byte 0 is wrong" in run().stderr


@pytest.mark.oracle
def test_it_is_that_of_llama_cpps_logits() -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    path = require_default_model()
    with LanguageModel(path, context=256, activations="f32", sessions=1) as lm:
        ids = lm.tokenize(excerpt(), parse_special=False)[:256]
        found = perplexity(lm, excerpt(), chunk=256, chunks=1)
    theirs = np.mean(_nll(llama.logits(path, ids, exact=False), ids)[128:])
    assert abs(found.nll - theirs) < 0.01
