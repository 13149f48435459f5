"""`convert --mmproj`: the vision encoder of a folder becomes the second file of a model that sees images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.safetensors import write_safetensors
from camshaft.models.convert.convert import convert
from tests.support.models.images import tiny_vision, vision_difference

_LAYER = {"ln1": "layer_norm1", "ln2": "layer_norm2", "attn_out": "self_attn.out_proj", "ffn_up": "mlp.fc1"}
_LAYER |= {"ffn_down": "mlp.fc2", **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}}
_TOP = {"v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding"}
_TOP |= {"v.post_ln": "post_layernorm"}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
CONFIG = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "scale_factor": 2,
    "text_config": {"hidden_size": 32},
    "vision_config": {**VISION, "num_hidden_layers": 2, "hidden_act": "gelu_pytorch_tanh"},
}


def write_preprocessor(folder: Path, projector: str) -> None:
    """How the processors of the tiny models prepare images."""
    sizes = {"idefics3": {"longest_edge": 64}, "qwen": {"shortest_edge": 64, "longest_edge": 900}}
    values: dict[str, Any] = {"image_mean": [0.5, 0.4, 0.6], "image_std": [0.5, 0.25, 0.3]}
    values["size"] = sizes.get("qwen" if projector.startswith("qwen") else projector, {"height": 32, "width": 32})
    values |= {"min_image_tokens": 4, "max_image_tokens": 12} if projector == "lfm2" else {}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


def theirs(name: str) -> str:
    """transformers' name of a tensor of the tiny idefics3's file."""
    stem, _, ending = name.rpartition(".")
    if stem == "mm.model.fc":
        return f"model.connector.modality_projection.proj.{ending}"
    if stem in _TOP:
        return f"model.vision_model.{_TOP[stem]}.{ending}"
    _, _, layer, role = stem.split(".")
    return f"model.vision_model.encoder.layers.{layer}.{_LAYER[role]}.{ending}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny idefics3 as a folder, with a tensor of its text part."""
    made = tmp_path / "hub"
    made.mkdir()
    with open_gguf(tiny_vision("idefics3", tmp_path)[1]) as file:
        tensors = {theirs(name): tensor.dequantize() for name, tensor in file.tensors.items()}
    tensors |= {"model.text_model.norm.weight": np.ones(32, np.float32), "lm_head.weight": np.ones((4, 32), np.float32)}
    write_safetensors(made / "model.safetensors", tensors)
    (made / "config.json").write_text(json.dumps(CONFIG))
    write_preprocessor(made, "idefics3")
    return made


def changed(folder: Path, name: str = "config.json", **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_converted_encoder_is_the_frozen_one(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = convert(folder, out, "F32", mmproj=True)
    assert result.n_tensors == {"F32": len(result_names := open_gguf(out).tensors)}
    with open_gguf(tmp_path / "mmproj-idefics3.gguf") as frozen, open_gguf(out) as file:
        assert {*result_names} == {*frozen.tensors}
        for key in frozen.metadata:
            np.testing.assert_array_equal(file.metadata[key], frozen.metadata[key], err_msg=key)
        for key, tensor in frozen.tensors.items():
            np.testing.assert_array_equal(file.tensors[key].dequantize(), tensor.dequantize(), err_msg=key)


def test_matrices_have_the_type_and_others_f32(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "out.gguf", "Q8_0", mmproj=True)
    with open_gguf(tmp_path / "out.gguf") as file:
        formats = {name: tensor.format.name for name, tensor in file.tensors.items()}
    assert formats["v.blk.0.attn_q.weight"] == formats["mm.model.fc.weight"] == "Q8_0"
    assert formats["v.blk.0.ffn_down.weight"] == "F16"  # rows of 48
    for name in ("v.patch_embd.weight", "v.position_embd.weight", "v.blk.0.attn_q.bias", "v.post_ln.weight"):
        assert formats[name] == "F32"


@pytest.mark.full
def test_images_look_the_same_through_f16(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "out.gguf", "F16", mmproj=True)
    given = {"activations": "f32", "threads": 1, "context": 256, "sessions": 1}
    with LanguageModel(tmp_path / "idefics3.gguf", mmproj=tmp_path / "out.gguf", **given) as lm:
        assert vision_difference("idefics3", lm) < 2e-2


def test_folders_that_make_no_sense_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    def refusal(*given: Any) -> str:
        with pytest.raises(CamshaftError) as error:
            convert(folder, tmp_path / "out.gguf", *given, mmproj=True)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out.gguf").exists()
        return str(error.value)

    assert "wanted one of F32, F16, BF16, Q8_0" in refusal("Q4_K_M")
    changed(folder, "preprocessor_config.json", image_mean=[0.5])
    assert "image_mean is [0.5]; wanted three numbers" in refusal()
    write_preprocessor(folder, "idefics3")
    for values, message in (
        ({"architectures": ["LlamaForCausalLM"]}, "no mmproj file is made of"),
        ({"architectures": ["LlavaForConditionalGeneration"]}, "no mmproj file is made of"),
        ({"vision_config": None}, "no vision_config"),
        ({"vision_config": {**VISION, "num_hidden_layers": "two"}}, "num_hidden_layers is 'two'; wanted a number"),
        ({"vision_config": {**VISION, "num_hidden_layers": 2, "hidden_act": "tanh"}}, "hidden_act is 'tanh'"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 5}, "mm_tokens_per_image is 5"),
    ):
        (folder / "config.json").write_text(json.dumps(CONFIG))
        changed(folder, **values)
        assert message in refusal("F32")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "preprocessor_config.json").unlink()
    assert "which say how images are prepared" in refusal("F32")
