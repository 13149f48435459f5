"""Live oracles: the frozen fixtures made again, which must not have drifted, and camshaft itself against new models and texts.

Needs the extras oracles and bench.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.generate.sampling.breakers import BreakerFinder
from camshaft.generate.sampling.parameters import DRY_SEQUENCE_BREAKERS
from tests.support.fixtures import TINY_MODELS, awkward_strings, excerpt, llama_cpp_top, tiny_logits, tiny_model
from tests.support.models.files import require_default_model
from tests.support.models.references import float64_llama as reference
from tests.support.models.references import llama_samplers

pytestmark = pytest.mark.oracle
NEW_SEED = 1000
MODES = [(add, parse) for add in (False, True) for parse in (False, True)]


@pytest.mark.parametrize("name", TINY_MODELS)
def test_transformers_still_says_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models

    seed, model = tiny_models.SEEDED[name]
    network, (tokens, wanted) = tiny_models.build(model, seed), tiny_logits(name)
    tiny_models.write_gguf(model, network, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == tiny_model(name, tmp_path).read_bytes()
    # What is frozen is rounded by up to 8e-6; torch on another CPU sums in another order: up to 7.2e-5, of qwen3next.
    assert np.abs(tiny_models.logits(network, tokens) - wanted).max() < 2e-4


@pytest.mark.parametrize("name", TINY_MODELS)
def test_llama_cpp_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("transformers")
    from scripts.oracles import llama, tiny_models

    agreement = tiny_models.SEEDED[name][1].agreement
    if agreement is None:
        pytest.skip("llama.cpp computes another model of this file")
    tokens, wanted = tiny_logits(name)
    assert np.abs(llama.logits(tiny_model(name, tmp_path), tokens, exact=True) - wanted).max() < agreement


def test_llama_cpp_still_says_the_same_of_the_excerpt() -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    path, frozen = require_default_model(), llama_cpp_top()
    tokens = llama.Vocabulary(path).tokenize(excerpt().encode(), add_special=True, parse_special=False)[:256]
    assert tokens == frozen["tokens"].tolist()
    log_probabilities = reference.log_softmax(llama.logits(path, tokens, exact=False).astype(np.float64))
    again = np.take_along_axis(log_probabilities, frozen["ids"].astype(np.int64), axis=1)
    # Another machine's kernels sum in another order; activations of 8 bits make that visible: 0.082 with AVX2 alone.
    assert np.abs(again - frozen["log_probabilities"])[:, :8].mean() < 0.15


@pytest.mark.parametrize("seed", [NEW_SEED, NEW_SEED + 1])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_camshaft_says_of_a_new_model_what_transformers_says(name: str, seed: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models

    model = tiny_models.SEEDED[name][1]
    network, n = tiny_models.build(model, seed), model.n_vocab
    tokens = tiny_models.sequence(seed, n_vocab=n) + tiny_models.sequence(seed + 7, n_vocab=n)
    tiny_models.write_gguf(model, network, tmp_path / "new.gguf")
    wanted = tiny_models.logits(network, tokens)
    assert wanted.std(axis=0).mean() >= 0.7  # what is frozen has 1 or more
    with LanguageModel(tmp_path / "new.gguf", activations="f32", threads=1, context=64) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() < 1e-3
        assert np.abs(lm.logits(tokens, chunk=1) - wanted).max() < 1e-3


@pytest.mark.parametrize(("activations", "limit"), [("f32", 0.01), ("auto", 0.02)])
def test_camshaft_is_as_close_to_llama_cpp_as_frozen_on_a_text_it_has_not_seen(activations: str, limit: float) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    path = require_default_model()
    with LanguageModel(path, activations=activations, context=320, threads=2) as lm:
        tokens = lm.tokenize(" ".join(reversed(excerpt().split(". "))))[:128]
        said = lm.logits(tokens)
    live = llama.logits(path, tokens, exact=True)
    assert reference.kl_divergence(live, said).mean() < limit


@pytest.mark.parametrize(("add_special", "parse_special"), MODES)
def test_camshaft_cuts_new_strings_into_llama_cpps_tokens(add_special: bool, parse_special: bool) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    path = require_default_model()
    vocabulary, strings = llama.Vocabulary(path), awkward_strings()
    rng = np.random.default_rng(NEW_SEED)
    with LanguageModel(path, context=16, threads=1) as lm:
        for _ in range(300):
            text = b"".join(strings[i] for i in rng.integers(0, len(strings), rng.integers(1, 6)))
            wanted = vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)
            assert lm.tokenize(text, add_special=add_special, parse_special=parse_special) == wanted, text


def test_the_samplers_in_numpy_leave_what_llama_cpps_leave() -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles.llama_samplers import Chain

    path, rng = require_default_model(), np.random.default_rng(NEW_SEED)
    chain = Chain(path)
    with LanguageModel(path, context=16, threads=1) as lm:
        found = {
            texts: BreakerFinder(lm.tokenizer).find(texts) for texts in (DRY_SEQUENCE_BREAKERS, ("the end", "\n\n"), ())
        }
    for i in range(200):
        texts = tuple(found)[i % 3]
        some = {"repeat_last_n": 30, "dry_penalty_last_n": 50, "dry_sequence_breakers": texts, "xtc_probability": i % 2}
        sampling = llama_samplers.random_sampling(rng, **some)
        if sampling.typical_p < 1:  # llama.cpp computes NaN behind logits of -inf
            sampling = replace(sampling, top_n_sigma=-1, top_k=30)
        if i % 10 == 0:
            sampling = Sampling(mirostat=2, mirostat_ent=i / 30, temperature=1.5, logit_bias={5: 2})
        breakers = [(i,) for i in found[texts].single]
        breakers += [(i, *rest) for i, rests in found[texts].longer.items() for rest in rests]
        logits = (3 * rng.normal(size=1000)).astype(np.float32)
        near = [breaker for breaker in breakers if max(breaker) < len(logits)]
        history = llama_samplers.random_history(rng, 90, near[:4])
        wanted = chain.probabilities(logits, sampling, history)
        said = llama_samplers.probabilities(logits, sampling, history, breakers=breakers)
        assert np.abs(said - wanted).max() < 1e-5, sampling
