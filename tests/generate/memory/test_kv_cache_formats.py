"""KV caches in other formats: deviation of logits from f32, memory size, use by sessions and batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.ops.attention.kv_cache_quantize import decode, encode
from tests.generate.conftest import check_batch
from tests.support.fixtures import llama_cpp_top, tiny_model
from tests.support.models.files import require_default_model
from tests.support.models.references.float64_llama import kl_divergence
from tests.support.quick import quick_of

GREEDY = Sampling(greedy=True)
QUANTIZED = ["q8_0", "q4_0"]
N = 96  # tokens of the text that divergences are measured on
# Mean KL divergence from the f32 cache, SmolLM2-135M: measured 5.2e-7, 3.0e-5, 5.7e-4 and 0.17
MOST = {"f16": 1e-6, "bf16": 6e-5, "q8_0": 1e-3, "q4_0": 0.25}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32, as blocks of 32 want them."""
    return tiny_model("qwen3", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def plain(tiny_path: Path) -> Iterator[LanguageModel]:
    with LanguageModel(tiny_path, threads=1, context=64, activations="f32", sessions=3) as lm:
        yield lm


@pytest.fixture(scope="module", params=quick_of(QUANTIZED, ["q8_0"]))
def lm(tiny_path: Path, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    options = {"context": 64, "activations": "f32", "sessions": 3, "kv_cache": request.param}
    with LanguageModel(tiny_path, threads=1, **options) as lm:
        yield lm


def test_the_cache_takes_what_its_blocks_take(lm: LanguageModel, plain: LanguageModel) -> None:
    bits = {"q8_0": 8.5, "q4_0": 4.5}[lm.kv_cache]
    assert lm.describe_plan().kv_cache_nbytes == plain.describe_plan().kv_cache_nbytes * bits / 32
    names = {thunk.op for thunk in lm.describe_plan().thunks}
    assert "kv_cache_quantize" in names
    assert "kv_cache_update" not in names


def test_token_by_token_agrees_with_the_prompt_and_stays_near_f32(lm: LanguageModel, plain: LanguageModel) -> None:
    ids = [40, 7, 81, 200, 13, 9, 120, 33, 18, 77, 5, 6, 31, 222, 101, 64, 3, 90, 17, 44]
    whole, steps, exact = lm.logits(ids), lm.logits(ids, chunk=1), plain.logits(ids)
    spread = exact.std()
    assert np.abs(whole - steps).max() < 0.1 * spread
    assert 0 < np.abs(whole - exact).max() < {"q8_0": 0.1, "q4_0": 1.5}[lm.kv_cache] * spread


def test_a_batch_says_what_each_says_alone(lm: LanguageModel) -> None:
    check_batch(lm, [[40, 7, 81], [9, 9, 120, 4], [33]], 9)


def test_a_session_goes_on_where_it_was(lm: LanguageModel) -> None:
    ids = [40, 7, 81, 200, 13, 9, 120]
    with lm.session() as session:
        session.process(ids[:3])
        last = session.process(ids[3:])
    np.testing.assert_array_equal(last, lm.session().process(ids)[-1:])


def test_forms_that_cannot_be_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="kv_cache 'q5_0'; wanted one of auto, f16"):
        LanguageModel(tiny_path, kv_cache="q5_0")
    with pytest.raises(SettingError, match="a Q8_0 KV cache for a head size of 16"):
        LanguageModel(tiny_model("llama", tmp_path), kv_cache="q8_0")


def test_the_environment_chooses_and_the_caller_overrules(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"context": 64, "activations": "f32", "sessions": 3}  # those of the plans above
    monkeypatch.setenv("CAMSHAFT_KV_CACHE", "q8_0")
    with LanguageModel(tiny_path, threads=1, **options) as lm:
        assert lm.kv_cache == "q8_0"
    with LanguageModel(tiny_path, threads=1, kv_cache="f32", **options) as lm:
        assert lm.kv_cache == "f32"
    monkeypatch.setenv("CAMSHAFT_KV_CACHE", "q9")
    with pytest.raises(SettingError, match="CAMSHAFT_KV_CACHE=q9"):
        LanguageModel(tiny_path)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_0"])
def test_codes_decode_to_what_was_encoded(form: str) -> None:
    values = np.random.default_rng(5).normal(size=(3, 2, 96)).astype(np.float32)
    codes, scales = encode(values, form)
    assert scales.shape == (3, 2, 3)
    step = np.repeat(np.abs(scales.astype(np.float64)), 32, axis=-1)
    most = {"Q8_0": 0.6, "Q4_0": 1.01}[form]  # of a step: Q4_0 has no code for the greatest value with the other sign
    assert (np.abs(decode(codes, scales) - values) <= most * step).all()


def _logits(path: Path, kv_cache: str) -> np.ndarray:
    ids = llama_cpp_top()["tokens"].tolist()[:N]
    with LanguageModel(path, context=320, activations="f32", sessions=1, kv_cache=kv_cache) as lm:
        return lm.logits(ids)


@pytest.fixture(scope="module")
def exact() -> np.ndarray:
    """Logits of the default model with a cache in f32."""
    return _logits(require_default_model(), "f32").astype(np.float64)


@pytest.mark.full
@pytest.mark.parametrize("form", MOST)
def test_divergence_from_the_f32_cache(form: str, exact: np.ndarray) -> None:
    divergence = kl_divergence(exact, _logits(require_default_model(), form)).mean()
    print(f"KV cache in {form}: mean KL divergence from f32 {divergence:.1e}")
    assert divergence <= MOST[form]
