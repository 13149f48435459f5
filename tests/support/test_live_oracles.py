"""The frozen fixtures made again from live oracles: they must not have drifted. Needs the extras oracles and bench."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.fixtures import TINY_MODELS, default_model, excerpt, llama_cpp_top, tiny_logits, tiny_model

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", TINY_MODELS)
def test_transformers_still_says_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models

    seed, model = next((i, m) for i, m in enumerate(tiny_models.MODELS) if m.name == name)
    network, (tokens, wanted) = tiny_models.build(model, seed), tiny_logits(name)
    tiny_models.write_gguf(model, network, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == tiny_model(name, tmp_path).read_bytes()
    assert np.abs(tiny_models.logits(network, tokens) - wanted).max() < 1e-5


@pytest.mark.parametrize("name", TINY_MODELS)
def test_llama_cpp_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    tokens, wanted = tiny_logits(name)
    assert np.abs(llama.logits(tiny_model(name, tmp_path), tokens, exact=True) - wanted).max() < 1e-4


def test_llama_cpp_still_says_the_same_of_the_excerpt() -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    path, frozen = default_model(), llama_cpp_top()
    if path is None:
        pytest.skip("the default model is not there: camshaft pull")
    tokens = llama.Vocabulary(path).tokenize(excerpt().encode(), add_special=True, parse_special=False)[:256]
    assert tokens == frozen["tokens"].tolist()
    logits = llama.logits(path, tokens, exact=False).astype(np.float64)
    logits -= np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) + logits.max(1, keepdims=True)
    again = np.take_along_axis(logits, frozen["ids"].astype(np.int64), axis=1)
    # Another machine's kernels sum in another order; activations of 8 bits make that visible.
    assert np.abs(again - frozen["log_probabilities"])[:, :8].mean() < 0.05
