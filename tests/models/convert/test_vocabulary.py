"""The tokenizer's keys: those of llama.cpp's converter, for tokenizer.json and for SentencePiece's tokenizer.model."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from camshaft.errors import CamshaftError, FormatError, ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.vocabularies.pretokenizer_id import pretokenizer_id
from camshaft.models.convert.vocabularies.sentencepiece_model import read_sentencepiece
from camshaft.models.convert.vocabularies.vocabulary import tokenizer_keys
from camshaft.text.tokenizer import Tokenizer as Ours
from camshaft.text.tokenizers.pretokenizers import PRETOKENIZERS
from scripts.oracles.tiny.vocabulary import make_tokens, write_tokenizer
from tests.support.models.files import require_default_model

CONFIG = HubConfig({"vocab_size": 300, "eos_token_id": [7, 8]}, "LlamaForCausalLM", "config.json")


def test_every_pre_tokenizer_is_found_by_how_it_splits(tmp_path: Path) -> None:
    for name, row in {row.patterns: (name, row) for name, row in PRETOKENIZERS.items()}.values():
        write_tokenizer(tmp_path, name)
        found = pretokenizer_id(Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
        assert PRETOKENIZERS[found].patterns == row.patterns, name


def test_ids_beyond_the_vocabulary_are_unused_and_specials_are_control(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen2")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["pad_token"] = {"content": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    keys = tokenizer_keys(tmp_path, CONFIG)
    tokens, types, merges = make_tokens()
    assert keys["tokenizer.ggml.tokens"] == tokens + [f"[PAD{i}]" for i in range(len(tokens), 300)]
    assert keys["tokenizer.ggml.token_type"].tolist() == types + [5] * (300 - len(tokens))
    assert keys["tokenizer.ggml.merges"] == merges
    assert (keys["tokenizer.ggml.bos_token_id"], keys["tokenizer.ggml.eos_token_id"]) == (1, 2)
    assert keys["tokenizer.ggml.padding_token_id"] == 0
    assert keys["tokenizer.ggml.add_bos_token"] is False


def test_a_real_vocabulary_converts_to_the_default_models_tokens(tmp_path: Path) -> None:
    """The default model's vocabulary as a tokenizer.json: the keys are those of its GGUF file, the name by its hash or words."""
    with open_gguf(require_default_model()) as file:
        texts = list(file.metadata["tokenizer.ggml.tokens"])
        kinds = file.metadata["tokenizer.ggml.token_type"]
        pairs = list(file.metadata["tokenizer.ggml.merges"])
        write_tokenizer(tmp_path, "smollm")
        made = json.loads((tmp_path / "tokenizer.json").read_text())
        made["model"] |= {"vocab": {text: i for i, text in enumerate(texts)}, "merges": pairs}
        made["added_tokens"] = [
            {
                "id": i,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i, text in enumerate(texts)
            if kinds[i] == 3
        ]
        (tmp_path / "tokenizer.json").write_text(json.dumps(made))
        keys = tokenizer_keys(tmp_path, CONFIG)
        assert keys["tokenizer.ggml.pre"] == "smollm"
        assert keys["tokenizer.ggml.tokens"] == texts
        assert keys["tokenizer.ggml.merges"] == pairs
        np.testing.assert_array_equal(keys["tokenizer.ggml.token_type"], kinds)


def _message(*fields: tuple[int, int | float | bytes]) -> bytes:
    """A protocol buffer of varints, f32 and bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += bytes([number << 3]) + _varint(value)
        elif isinstance(value, float):
            out += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            out += bytes([number << 3 | 2]) + _varint(len(value)) + value
    return out


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256))]
PIECES += [("▁a", -0.0, 1), ("▁ab", -1.0, 1), *((letter, -10.0 - i, 1) for i, letter in enumerate("▁abc"))]


def _sentencepiece(kind: int = 2, dummy: bool = True) -> bytes:
    rows = [(1, _message((1, text.encode()), (2, score), (3, number))) for text, score, number in PIECES]
    return _message(*rows, (2, _message((3, kind))), (3, _message((3, int(dummy)))))


@pytest.mark.parametrize("dummy", [True, False])
def test_pieces_of_sentencepiece(dummy: bool, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(_sentencepiece(dummy=dummy))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": 266}))
    decoder = {"1": {"content": "<s>", "special": True}, "267": {"content": "<end>", "special": True}}
    settings = {"added_tokens_decoder": decoder, "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    keys = tokenizer_keys(tmp_path, CONFIG)
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.tokens"][:4] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert keys["tokenizer.ggml.tokens"][266:269] == ["<new>", "<end>", "[PAD268]"]
    assert keys["tokenizer.ggml.token_type"][[0, 1, 3, 259, 266, 267, 268]].tolist() == [2, 3, 6, 1, 4, 3, 5]
    assert keys["tokenizer.ggml.scores"][[259, 260, 266, 268]].tolist() == [0.0, -1.0, -1000.0, -10000.0]
    assert keys["tokenizer.ggml.add_space_prefix"] is dummy
    tokenizer = Ours.from_gguf(keys)
    assert tokenizer.encode("ab") == ([1, 260] if dummy else [1, 262, 263])


def test_a_tokenizer_json_with_byte_fallback_becomes_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    vocabulary = {text: i for i, (text, _, _) in enumerate(PIECES)}
    model = {"type": "BPE", "byte_fallback": True, "vocab": vocabulary, "merges": [["▁", "a"], ["▁a", "b"]]}
    added = [{"id": 1, "content": "<s>", "special": True}]
    post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    made = {"model": model, "added_tokens": added, "post_processor": post}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    keys = tokenizer_keys(tmp_path, CONFIG)
    assert keys["tokenizer.ggml.scores"][[259, 260, 262]].tolist() == [0.0, -1.0, -2.0]
    assert keys["tokenizer.ggml.token_type"][[0, 1, 3]].tolist() == [2, 3, 6]
    assert (keys["tokenizer.ggml.add_bos_token"], keys["tokenizer.ggml.add_eos_token"]) == (True, False)
    assert Ours.from_gguf(keys).encode("ab") == [1, 260]


def test_damaged_sentencepiece_models_are_one_line(tmp_path: Path) -> None:
    path, good = tmp_path / "tokenizer.model", _sentencepiece()
    for data, words in (
        (_sentencepiece(kind=1), "wanted pieces of BPE"),
        (good[:-3], "or damaged"),
        (b"\xff" * 40, "or damaged"),
        (_message((1, 5)), "or damaged"),
        (b"\x0a\xff\xff\xff\xff\x7f", "or damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=words):
            read_sentencepiece(path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"model": {"type": "WordLevel"}}, "is 'WordLevel'; wanted BPE, WordPiece or Unigram"),
    "unigrams": ({"model": {"type": "Unigram"}}, "has no vocabulary"),
    "no texts": ({"model": {"type": "Unigram", "vocab": [3, "a", []]}}, "has no vocabulary"),
    "scores": ({"model": {"type": "Unigram", "vocab": [["a"]]}}, "not a list of texts with scores"),
    "character map": (
        {"model": {"type": "Unigram", "vocab": [["a", -1.0]]}, "normalizer": {"precompiled_charsmap": "%"}},
        "precompiled_charsmap is not base64",
    ),
    "none": ({"model": 3}, "is None; wanted BPE"),
    "vocabulary": ({"model": {"type": "BPE", "vocab": []}}, "has no vocabulary and merges"),
    "merge": ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, "has the merge 'a'; wanted two tokens"),
    "id": (
        {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [{"id": 1 << 30, "content": "x"}]},
        "no id below",
    ),
    "added": (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": 7},
        "added_tokens is 7; wanted a list",
    ),
    "rows": ({"model": {"type": "Unigram", "vocab": [["a", -1.0], {"b": 1}]}}, "is not a list of texts with scores"),
    "pieces": ({"model": {"type": "WordPiece", "vocab": 3}}, "has no vocabulary"),
    "damaged": ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": 1}, "tokenizer.json: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tokenizer_json_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    values, words = REFUSED[case]
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(CamshaftError, match=words) as error:
        tokenizer_keys(tmp_path, CONFIG)
    assert "\n" not in str(error.value)


def test_a_splitter_that_nobody_has_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen2")
    made = json.loads((tmp_path / "tokenizer.json").read_text())
    made["pre_tokenizer"] = {"type": "Whitespace"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    with pytest.raises(ModelError, match="splits text as none of camshaft's pre-tokenizers does"):
        tokenizer_keys(tmp_path, CONFIG)
