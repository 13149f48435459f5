"""Encoders in Hugging Face's layout: a folder becomes the frozen file; names, poolings and positions of the others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.safetensors import write_safetensors
from camshaft.models.convert.architectures import architecture_of
from camshaft.models.convert.convert import convert
from camshaft.models.convert.families import encoders
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.tensors import parts
from tests.models.convert.test_convert import same_keys
from tests.support.fixtures import tiny_encoder
from tests.support.models.hub_folders import write_encoder_tokenizer

CONFIG = {
    "architectures": ["BertModel"],
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
    "pad_token_id": 0,
}


def _theirs(name: str) -> str:
    """BERT's name of a tensor."""
    stem, _, ending = name.rpartition(".")
    if not stem.startswith("blk."):
        top = next(theirs for theirs, ours in encoders.TOP.items() if ours == stem)
        return f"bert.{top}.{ending}"
    _, layer, role = stem.split(".")
    inner = next(theirs for theirs, ours in encoders.LAYER.items() if ours == role)
    return f"bert.encoder.layer.{layer}.{inner}.{ending}"


def test_a_folder_of_bert_becomes_the_frozen_file(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    with open_gguf(tiny_encoder("bert", tmp_path)) as frozen:
        tensors = {_theirs(name): tensor.dequantize() for name, tensor in frozen.tensors.items()}
        tensors |= {"bert.pooler.dense.weight": np.zeros((32, 32), np.float32)}
        write_safetensors(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        write_encoder_tokenizer(folder, frozen, "cls")
        convert(folder, tmp_path / "out.gguf")
        with open_gguf(tmp_path / "out.gguf") as file:
            same_keys(file, frozen)
            assert {*file.tensors} == {*frozen.tensors}
            for name, tensor in frozen.tensors.items():
                np.testing.assert_array_equal(file.tensors[name].dequantize(), tensor.dequantize())


def _made(config: HubConfig, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = parts(config, architecture_of(config), {name: array.shape for name, array in values.items()})
    return {part.name: part.made(values.__getitem__) for part in found}


def test_parts_of_one_tensor_are_joined_and_positions_begin_behind_the_padding() -> None:
    rows = {name: np.full((2, 4), i, np.float32) for i, name in enumerate("kqv")}
    values = {f"encoder.layers.0.self_attn.{name}_proj.weight": array for name, array in rows.items()}
    joined = _made(HubConfig({"num_attention_heads": 2}, "NomicBertModel", "config.json"), values)
    assert joined["blk.0.attn_qkv.weight"][:, 0].tolist() == [1, 1, 0, 0, 2, 2]
    del values["encoder.layers.0.self_attn.k_proj.weight"]
    with pytest.raises(ModelError, match="has 2 parts of 1 shapes; wanted q, k and v of one"):
        _made(HubConfig({"num_attention_heads": 2}, "NomicBertModel", "config.json"), values)
    positions = {"roberta.embeddings.position_embeddings.weight": np.arange(5, dtype=np.float32)[:, None]}
    xlm_r = HubConfig({"pad_token_id": 1, "max_position_embeddings": 5}, "XLMRobertaModel", "config.json")
    assert _made(xlm_r, positions)["position_embd.weight"][:, 0].tolist() == [2, 3, 4]
    assert encoders.encoder_keys(xlm_r)["context_length"] == 3


def test_jina_3_names_the_class_of_xlm_r() -> None:
    given = {"position_embedding_type": "rotary", "max_position_embeddings": 8}
    config = HubConfig(given, "XLMRobertaModel", "config.json")
    assert architecture_of(config).name == "jina-bert-v3"
    assert encoders.encoder_keys(config)["context_length"] == 8
    values = {
        "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.original": np.ones((6, 2), np.float32),
        "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A": np.ones((5, 4, 2), np.float32),
    }
    assert {*_made(config, values)} == {"blk.0.attn_qkv.weight"}
