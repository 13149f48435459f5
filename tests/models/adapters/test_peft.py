"""PEFT folders that are read: scales, patterns and formats; and damaged or hostile ones, which end in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from camshaft import LanguageModel, train
from camshaft.errors import FormatError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.safetensors import write_safetensors
from camshaft.models.adapters.adapter import Adapter, open_adapter
from camshaft.models.adapters.peft_names import NAMINGS
from camshaft.models.families import FAMILIES
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.renamed_families import renamed

pytest.importorskip("safetensors")
Q, V, DOWN = (f"model.layers.0.{m}" for m in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"))
MAGNITUDE = f"base_model.model.{Q}.lora_magnitude_vector"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 3.0}


def pair(module: str, n: int = 64, k: int = 64, rank: int = 2, dtype: Any = np.float32) -> dict[str, Any]:
    """A and B, whose numbers are those of their places."""
    shapes = {"A": (rank, k), "B": (n, rank)}
    return {
        f"base_model.model.{module}.lora_{part}.weight": np.arange(math.prod(s)).reshape(s).astype(dtype)
        for part, s in shapes.items()
    }


def written(folder: Path, config: Any = None, tensors: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    text = config if isinstance(config, (str, bytes)) else json.dumps(CONFIG | (config or {}))
    (folder / "adapter_config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    write_safetensors(folder / "adapter_model.safetensors", pair(Q) if tensors is None else tensors)
    return folder


def opened(folder: Path) -> Adapter:
    with open_gguf(tiny_model("llama", folder.parent)) as model:
        return open_adapter(folder, model)


def test_every_family_of_attention_has_names_and_the_order_of_its_rows() -> None:
    rows = {name: row for name, row in FAMILIES.items() if not row.encoder and not row.recurrent}
    of_programs_of_their_own = {
        "internlm2",
        "exaone",
        "orion",
        "bailingmoe2",
        *("xverse", "starcoder", "maincoder", "deepseek", "bailingmoe", "baichuan", "plamo", "grok"),
    }  # whose modules transformers lacks
    of_images = {"qwen2vl", "qwen3vl", "qwen3vlmoe"}
    of_attention = {name for name in NAMINGS if not FAMILIES[name].recurrent}
    assert of_attention == set(rows) - of_programs_of_their_own - of_images
    rows = {name: row for name, row in rows.items() if name in NAMINGS}
    in_pairs_there_too = {"chatglm", "command-r", "cohere2", "glm4", "ernie4_5", "ernie4_5-moe", "deepseek2", "llama4"}
    in_pairs_there_too |= {"deepseek32", "glm-dsa"}
    assert {name for name, row in rows.items() if row.pairing == "interleaved"} - in_pairs_there_too == {
        name for name in of_attention if NAMINGS[name].orders.get("attn_q") == "halves"
    }


def test_scales_follow_rslora_and_patterns(tmp_path: Path) -> None:
    tensors = pair(Q) | pair(V, n=32, rank=4) | pair(DOWN, k=96, rank=4)
    patterns = {
        "rank_pattern": {"v_proj": 4, "mlp.down_proj": 4},
        "alpha_pattern": {f"^{Q}": 5, "0.mlp.down_proj": 7.5},
    }
    found = opened(written(tmp_path / "plain", patterns, tensors)).scales
    assert found == {"blk.0.attn_q": 5 / 2, "blk.0.attn_v": 3 / 4, "blk.0.ffn_down": 7.5 / 4}
    found = opened(written(tmp_path / "rooted", patterns | {"use_rslora": True}, tensors)).scales
    assert found == {"blk.0.attn_q": 5 / math.sqrt(2), "blk.0.attn_v": 3 / 2, "blk.0.ffn_down": 7.5 / 2}


def test_a_null_is_what_is_left_out(tmp_path: Path) -> None:
    found = opened(written(tmp_path / "peft", {"use_dora": None, "use_rslora": None, "rank_pattern": None}))
    assert (found.scales, found.magnitudes) == ({"blk.0.attn_q": 3 / 2}, {})


@pytest.mark.parametrize("shape", [(32,), (64, 1), ()])
def test_magnitudes_of_another_shape_are_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = pair(Q) | {MAGNITUDE: np.ones(shape, np.float32)}
    with pytest.raises(FormatError, match=r"has lora_magnitude_vector \[.*\]; wanted \[64\]$"):
        opened(written(tmp_path / "peft", {"use_dora": True}, tensors))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_of_q_become_neighbours_in_their_own_format(dtype: Any, tmp_path: Path) -> None:
    found = opened(written(tmp_path / "peft", None, pair(Q, dtype=dtype) | pair(V, n=32, dtype=dtype)))
    a, b = found.pairs["blk.0.attn_q"]
    assert (a.name, a.format.dtype.nbytes) == ("blk.0.attn_q.weight.lora_a", np.dtype(dtype).itemsize)
    np.testing.assert_array_equal(b.dequantize()[:, 0], [64 // 4 * 2 * h + 2 * (i // 2 + i % 2 * 8) for h in range(4)
                                                         for i in range(16)])  # fmt: skip
    np.testing.assert_array_equal(found.pairs["blk.0.attn_v"][1].dequantize()[:, 0], np.arange(0, 64, 2))


@pytest.mark.parametrize("path", [f"model.language_model.{Q[6:]}", f"language_model.{Q}"])
def test_text_models_inside_others_are_found(path: str, tmp_path: Path) -> None:
    assert list(opened(written(tmp_path / "peft", None, pair(path))).pairs) == ["blk.0.attn_q"]


def test_files_may_be_links_as_in_the_hub_s_cache(tmp_path: Path) -> None:
    real, folder = written(tmp_path / "real"), tmp_path / "peft"
    folder.mkdir()
    for path in real.iterdir():
        (folder / path.name).symlink_to(path)
    assert opened(folder).scales == opened(real).scales


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "adapter_config.json: is not JSON: 'Expecting value"),
        ('{"r": 2', "is not JSON"),
        (b"\xff{", "is not JSON: \"'utf-8' codec"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"r": 1' + "0" * 5000 + "}", "is not JSON: 'Exceeds the limit"),
        (" " * (1 << 20) + "{}", "has more than 1048576 bytes"),
        ("[1]", r"has \[1\]; wanted an object"),
        ("{}", "peft_type is None; wanted 'LORA'"),
        ({"peft_type": ["LORA"]}, r"peft_type is \['LORA'\]; wanted 'LORA'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; wanted 'LORA'"),
        ({"r": 0}, "r is 0; wanted an integer of 1 or more"),
        ({"r": True}, "r is True"),
        ({"r": "8"}, "r is '8'"),
        ({"r": 1 << 80}, "r is 1208925819614629174706176"),
        ({"lora_alpha": None}, "lora_alpha is None; wanted a number above 0"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000000"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'; wanted true or false"),
        ({"use_dora": "yes"}, "use_dora is 'yes'; wanted true or false"),
        ({"use_dora": True}, "q_proj' has lora_A.weight, lora_B.weight; wanted .*, lora_magnitude_vector"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"bias": "all"}, "bias is 'all'; wanted 'none'"),
        ({"bias": None}, "bias is None; wanted 'none'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]; wanted a plain LoRA"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters is"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'; wanted an initialization that"),
        ({"init_lora_weights": ["gaussian"]}, "init_lora_weights is"),
        ({"rank_pattern": 0}, "rank_pattern is 0; wanted an object"),
        ({"rank_pattern": [2]}, r"rank_pattern is \[2\]; wanted an object"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern is 0; wanted an integer"),
        ({"rank_pattern": {"q_proj": 4}}, r"has lora_A.weight \[2, 64\]; wanted \[4, 64\]"),
        ({"alpha_pattern": {"(a+)+q_proj": 4}}, r"alpha_pattern has '\(a\+\)\+q_proj'; wanted names of modules"),
        ({"alpha_pattern": {"q_proj": "4"}}, "alpha_pattern is '4'"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        opened(written(tmp_path / "peft", config))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "has 0 tensors; wanted 1 to 16384"),
        (pair("model.layers.9.self_attn.q_proj"), "changes 'model.layers.9.self_attn.q_proj'; the model has no such matrix"),
        (pair("model.layers.00.self_attn.q_proj"), "got the tensor 'base_model.model.model.layers.00.self_attn"),
        (pair("model.layers.0.self_attn.qkv_proj"), "wanted those of llama, such as base_model.model.model.layers.0.self_attn.q"),
        (pair("model.embed_tokens"), "got the tensor 'base_model.model.model.embed_tokens.lora_A.weight'"),
        (pair("a\nb" * 40), "got the tensor 'base_model.model.a"),
        (pair(Q) | {MAGNITUDE: np.ones(64)}, "lora_B.weight, lora_magnitude_vector; wanted lora_A.weight, lora_B"),
        ({"base_model.model.lm_head.base_layer.weight": np.ones((2, 2))}, "got the tensor 'base_model.model.lm_head.base_layer"),
        (dict(list(pair(Q).items())[:1]), "q_proj' has lora_A.weight; wanted lora_A.weight, lora_B.weight"),
        (pair(Q) | pair(f"language_model.{Q}"), "too; wanted one of them"),
        (pair(Q, n=32), r"has lora_B.weight \[32, 2\]; wanted \[64, 2\]"),
        (pair(Q, rank=3), r"has lora_A.weight \[3, 64\]; wanted \[2, 64\]"),
        (pair(Q, rank=0), r"has lora_A.weight \[0, 64\]"),
        ({name: a.reshape(-1) for name, a in pair(Q).items()}, r"has lora_A.weight \[128\]; wanted"),
        (pair(Q, dtype=np.int8), "is I8; wanted F32, F16, BF16"),
    ],
)  # fmt: skip
def test_matrices_that_are_refused(tensors: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        opened(written(tmp_path / "peft", None, tensors))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json: there is no such file"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors: there is no such file"),
        (
            lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
            "peft: has adapter_model.bin, which may run code; wanted adapter_model.safetensors",
        ),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 9), "is not a readable safetensors file"),
        (lambda folder: _folder_instead(folder / "adapter_config.json"), "is a folder; wanted a file"),
    ],
)  # fmt: skip
def test_folders_that_are_refused(change: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "peft")
    change(folder)
    with pytest.raises(FormatError, match=message):
        opened(folder)


def _folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.full
def test_layers_that_run_several_times_have_their_adapter_each_time(tmp_path: Path) -> None:
    base, tokens = renamed("nanbeige", tmp_path), tiny_logits("llama")[0]
    rng = np.random.default_rng(0)
    drawn = {k: rng.normal(0, 0.2, v.shape).astype(np.float32) for k, v in (pair(Q) | pair(DOWN, k=96)).items()}
    folder = written(tmp_path / "peft", {}, drawn)
    train.merge(base, folder, tmp_path / "merged.gguf")
    given = {"activations": "f32", "threads": 1, "context": 64, "sessions": 1}
    with LanguageModel(base, **given) as lm:  # type: ignore[arg-type]
        plain = lm.logits(tokens)
    with LanguageModel(tmp_path / "merged.gguf", **given) as lm:  # type: ignore[arg-type]
        merged = lm.logits(tokens)
    with LanguageModel(base, adapters=[folder], **given) as lm:  # type: ignore[arg-type]
        assert np.abs(lm.logits(tokens) - merged).max() < 1e-3
    assert np.abs(merged - plain).max() > 0.1
