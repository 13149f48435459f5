"""What families with layers of their own do beyond others is wrong on purpose, and shows in the logits of their tiny models."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate import language_model
from camshaft.generate.language_model import LanguageModel
from camshaft.models.blocks import recurrent
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.families import gemma3n, rwkv
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.tiny_families import BROKEN, context_of, difference_of

TOLERANCE = 1e-3
# Tensors of which each changes the logits, by model.
COUNTS = [
    ("kimi-linear", ("ssm_a", "ssm_dt.bias", "ssm_beta.weight", "ssm_norm.weight", "ssm_g_b.weight", "ssm_f_a.weight")),
    ("gemma3n", ("altup_proj.weight", "altup_unembd_proj.weight", "altup_router.weight", "altup_router_norm.weight")),
    ("gemma3n", ("altup_predict_coef.weight", "altup_correct_coef.weight", "altup_correct_scale.weight")),
    ("gemma3n", ("laurel_l.weight", "laurel_r.weight", "laurel_post_norm.weight", "per_layer_proj_norm.weight")),
    (
        "gemma3n",
        ("inp_gate.weight", "proj.weight", "post_norm.weight", "post_ffw_norm.weight", "post_attention_norm.weight"),
    ),
    ("plamo2", ("ssm_a", "ssm_d", "ssm_dt.bias", "ssm_b_norm", "ssm_c_norm", "ssm_dt_norm", "attn_q_norm.weight")),
    ("plamo2", ("attn_k_norm.weight", "post_attention_norm", "post_ffw_norm", "ssm_conv1d.weight", "ssm_x.weight")),
    ("phi2", ("output.bias", "attn_q.bias", "attn_output.bias", "ffn_up.bias", "ffn_down.bias", "attn_norm.bias")),
    ("dbrx", ("attn_output_norm.weight",)),
    ("minicpm3", ("attn_kv_b.weight", "attn_q_a_norm.weight", "attn_kv_a_norm.weight")),
    ("rwkv6", ("time_mix_first.weight", "time_mix_lerp_fused.weight", "time_mix_w2.weight", "time_mix_decay.weight")),
    (
        "rwkv6",
        ("time_mix_decay_w2.weight", "time_mix_ln.bias", "channel_mix_lerp_k.weight", "channel_mix_lerp_r.weight"),
    ),
    ("rwkv7", ("time_mix_lerp_fused.weight", "time_mix_w2.weight", "time_mix_a0.weight", "time_mix_k_k.weight")),
    ("rwkv7", ("time_mix_k_a.weight", "time_mix_r_k.weight", "time_mix_g1.weight", "channel_mix_lerp_k.weight")),
]
# Constants of modules, and wrong values.
CONSTANTS = [("rwkv6", rwkv, "HEAD_EPS", 1.0), ("rwkv7", rwkv, "HEAD_EPS", 1.0), ("rwkv7", rwkv, "DECAY", 1.0)]
CONSTANTS += [
    ("gemma3n", gemma3n, "LEAST", 10.0),
    ("kimi-linear", recurrent, "LENGTH_EPS", 1.0),
    ("rwkv7", rwkv, "LENGTH_EPS", 1.0),
]


def difference(path: Path, name: str) -> float:
    tokens, wanted = tiny_logits(name)
    with LanguageModel(path, activations="f32", threads=1, context=context_of(tokens), sessions=1) as lm:
        return float(np.abs(lm.logits(tokens) - wanted).max())


@pytest.mark.full
@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in COUNTS for part in parts])
def test_each_tensor_counts(name: str, part: str, tmp_path: Path) -> None:
    with open_gguf(tiny_model(name, tmp_path)) as file:
        full = next(tensor for tensor in file.tensors if f".{tensor}".endswith(f".{part}"))
        values = file.tensors[full].dequantize()
    turned = {full: np.ascontiguousarray(values.ravel()[::-1].reshape(values.shape))}
    assert difference(changed_model(name, tmp_path, tensors=turned), name) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "chatglm", "exaone", "gemma"])
def test_any_family_may_have_q_k_and_v_as_one_tensor(name: str, tmp_path: Path) -> None:
    tensors, dropped = {}, []
    with open_gguf(tiny_model(name, tmp_path)) as file:
        for layer in range(2):
            for end in ("weight", "bias"):
                names = [f"blk.{layer}.attn_{part}.{end}" for part in "qkv"]
                if names[0] in file.tensors:
                    tensors[f"blk.{layer}.attn_qkv.{end}"] = np.concatenate(
                        [file.tensors[n].dequantize() for n in names]
                    )
                    dropped += names
    assert difference(changed_model(name, tmp_path, tensors=tensors, drop_tensors=dropped), name) < TOLERANCE


@pytest.mark.full
def test_older_files_of_minicpm_have_the_scales_of_its_first_models(tmp_path: Path) -> None:
    dropped = [f"minicpm.{key}" for key in ("embedding_scale", "residual_scale", "logit_scale")]
    wanted = {"embedding_scale": 12.0, "residual_scale": 1.4 / 2**0.5, "logit_scale": 256 / 16}
    with open_gguf(tiny_model("minicpm", tmp_path)) as file:
        metadata = {key: value for key, value in file.metadata.items() if key not in dropped}
    config = read_config(metadata, "minicpm", 64)
    assert (config.embedding_scale, config.residual_scale) == pytest.approx((12.0, wanted["residual_scale"]))
    assert config.logit_scale == pytest.approx(16.0)


@pytest.mark.full
@pytest.mark.parametrize(("name", "module", "constant", "wrong"), CONSTANTS)
def test_a_wrong_constant_shows(
    name: str, module: object, constant: str, wrong: float, tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    breaking.setattr(module, constant, wrong)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(
    ("field", "wrong"),
    [("cuts", (None,) * 4), ("cuts", (1.0, None, None, None)), ("active", 1), ("cuts", (1.2815515, 0.0, None, None))],
)
def test_wrong_streams_of_gemma_3n_show(field: str, wrong: Any, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def changed(*given: Any) -> ModelConfig:
        config = read(*given)
        assert config.streams is not None
        return replace(config, streams=replace(config.streams, **{field: wrong}))

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", changed)
    assert difference_of("gemma3n", tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("every", [0, 1])
def test_rwkv_6_halves_its_result_after_so_many_layers(every: int, tmp_path: Path) -> None:
    assert difference(changed_model("rwkv6", tmp_path, keys={"rwkv6.rescale_every_n_layers": every}), "rwkv6") > BROKEN


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("gemma3n", "altup.num_inputs", 1, "altup.num_inputs' is 1; wanted 2 to 16"),
        ("gemma3n", "altup.num_inputs", 1 << 20, "altup.num_inputs' is 1048576; wanted 2 to 16"),
        ("gemma3n", "altup.active_idx", 4, "altup.active_idx' is 4; wanted less than 4"),
        ("gemma3n", "activation_sparsity_scale", [1.0], "wanted 4 numbers"),
        ("gemma3n", "activation_sparsity_scale", [1.0, float("nan"), 1.0, 1.0], "wanted 4 numbers"),
        ("rwkv7", "wkv.head_size", 5, "wkv.head_size' is 5; wanted a divisor of the width 32"),
        ("rwkv7", "wkv.head_size", 0, "wkv.head_size' is 0; wanted an integer of 1 or more"),
        ("kimi-linear", "kda.head_dim", 0, "kda.head_dim' is 0"),
        ("kimi-linear", "ssm.conv_kernel", 1, "ssm.conv_kernel' is 1; wanted 2 to 64"),
        ("plamo2", "attention.head_count", [0, 4, 3], "wanted an integer, or one number and zeros"),
        ("plamo2", "attention.head_count", [0, 0, 0], "wanted an integer, or one number and zeros"),
        ("plamo2", "ssm.time_step_rank", 3, "ssm.inner_size' is 32; wanted a multiple"),
    ],
)
def test_impossible_values_are_named(name: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    with open_gguf(tiny_model(name, tmp_path)) as file:
        metadata = {**file.metadata, f"{name}.{key}": value}
    with pytest.raises(ModelError, match=re.escape(message)):
        read_config(metadata, name, 96)


@pytest.mark.full
def test_values_of_rwkv_7_lean_to_those_of_the_first_layer(tmp_path: Path) -> None:
    with open_gguf(tiny_model("rwkv7", tmp_path)) as file:
        never = {
            name: np.full(t.shape, -100.0, np.float32) for name, t in file.tensors.items() if "time_mix_v0" in name
        }
    assert len(never) == 3
    assert difference(changed_model("rwkv7", tmp_path, tensors=never), "rwkv7") > BROKEN


@pytest.mark.full
def test_older_files_of_rwkv_6_have_lerps_one_by_one(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {}
    with open_gguf(tiny_model("rwkv6", tmp_path)) as file:
        fused = [name for name in file.tensors if name.endswith("lerp_fused.weight")]
        for name in fused:
            rows = file.tensors[name].dequantize()
            tensors |= {name.replace("fused", part): row for part, row in zip("wkvrg", rows, strict=True)}
    path = changed_model("rwkv6", tmp_path, tensors=tensors, drop_tensors=fused)
    assert difference(path, "rwkv6") < TOLERANCE


@pytest.mark.full
def test_rwkv_7_without_gates_is_that_with_gates_of_1(tmp_path: Path) -> None:
    gates, without, dropped = {}, {}, []
    with open_gguf(tiny_model("rwkv7", tmp_path)) as file:
        for layer in range(3):
            first, second, lerps = (f"blk.{layer}.time_mix_{part}.weight" for part in ("g1", "g2", "lerp_fused"))
            gates |= {first: np.zeros((8, 32), np.float32), second: np.full((32, 8), 0.25, np.float32)}
            without[lerps] = file.tensors[lerps].dequantize()[:5]
            dropped += [first, second]
    tokens, wanted = tiny_logits("rwkv7")
    paths = changed_model("rwkv7", tmp_path, tensors=without, drop_tensors=dropped).rename(tmp_path / "without.gguf")
    found = []
    for path in (paths, changed_model("rwkv7", tmp_path, tensors=gates)):
        with LanguageModel(path, activations="f32", threads=1, context=160, sessions=1) as lm:
            found.append(lm.logits(tokens))
    assert np.abs(found[0] - found[1]).max() < TOLERANCE
    assert np.abs(found[0] - wanted).max() > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("name", ["kimi-linear", "rwkv6", "rwkv7", "plamo2", "gemma3n", "minicpm3"])
def test_a_session_that_goes_back_says_the_same(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    half = len(tokens) // 2
    given = {"activations": "f32", "threads": 1, "context": context_of(tokens), "sessions": 3}
    lm = LanguageModel(tiny_model(name, tmp_path), **given)  # type: ignore[arg-type]
    with lm, lm.session() as session, lm.session() as other:
        session.process(tokens[:half])
        session.process([*tokens[half:], tokens[0], tokens[1]])
        other.process(tokens[::-1])
        session.rewind(half)
        with session.copy() as twin:
            assert np.abs(twin.process(tokens[half:]) - wanted[-1]).max() < TOLERANCE
        assert np.abs(session.process(tokens[half:]) - wanted[-1]).max() < TOLERANCE
        other.rewind(0)
        assert np.abs(other.process(tokens) - wanted[-1]).max() < TOLERANCE
