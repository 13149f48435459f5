"""Encoders with wrong keys, tensors or options, and what is no text, are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import EmbeddingModel, LanguageModel
from camshaft.errors import ContextError, ModelError, SettingError
from tests.support.fixtures import tiny_encoder, tiny_model
from tests.support.models.files import changed_model


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    with EmbeddingModel(tiny_encoder("bert", tmp_path), activations="f32", threads=1) as model:
        with pytest.raises(ContextError, match="wanted at most 64"):
            model.embed("a " * 63)
        with pytest.raises(SettingError, match="int"):
            model.embed([3])  # type: ignore[list-item]
        with pytest.raises(SettingError, match="texts came as int"):
            model.embed(3)  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="texts came as bytes; wanted a text or several"):
            model.embed(b"a")  # type: ignore[arg-type]
        for wrong in (3, "abc", [1, 2], ["abc"], [None]):
            with pytest.raises(SettingError, match=r"token ids.* came as (int|str|NoneType); wanted a list of"):
                model.embed_ids(wrong)  # type: ignore[arg-type]
        assert (model.embed_ids(iter([[2, 3], [2]]))[1] == model.embed_ids([(2,)])[0]).all()
        for ids in ([-1], [99999], [1.5], [True]):
            with pytest.raises(ContextError, match="wanted a whole number from 0 to"):
                model.embed_ids([ids])  # type: ignore[list-item]
    with pytest.raises(ModelError, match="closed"):
        model.embed("a")


HOSTILE_OF = [
    ("modern-bert", {"modern-bert.hidden_activation": "relu"}, {}, "hidden_activation' is 'relu'; wanted gelu"),
    ("modern-bert", {"modern-bert.attention.sliding_window": -1.0}, {}, "is -1; wanted an integer of 0 or more"),
    (
        "modern-bert",
        {"modern-bert.attention.sliding_window_pattern": [True]},
        {},
        "wanted an integer of 0 or more or 4 booleans",
    ),
    ("modern-bert", {"modern-bert.classifier.pooling_type": 9}, {}, "wanted an integer from 0 to 4"),
    ("nomic-bert-moe", {"nomic-bert-moe.moe_every_n_layers": -2.0}, {}, "is -2; wanted an integer of 0 or more"),
    ("nomic-bert-moe", {"nomic-bert-moe.moe_every_n_layers": 1.5}, {}, "is 1.5; wanted an integer of 0 or more"),
    ("nomic-bert-moe", {"nomic-bert-moe.moe_every_n_layers": 1}, {}, "'blk.1.ffn_up.weight'"),
    (
        "nomic-bert-moe",
        {"nomic-bert-moe.expert_count": 5},
        {},
        r"'blk.1.ffn_gate_inp.weight' has shape \[4, 16\]; wanted \[5, 16\]",
    ),
    ("nomic-bert-moe", {"nomic-bert-moe.expert_used_count": 5}, {}, "wanted at most the 4 experts"),
    (
        "gemma-embedding",
        {},
        {"dense_3.weight": np.zeros((8, 9), np.float32)},
        r"'dense_3.weight' has shape \[8, 9\]; wanted \[8, 24\]",
    ),
    (
        "jina-bert-v2",
        {"jina-bert-v2.attention.head_count": 3},
        {},
        "the file has no key 'jina-bert-v2.attention.key_length'",
    ),
]


@pytest.mark.parametrize(("name", "keys", "tensors", "words"), HOSTILE_OF)
def test_wrong_keys_and_tensors_of_families_are_named(
    name: str, keys: dict[str, Any], tensors: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = changed_model(tiny_encoder(name, tmp_path), tmp_path, keys=keys, tensors=tensors)
    with pytest.raises(ModelError, match=words) as caught, EmbeddingModel(path, threads=1) as model:
        model.embed("a")
    assert "\n" not in str(caught.value)


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has recurrent layers; wanted an encoder"):
        EmbeddingModel(tiny_model("lfm2", tmp_path), pooling="last")


def test_an_encoder_writes_no_text(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"bert is an encoder.*EmbeddingModel"):
        LanguageModel(tiny_encoder("bert", tmp_path))


@pytest.mark.parametrize(
    ("options", "words"), [({"context": 65}, "64 tokens only"), ({"pooling": "max"}, "mean, cls, last")]
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((ContextError, SettingError), match=words):
        EmbeddingModel(tiny_encoder("bert", tmp_path), **options)


HOSTILE = [
    ("bert.pooling_type", 9, "an integer from 0 to 4"),
    ("bert.pooling_type", "cls", "an integer from 0 to 4"),
    ("bert.pooling_type", 4, "is a reranker"),
    ("tokenizer.ggml.token_type_count", 5, r"'token_types.weight' has shape \[2, 32\]; wanted \[5, 32\]"),
    ("tokenizer.ggml.token_type_count", "two", "an integer of 0 or more"),
    ("tokenizer.ggml.seperator_token_id", 99, "a token id below 24"),
]


@pytest.mark.parametrize(("key", "value", "words"), HOSTILE)
def test_a_wrong_key_is_named(key: str, value: int | str, words: str, tmp_path: Path) -> None:
    path = changed_model(tiny_encoder("bert", tmp_path), tmp_path, keys={key: value})
    with pytest.raises(ModelError, match=words), EmbeddingModel(path) as model:
        model.embed("a")


@pytest.mark.parametrize("n", [2, 256])
def test_tables_of_distances_without_buckets_for_both_sides_are_named(n: int, tmp_path: Path) -> None:
    table = np.zeros((n, 4), np.float32)
    path = changed_model(tiny_encoder("t5encoder", tmp_path), tmp_path, tensors={"enc.blk.0.attn_rel_b.weight": table})
    with (
        pytest.raises(ModelError, match=f"{n} buckets of distances; wanted a multiple of 4"),
        EmbeddingModel(path, activations="f32", threads=1) as model,
    ):
        model.embed(["a"])
