"""The default model against the float64 reference and llama.cpp's frozen top tokens; bit-equal for any number of threads."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.formats.gguf.file import open_gguf
from camshaft.lang.kernel import language_digest
from tests.support.compilers.stored import key_of, stored
from tests.support.fixtures import Dequantized, llama_cpp_top
from tests.support.models.files import require_default_model
from tests.support.models.references import float64_llama as reference
from tests.support.quick import full

GREEDY = Sampling(greedy=True)


@pytest.fixture(scope="module")
def path() -> Path:
    return require_default_model()


@pytest.fixture(scope="module", params=[64, full(256)])
def ids(request: pytest.FixtureRequest) -> list[int]:
    """The first tokens of the text that llama.cpp's logits are frozen of."""
    return llama_cpp_top()["tokens"].tolist()[: request.param]


@pytest.fixture(scope="module")
def truth(path: Path, ids: list[int]) -> np.ndarray:
    """float64 [tokens, vocab], stored under what makes it: NumPy takes 2 to 5 s."""

    def made() -> bytes:
        with open_gguf(path) as file:
            return reference.logits(Dequantized(file), file.metadata, ids).tobytes()

    with path.open("rb") as opened:
        model = hashlib.file_digest(opened, "sha256").hexdigest()
    sources = (inspect.getsource(reference), inspect.getsource(Dequantized), language_digest("formats/**/*.py"))
    return np.frombuffer(stored(key_of("truth", model, repr(ids), *sources), made)).reshape(len(ids), -1)


@pytest.fixture(scope="module")
def exact(path: Path) -> Iterator[LanguageModel]:
    with LanguageModel(path, threads=2, context=320, activations="f32", sessions=2) as lm:
        yield lm


@pytest.fixture(scope="module")
def exact_logits(exact: LanguageModel, ids: list[int]) -> np.ndarray:
    return exact.logits(ids)


@pytest.fixture(scope="module")
def usual(path: Path) -> Iterator[LanguageModel]:
    with LanguageModel(path, threads=2, context=320, sessions=2) as lm:
        yield lm


@pytest.mark.full
def test_f32_activations_are_within_5e_4_everywhere(exact_logits: np.ndarray, truth: np.ndarray) -> None:
    assert exact_logits.dtype == np.float32
    assert exact_logits.shape == truth.shape
    worst = np.abs(exact_logits - truth).max()
    print(f"f32 activations: greatest difference {worst:.1e}")  # pytest -s shows it; the README quotes it
    assert worst < 5e-4


@pytest.mark.parametrize("chunk", [pytest.param(None, id="prompt"), full(1, id="token by token")])
def test_the_usual_mode_stays_close(usual: LanguageModel, truth: np.ndarray, ids: list[int], chunk: int | None) -> None:
    logits = usual.logits(ids, chunk=chunk)
    divergence = reference.kl_divergence(truth, logits).mean()
    print(f"default mode, chunk {chunk}: mean KL divergence {divergence:.4f}")
    assert divergence <= 0.004
    highest = np.sort(truth, axis=1)[:, -2:]
    sure = highest[:, 1] - highest[:, 0] > 1
    assert sure.mean() > 0.2
    assert (logits.argmax(axis=1) == truth.argmax(axis=1))[sure].all()


@pytest.mark.parametrize("mode", [full("exact"), "usual"])
def test_llama_cpp_agrees(mode: str, request: pytest.FixtureRequest, ids: list[int]) -> None:
    frozen = llama_cpp_top()
    logits = request.getfixturevalue(mode).logits(ids)
    top, theirs = (frozen[key][: len(ids)] for key in ("ids", "log_probabilities"))
    assert reference.top_divergence(theirs, top, logits).mean() <= 0.01


@pytest.mark.full
@pytest.mark.parametrize("chunk", [7, 1])
def test_chunks_agree_with_the_prompt_at_once(
    exact: LanguageModel, exact_logits: np.ndarray, ids: list[int], chunk: int
) -> None:
    assert np.abs(exact.logits(ids, chunk=chunk) - exact_logits).max() < 2e-4


@pytest.mark.full
def test_one_run_over_the_whole_prompt_agrees_too(
    exact: LanguageModel, exact_logits: np.ndarray, ids: list[int]
) -> None:
    with exact.session() as session:
        last = session.process(ids)
    assert last.shape == (1, exact_logits.shape[1])
    assert np.abs(last[0] - exact_logits[-1]).max() < 2e-4


@pytest.mark.full
def test_a_prompt_longer_than_one_run_holds_goes_through_in_several(path: Path) -> None:
    ids = llama_cpp_top()["tokens"].tolist()
    with LanguageModel(path, threads=2, context=640, activations="f32", sessions=1) as lm, lm.session() as session:
        assert lm.plans.prompt_tokens.bound == 512
        whole = session.process([*ids, *ids, *ids[:64]])
        session.close()
        with lm.session() as other:
            for part in (ids, ids, ids[:64]):
                pieces = other.process(part)
    assert np.abs(whole - pieces).max() < 2e-4


def _say(lm: LanguageModel, ids: list[int]) -> tuple[list[int], bytes]:
    """Greedy tokens after a prompt, and the bytes of the logits of prompt and tokens, by prompt and by single tokens."""
    generation = lm.generate(ids, max_tokens=8, sampling=GREEDY, ignore_eos=True)
    text = "".join(generation)
    assert text == lm.detokenize(generation.ids)
    single = lm.logits(generation.ids, chunk=1)
    return generation.ids, lm.logits(ids).tobytes() + single.tobytes()


@pytest.mark.parametrize(("runs", "others"), [(2, (5,)), full(20, (1, 5))])
def test_threads_and_repetition_change_no_bit(
    path: Path, usual: LanguageModel, ids: list[int], runs: int, others: tuple[int, ...]
) -> None:
    wanted = _say(usual, ids[:48])
    for _ in range(runs - 1):
        assert _say(usual, ids[:48]) == wanted
    for threads in others:
        with LanguageModel(path, threads=threads, context=320, sessions=2) as lm:
            assert _say(lm, ids[:48]) == wanted
            assert lm.threads == threads


@pytest.mark.full
def test_a_question_gets_its_answer(exact: LanguageModel) -> None:
    generation = exact.generate("What is the capital of France?", max_tokens=32, sampling=GREEDY)
    text = "".join(generation)
    assert "Paris" in text
    assert generation.finish_reason == "stop"
    assert generation.tokens == len(generation.ids) < 32
