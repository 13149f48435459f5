"""Well-formed GGUF files with wrong keys, and options that cannot be, are refused in one line that names the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError, ContextError, FormatError, ModelError, SettingError
from tests.support.fixtures import tiny_model
from tests.support.models.files import changed_model, refused
from tests.support.models.references.reference_models import compute_by_references
from tests.support.quick import quick_of

ARCH = "llama"
KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown architecture": (
        {"general.architecture": "mumble"},
        ["'mumble'", "such as llama, qwen3", "docs/models.md"],
    ),
    "heads over key-value heads": ({f"{ARCH}.attention.head_count_kv": 3}, ["4 heads over 3"]),
    "no heads": ({f"{ARCH}.attention.head_count": 0}, ["attention.head_count", "is 0"]),
    "text for a number": ({f"{ARCH}.block_count": "two"}, ["llama.block_count", "'two'"]),
    "half a layer": ({f"{ARCH}.block_count": 1.5}, ["llama.block_count", "1.5"]),
    "too many layers": ({f"{ARCH}.block_count": 2**31 - 1}, ["llama.block_count", "2147483647"]),
    "one layer too many": ({f"{ARCH}.block_count": 3}, ["'blk.2.attn_norm.weight'"]),
    "a huge width": ({f"{ARCH}.embedding_length": 2**31 - 4}, ["'token_embd.weight'", "2147483644"]),
    "a huge feed-forward": ({f"{ARCH}.feed_forward_length": 2**30}, ["'blk.0.ffn_gate.weight'", "1073741824"]),
    "a huge head": (
        {f"{ARCH}.attention.key_length": 2**30, f"{ARCH}.attention.value_length": 2**30},
        ["'blk.0.attn_q.weight'"],
    ),
    "beyond any size": ({f"{ARCH}.embedding_length": 2**32 - 1}, ["llama.embedding_length"]),
    "an infinite epsilon": (
        {f"{ARCH}.attention.layer_norm_rms_epsilon": float("inf")},
        ["attention.layer_norm_rms_epsilon", "inf"],
    ),
    "epsilon 0": ({f"{ARCH}.attention.layer_norm_rms_epsilon": 0.0}, ["attention.layer_norm_rms_epsilon"]),
    "no number": ({f"{ARCH}.rope.freq_base": float("nan")}, ["llama.rope.freq_base", "nan"]),
    "a negative base": ({f"{ARCH}.rope.freq_base": -1.0}, ["llama.rope.freq_base", "-1"]),
    "a long rotation": ({f"{ARCH}.rope.dimension_count": 18}, ["rope.dimension_count", "18", "16"]),
    "an odd rotation": ({f"{ARCH}.rope.dimension_count": 3}, ["rope.dimension_count", "3"]),
    "unknown scaling": ({f"{ARCH}.rope.scaling.type": "longrope"}, ["'longrope'"]),
    "scaling by 0": (
        {f"{ARCH}.rope.scaling.type": "linear", f"{ARCH}.rope.scaling.factor": 0.0},
        ["llama.rope.scaling.factor"],
    ),
    "unknown pre-tokenizer": ({"tokenizer.ggml.pre": "tiny-unheard-of"}, ["tiny-unheard-of"]),
    "unknown tokenizer": ({"tokenizer.ggml.model": "unigram-9"}, ["unigram-9"]),
}
NEEDED_KEYS = [
    "general.architecture",
    f"{ARCH}.block_count",
    f"{ARCH}.embedding_length",
    f"{ARCH}.feed_forward_length",
    f"{ARCH}.attention.head_count",
    f"{ARCH}.attention.layer_norm_rms_epsilon",
    f"{ARCH}.context_length",
    "tokenizer.ggml.tokens",
]


@pytest.mark.parametrize("what", KEYS)
def test_a_wrong_key_is_named(what: str, tmp_path: Path) -> None:
    keys, words = KEYS[what]
    text = refused(changed_model("llama", tmp_path, keys=keys), ModelError)
    assert all(word in text for word in words), text


def test_a_file_without_an_architecture_is_refused(tmp_path: Path) -> None:
    data = tiny_model("llama", tmp_path).read_bytes().replace(b"general.architecture", b"general.architectura")
    (tmp_path / "other.gguf").write_bytes(data)
    assert "no key 'general.architecture'" in refused(tmp_path / "other.gguf", ModelError)


@pytest.mark.parametrize("key", NEEDED_KEYS[1:])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    assert key in refused(changed_model("llama", tmp_path, drop_keys=[key]), (ModelError, FormatError))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("chatglm", "blk.1.attn_q.bias"),
        ("afmoe", "blk.3.exp_probs_b.bias"),
        ("gptneox", "blk.1.ffn_norm.weight"),
        ("gemma3n", "blk.2.attn_v.weight"),
        ("qwen2moe", "blk.1.ffn_gate_inp_shexp.weight"),
    ],
)
def test_what_one_layer_lacks_is_named_where_files_may_lack_it(model: str, name: str, tmp_path: Path) -> None:
    text = refused(changed_model(model, tmp_path, drop_tensors=[name]), ModelError)
    assert f"no tensor {name!r}, but layer " in text


@pytest.mark.parametrize("name", quick_of(["deepseek32", "glm-dsa"], ["deepseek32"]))
def test_a_context_ends_where_layers_would_choose_what_they_see(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by_references(monkeypatch)
    with LanguageModel(tiny_model(name, tmp_path), context=4096, threads=1) as lm:
        assert lm.context == 64
        with lm.session() as session, pytest.raises(ContextError):
            session.process([1] * 65)
    lacking = changed_model(name, tmp_path, drop_keys=[f"{name}.attention.indexer.top_k"])
    assert f"no key '{name}.attention.indexer.top_k'" in refused(lacking, ModelError)


def test_a_context_ends_with_the_learned_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    with LanguageModel(tiny_model("gpt2", tmp_path), context=4096, threads=1) as lm:
        assert lm.context == 512
        with pytest.raises(ContextError, match="512"):
            lm.logits([1] * 513)


def test_an_unknown_architecture_names_the_nearest(tmp_path: Path) -> None:
    text = refused(changed_model("llama", tmp_path, keys={"general.architecture": "gemma33"}), ModelError)
    assert "'gemma33'" in text
    assert "the nearest is gemma3" in text


def test_a_model_without_a_chat_template_says_to_use_raw(tmp_path: Path) -> None:
    path = changed_model("llama", tmp_path, drop_keys=["tokenizer.chat_template"])
    with LanguageModel(path, threads=1, context=64, sessions=1) as lm:
        with pytest.raises(ModelError, match="raw=True"):
            lm.generate("hi")
        assert list(lm.generate("hi", raw=True, max_tokens=0)) == []


@pytest.mark.parametrize(("context", "sessions"), [(10**9, 3), (10**12, 1000), (10**23, 1), (1, 10**23)])
def test_a_context_that_no_memory_holds_is_an_error(context: int, sessions: int, tmp_path: Path) -> None:
    text = refused(tiny_model("llama", tmp_path), ContextError, context=context, sessions=sessions)
    assert "context" in text


@pytest.mark.parametrize("options", [{"context": 0}, {"sessions": 0}, {"threads": 0}, {"activations": "f8"}])
def test_an_option_that_cannot_be_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    (name,) = options
    assert name in refused(tiny_model("llama", tmp_path), SettingError, **options)


def test_an_unknown_backend_is_named(tmp_path: Path) -> None:
    assert "'abacus'" in refused(tiny_model("llama", tmp_path), CamshaftError, backend="abacus")
