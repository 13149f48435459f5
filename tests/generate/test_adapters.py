"""Models with LoRA adapters: the logits of the merged model, at any strength, of several adapters, and after a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling, train
from camshaft.errors import CamshaftError, ContextError, FormatError, ModelError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.gguf.write import NewTensor, encoded_value, floating, text, write_gguf
from camshaft.models.adapters.adapter import Adapters, open_adapter
from camshaft.models.files.quantize import quantize
from tests.support.adapters import drawn_adapter
from tests.support.fixtures import tiny_logits, tiny_model

TOKENS = tiny_logits("llama")[0][:24]
OPTIONS: dict[str, Any] = {"activations": "f32", "threads": 1, "context": 64, "sessions": 2}


def _logits(path: Path, **options: Any) -> np.ndarray:
    with LanguageModel(path, **{**OPTIONS, **options}) as lm:
        return np.array(lm.logits(TOKENS))


def _text(lm: LanguageModel) -> str:
    return "".join(lm.generate("the winding", raw=True, max_tokens=6, sampling=Sampling(temperature=0)))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model and two adapters."""
    base = tiny_model("llama", tmp_path)
    one = drawn_adapter(base, tmp_path / "one.gguf", 1, rank=4, alpha=2.0, targets=("attn_*",))
    two = drawn_adapter(base, tmp_path / "two.gguf", 2, rank=2, alpha=1.0, targets=("attn_q", "ffn_*"))
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
        own, loaded = set(map(id, lm._file.tensors.values())), lm.plans.weights._loaded
        _text(lm)
        for name in ((one,), (), (two,), (one,)):
            before = set(loaded)
            lm.use_adapters(name)
            np.testing.assert_array_equal(lm.logits(TOKENS), wanted[name])
            _text(lm)
            # Neither other adapters' matrices nor what the graphs of before made are left.
            left = {id(source) for source, _ in before & set(loaded)}
            assert left
            assert left <= own
        with lm.session(), pytest.raises(ContextError, match="while sessions are open"):
            lm.use_adapters([])
        np.testing.assert_array_equal(lm.logits(TOKENS), wanted[(one,)])
        text = _text(lm)
        lm.use_adapters([])
        assert _text(lm) != text


@pytest.mark.full
def test_quantized_weights_keep_a_small_adapter(tmp_path: Path) -> None:
    """Merged into Q4_0 it is rounded away; beside Q4_0 it is not."""
    base = tmp_path / "q.gguf"
    quantize(tiny_model("llama", tmp_path), base, "Q4_0", pure=True)
    one = drawn_adapter(base, tmp_path / "one.gguf", 1, alpha=1.0)
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
        (lambda base, one: [(one, 10**400)], "got the strength inf; wanted a finite number"),
        (
            lambda base, one: [(one, -1e39)],
            "multiply products by -5e[+]38; wanted at most 3.40282e[+]38, which f32 holds",
        ),
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


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "has no tensors; wanted lora_a and lora_b of matrices"),
        ({"blk.0.attn_q.weight.lora_b": (64, 2)}, "'blk.0.attn_q' has lora_b alone; wanted lora_a and lora_b"),
        (
            {"blk.0.attn_q.weight.lora_a": (2, 64), "blk.0.attn_q.weight.lora_b": (64, 3)},
            r"'blk.0.attn_q' has lora_a \[2, 64\] and lora_b \[64, 3\]; wanted \[rank, k\] and \[n, rank\]",
        ),
        (
            {f"{'x' * 3000}\n.weight.lora_a": (2, 64), f"{'x' * 3000}\n.weight.lora_b": (64, 2)},
            r"changes 'x{77}\.\.\.' \[64, 64\]; the model has no such weight$",
        ),
    ],
)
def test_matrices_that_do_not_fit_are_named_in_one_line(
    shapes: dict[str, tuple[int, int]], message: str, tmp_path: Path
) -> None:
    values = {
        "general.type": text("adapter"),
        "general.architecture": text("llama"),
        "adapter.type": text("lora"),
        "adapter.lora.alpha": floating(1.0),
    }
    f32 = BLOCK_FORMATS["F32"]
    tensors = [
        NewTensor(name, (n, k), f32, lambda n=n, k=k: [np.zeros(4 * n * k, np.uint8)])
        for name, (n, k) in shapes.items()
    ]
    write_gguf(tmp_path / "one.gguf", values, tensors)
    with pytest.raises(FormatError, match=message):
        LanguageModel(tiny_model("llama", tmp_path), adapters=[tmp_path / "one.gguf"])


def test_cached_plans_know_which_adapter_a_matrix_is_of(files: tuple[Path, Path, Path]) -> None:
    """Two adapters with the matrices of one name other constants of the graph."""
    whole = open_adapter(files[1])
    with whole.file, open_gguf(files[0]) as model:
        parts = [replace(whole, pairs=dict([pair])) for pair in whole.pairs.items()]
        digests = {Adapters(model, [(a, 1.0) for a in given]).digest for given in ([whole], parts, parts[::-1])}
    assert len(digests) == 3


def test_a_kind_that_is_no_text_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "one.gguf", {"general.type": encoded_value(np.arange(3))}, [])
    with pytest.raises(FormatError, match="wanted a GGUF adapter of type lora"):
        open_adapter(tmp_path / "one.gguf")
