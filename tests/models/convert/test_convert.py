"""convert(): a folder of Hugging Face's layout becomes the file that llama.cpp's converter writes, or one line says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from camshaft.cli.main import app
from camshaft.errors import CamshaftError, FormatError, ModelError, StoreError
from camshaft.formats.gguf.file import GGUFFile, open_gguf
from camshaft.formats.gguf.write import encoded_value
from camshaft.models.convert.architectures import ARCHITECTURES
from camshaft.models.convert.convert import convert
from camshaft.models.convert.delta_rule import rotation_sections
from camshaft.models.convert.families.experts import adjusted_ffn, hunyuan_experts
from camshaft.models.convert.families.llama4 import llama4_keys
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.families import FAMILIES, OTHERS
from tests.support.models.hub_folders import CONFIGS, hub_folder


def same_keys(file: GGUFFile, frozen: GGUFFile, others: tuple[str, ...] = ("general.name",)) -> None:
    """Every key of the frozen file is in the other, with the same type and bytes; `others` aside."""
    for key in frozen.metadata:
        if key not in others:
            assert key in file.metadata, key
            assert file.metadata.type_id(key) == frozen.metadata.type_id(key), key
            assert file.metadata.raw(key) == frozen.metadata.raw(key), key


@pytest.mark.parametrize("family", CONFIGS)
def test_a_folder_becomes_the_frozen_file(family: str, tmp_path: Path) -> None:
    folder, wanted = hub_folder(family, tmp_path, shards=2 if family == "llama" else 1)
    seen: list[tuple[int, int]] = []
    result = convert(folder, tmp_path / "out.gguf", progress=lambda done, total: seen.append((done, total)))
    with open_gguf(tmp_path / "out.gguf") as file, open_gguf(wanted) as frozen:
        same_keys(file, frozen)
        assert {*file.tensors} == {*frozen.tensors}
        for name, tensor in frozen.tensors.items():
            assert file.tensors[name].shape == tensor.shape
            tolerance = 1e-6 if family == "gemma2" else 0  # 1 was subtracted before it is added
            np.testing.assert_allclose(file.tensors[name].dequantize(), tensor.dequantize(), atol=tolerance)
    assert result.n_tensors == {"F32": len(frozen.tensors)}
    assert seen[-1][0] == seen[-1][1]


def test_types_are_those_of_quantize(tmp_path: Path) -> None:
    from camshaft.models.files.quantize import quantize

    folder, wanted = hub_folder("llama", tmp_path)
    convert(folder, tmp_path / "out.gguf", "q4_0")
    quantize(wanted, tmp_path / "quantized.gguf", "Q4_0")
    with open_gguf(tmp_path / "out.gguf") as file, open_gguf(tmp_path / "quantized.gguf") as other:
        for name, tensor in other.tensors.items():
            assert file.tensors[name].format is tensor.format
            np.testing.assert_array_equal(file.tensors[name].data(), tensor.data())
        assert file.metadata["general.file_type"] == 2


def test_bf16_weights_stay_so_and_norms_become_f32(tmp_path: Path) -> None:
    folder, _ = hub_folder("llama", tmp_path, change=lambda t: {n: v.astype(ml_dtypes.bfloat16) for n, v in t.items()})
    convert(folder, tmp_path / "out.gguf")
    with open_gguf(tmp_path / "out.gguf") as file:
        assert file.tensors["blk.0.attn_q.weight"].format.name == "BF16"
        assert file.tensors["blk.0.attn_norm.weight"].format.name == "F32"


def _raw_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray[Any, Any]]]) -> None:
    """A file with dtypes that the package does not write."""
    header, first, data = {}, 0, b""
    for name, (kind, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [first, first := first + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("kind", ["matrix", "rows", "blocks"])
def test_fp8_weights_are_multiplied_by_their_scales(kind: str, tmp_path: Path) -> None:
    folder, _ = hub_folder("llama", tmp_path)
    shape = {"matrix": (1,), "rows": (64, 1), "blocks": (1, 1)}[kind]
    codes = np.random.default_rng(0).standard_normal((64, 64)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)
    name = "model.layers.0.self_attn.v_proj"
    from safetensors.numpy import load_file

    tensors = {n: ("F32", v) for n, v in load_file(folder / "model-1.safetensors").items()}
    rows = codes[:32], scale[:32] if kind == "rows" else scale
    end = "weight_scale_inv" if kind == "blocks" else "weight_scale"
    tensors |= {f"{name}.weight": ("F8_E4M3", rows[0]), f"{name}.{end}": ("F32", rows[1])}
    _raw_safetensors(folder / "model-1.safetensors", tensors)
    convert(folder, tmp_path / "out.gguf", "F32")
    with open_gguf(tmp_path / "out.gguf") as file:
        wanted = rows[0].astype(np.float32) * rows[1].reshape(-1, 1)
        np.testing.assert_array_equal(file.tensors["blk.0.attn_v.weight"].dequantize(), wanted)


def _config(folder: Path, **values: Any) -> None:
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(old | values))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "class": (
        {"architectures": ["NoSuchForCausalLM"]},
        "no conversion of 'NoSuchForCausalLM'; camshaft converts Llama",
    ),
    "no class": ({"architectures": []}, "names no architectures"),
    "heads": ({"num_attention_heads": 5}, "do not divide"),
    "text": ({"hidden_size": "many"}, "hidden_size or n_embd is 'many'; wanted a number"),
    "infinite": ({"rms_norm_eps": float("inf")}, "is inf; wanted a number"),
    "fraction": ({"num_key_value_heads": 0.5}, "wanted an integer of 1 or more"),
    "rope": ({"rope_scaling": {"rope_type": "strange"}}, "rope_type is 'strange'"),
    "rope is a list": ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; wanted an object"),
    "base is a text": ({"rope_parameters": {"rope_theta": "10k"}}, "rope_theta is '10k'; wanted a number"),
    "scale is negative": ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor is -2; wanted a number of 0"),
    "no scale": ({"rope_scaling": {"type": "linear", "factor": None}}, "rope_type is linear without a factor"),
    "too few layers": ({"num_hidden_layers": 1}, "names 1 layers; the folder has tensors of 2"),
    "too many layers": ({"num_hidden_layers": 3}, "names 3 layers; the folder has tensors of 2"),
    "vocabulary": ({"vocab_size": 1 << 40}, "wanted an integer of 1 or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_makes_no_sense_is_one_line(case: str, tmp_path: Path) -> None:
    folder, _ = hub_folder("llama", tmp_path)
    values, words = REFUSED[case]
    _config(folder, **values)
    with pytest.raises(CamshaftError, match=words) as error:
        convert(folder, tmp_path / "out.gguf")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.gguf").exists()


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    one = np.zeros((2, 2), np.float32)
    cases: list[tuple[str, Any, str]] = [
        (
            "llama",
            lambda t: {**t, "model.layers.0.strange.weight": one},
            r"'model\.layers\.0\.strange\.weight' is not a tensor",
        ),
        ("llama", lambda t: {**t, "model.layers.0.mlp.up_proj.qweight": one.astype(np.int32)}, "neither GPTQ nor AWQ"),
        ("llama", lambda t: {**t, "model.norm.weight": np.zeros(64, np.int32)}, "is I32 without a scale"),
        ("llama", lambda t: {**t, "a.weight_scale": one}, "has the scale of 'a.weight', but no such tensor"),
        (
            "qwen3moe",
            lambda t: {n: v for n, v in t.items() if "experts.3.up" not in n},
            "ffn_up_exps has 3 experts of 2 shapes; wanted 4 of one",
        ),
    ]
    for i, (family, change, words) in enumerate(cases):
        (tmp_path / str(i)).mkdir()
        folder, _ = hub_folder(family, tmp_path / str(i), change=change)
        with pytest.raises(ModelError, match=words):
            convert(folder, tmp_path / "out.gguf")


def test_folders_and_targets_that_cannot_be(tmp_path: Path) -> None:
    folder, frozen = hub_folder("llama", tmp_path)
    with pytest.raises(FormatError, match="is not a folder"):
        convert(frozen, tmp_path / "out.gguf")
    with pytest.raises(StoreError, match="exists already"):
        convert(folder, frozen)
    with pytest.raises(FormatError, match="no file type 'Q9'"):
        convert(folder, tmp_path / "out.gguf", "Q9")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FormatError, match=r"has no tokenizer\.json or tokenizer\.model"):
        convert(folder, tmp_path / "out.gguf")


def test_the_command(tmp_path: Path) -> None:
    def cli(*arguments: str) -> Any:
        return CliRunner().invoke(app, arguments)

    folder, _ = hub_folder("llama", tmp_path)
    result = json.loads(cli("convert", str(folder), str(tmp_path / "out.gguf"), "F16", "--json").stdout)
    assert (result["architecture"], {*result["n_tensors"]}) == ("llama", {"F16", "F32"})
    refused = cli("convert", str(folder), str(tmp_path / "out.gguf"))
    assert refused.exit_code == 2
    assert "exists already; --force replaces it" in refused.stderr


def test_every_row_is_of_a_family_that_runs() -> None:
    assert {row.name for row in ARCHITECTURES.values()} <= {*FAMILIES, *OTHERS}


@pytest.mark.parametrize(
    ("keys", "values", "wanted"),
    [
        (hunyuan_experts, {"num_experts": 4, "intermediate_size": 8, "moe_topk": {}}, "moe_topk is {}; wanted a number"),
        (hunyuan_experts, {"num_experts": 4, "intermediate_size": 8, "moe_topk": [[1]]}, r"moe_topk is \[1\]; wanted"),
        (hunyuan_experts, {"num_experts": 4, "intermediate_size": 8, "moe_topk": 2.5}, "moe_topk is 2.5; wanted an int"),
        (hunyuan_experts, {"num_experts": 4, "intermediate_size": 1e300}, "ffn_hidden_size is 1e.300; wanted an int"),
        (hunyuan_experts, {"intermediate_size": 10**400}, "intermediate_size .* is 1000.*; wanted a number"),
        (adjusted_ffn, {"intermediate_size": 8, "block_ffn_dim_multiplier": 1e30}, "width is .*; wanted an integer"),
        (
            rotation_sections,
            {"hidden_size": 8, "num_attention_heads": 1, "rope_scaling": {"mrope_section": ["a"]}},
            "mrope_section is 'a'; wanted a number",
        ),
        (
            llama4_keys,
            {"num_local_experts": 4, "num_hidden_layers": 2**31 - 1, "num_experts_per_tok": 1, "intermediate_size": 8}
            | {"intermediate_size_mlp": 8, "no_rope_layers": [1, 1]},
            "no_rope_layers is not every fourth layer",
        ),
    ],
)  # fmt: skip
def test_numbers_of_experts_and_layers_that_make_no_sense_are_one_line(
    keys: Any, values: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(ModelError, match=wanted) as error:
        keys(HubConfig(values, "X", "config.json"))
    assert "\n" not in str(error.value)


def test_rotations_are_read_as_published_files_name_them() -> None:
    """Qwen2-VL has a type of its own beside its sections; MiniMax M2 rotates half of a head, as a number of elements."""
    sizes = {"hidden_size": 256, "num_attention_heads": 2}
    qwen = HubConfig({**sizes, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, "X", "c")
    assert (qwen.rope["rope_type"], qwen.rope_dim) == ("default", 128)
    assert rotation_sections(qwen) == {"rope.dimension_sections": [16, 24, 24, 0]}
    assert HubConfig({**sizes, "rotary_dim": 64}, "X", "c").rope_dim == 64
    assert HubConfig({**sizes, "rotary_dim": 64, "partial_rotary_factor": 1.0}, "X", "c").rope_dim == 128
    assert ARCHITECTURES["PhiMoEForCausalLM"].name == "phimoe"


@pytest.mark.parametrize(
    ("value", "wanted"), [(1 << 63, "64 bits"), (-(1 << 63) - 1, "64 bits"), (1e300, "at most 3.4")]
)
def test_numbers_that_no_file_holds_are_named(value: float, wanted: str) -> None:
    with pytest.raises(FormatError, match=wanted):
        encoded_value(value)
