"""Models with LoRA adapters: the logits of the merged model, at any strength, of several adapters, and after a change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling, train
from camshaft.errors import CamshaftError, ContextError, FormatError, ModelError
from camshaft.models.quantize import quantize
from tests.support.fixtures import tiny_logits, tiny_model

TOKENS = tiny_logits("llama")[0][:24]
OPTIONS: dict[str, Any] = {"activations": "f32", "threads": 1, "context": 64, "sessions": 2}


def _adapter(base: Path, path: Path, seed: int, **options: Any) -> Path:
    """An adapter whose matrices are drawn."""
    rng = np.random.default_rng(seed)
    with train.LoraModel(base, train.LoraConfig(**options)) as model:
        pairs = {
            name: {part: rng.normal(0, 0.2, array.shape).astype(np.float32) for part, array in pair.items()}
            for name, pair in model.adapters().items()
        }
        train.save_adapter(path, model, pairs)
    return path


def _logits(path: Path, **options: Any) -> np.ndarray:
    with LanguageModel(path, **{**OPTIONS, **options}) as lm:
        return np.array(lm.logits(TOKENS))


def _text(lm: LanguageModel) -> str:
    return "".join(lm.generate("the winding", raw=True, max_tokens=6, sampling=Sampling(temperature=0)))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model and two adapters."""
    base = tiny_model("llama", tmp_path)
    one = _adapter(base, tmp_path / "one.gguf", 1, rank=4, alpha=2.0, targets=("attn_*",))
    two = _adapter(base, tmp_path / "two.gguf", 2, rank=2, alpha=1.0, targets=("attn_q", "ffn_*"))
    return base, one, two


def test_an_adapter_gives_the_logits_of_the_merged_model(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    base, one, two = files
    train.merge(base, one, tmp_path / "merged.gguf")
    wanted, plain = _logits(tmp_path / "merged.gguf"), _logits(base)
    assert np.abs(wanted - plain).max() > 0.1
    for _ in range(2):  # compiled, then from the plan cache
        np.testing.assert_allclose(_logits(base, adapters=[one]), wanted, atol=1e-4)
    with LanguageModel(base, adapters=[one], **OPTIONS) as lm:
        assert lm.plans.origins["prompt"] == "cached"
    np.testing.assert_array_equal(_logits(base, adapters=[(one, 0)]), plain)
    halves = _logits(base, adapters=[(one, 0.5), (one, 0.5)])
    np.testing.assert_allclose(halves, wanted, atol=1e-4)
    train.merge(tmp_path / "merged.gguf", two, tmp_path / "both.gguf")
    np.testing.assert_allclose(_logits(base, adapters=[one, two]), _logits(tmp_path / "both.gguf"), atol=1e-4)


def test_adapters_change_while_the_weights_stay(files: tuple[Path, Path, Path]) -> None:
    base, one, two = files
    wanted = {name: _logits(base, adapters=name) for name in ((), (one,), (two,))}
    with LanguageModel(base, **OPTIONS) as lm:
        lm.logits(TOKENS)  # loads the weights
        alone = lm.plans.weights.nbytes
        for name in ((one,), (), (two,), (one,)):
            lm.use_adapters(name)
            np.testing.assert_array_equal(lm.logits(TOKENS), wanted[name])
            assert (lm.plans.weights.nbytes > alone) == bool(name)
        with lm.session(), pytest.raises(ContextError, match="while sessions are open"):
            lm.use_adapters([])
        np.testing.assert_array_equal(lm.logits(TOKENS), wanted[(one,)])
        text = _text(lm)
        lm.use_adapters([])
        assert _text(lm) != text


def test_quantized_weights_keep_a_small_adapter(tmp_path: Path) -> None:
    """Merged into Q4_0 it is rounded away; beside Q4_0 it is not."""
    base = tmp_path / "q.gguf"
    quantize(tiny_model("llama", tmp_path), base, "Q4_0", pure=True)
    one = _adapter(base, tmp_path / "one.gguf", 1, alpha=1.0)
    train.merge(base, one, tmp_path / "merged.gguf", file_type="F32")
    np.testing.assert_allclose(_logits(base, adapters=[one]), _logits(tmp_path / "merged.gguf"), atol=1e-3)


def test_a_change_of_embeddings_is_refused_and_the_model_goes_on(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    base, one, _ = files
    with train.LoraModel(base) as model:
        n, k = model.file.tensors["token_embd.weight"].shape
        pair = {"a": np.ones((2, k), np.float32), "b": np.ones((n, 2), np.float32)}
        train.save_adapter(tmp_path / "embd.gguf", model, {"token_embd": pair})
    with pytest.raises(ModelError, match="changes token_embd, which not only products read"):
        _logits(base, adapters=[tmp_path / "embd.gguf"])
    plain = _logits(base)
    with LanguageModel(base, adapters=[one], **OPTIONS) as lm:
        with pytest.raises(ModelError, match="changes token_embd"):
            lm.use_adapters([tmp_path / "embd.gguf"])
        np.testing.assert_array_equal(lm.logits(TOKENS), plain)
        assert _text(lm)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda base, one: "one.gguf", "adapters came as str; wanted a list of files"),
        (lambda base, one: [3], "an adapter came as 3; wanted a file"),
        (lambda base, one: [(one, "2")], "got the strength '2'; wanted a finite number"),
        (lambda base, one: [(one, float("nan"))], "got the strength nan"),
        (lambda base, one: [base], "wanted a GGUF adapter of type lora"),
        (lambda base, one: [base.parent / "no.gguf"], "no.gguf: cannot be read|no such file"),
    ],
)
def test_what_is_refused(given: Callable[[Path, Path], Any], message: str, files: tuple[Path, Path, Path]) -> None:
    with pytest.raises((ModelError, FormatError), match=message):
        LanguageModel(files[0], adapters=given(files[0], files[1]))


def test_an_adapter_of_another_model_is_refused(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CamshaftError, match="is for 'llama'; wanted an adapter for 'qwen2'"):
        LanguageModel(tiny_model("qwen2", tmp_path), adapters=[files[1]])
