"""What families with layers of their own do beyond others is wrong on purpose, and shows in the logits of their tiny models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.language_model import LanguageModel
from camshaft.models.blocks import recurrent
from camshaft.models.families import rwkv
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models import changed_model
from tests.support.tiny_families import BROKEN, context_of, difference_of

TOLERANCE = 1e-3
# Tensors of which each changes the logits, by model.
COUNTS = [
    ("kimi-linear", ("ssm_a", "ssm_dt.bias", "ssm_beta.weight", "ssm_norm.weight", "ssm_g_b.weight", "ssm_f_a.weight")),
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
CONSTANTS += [("kimi-linear", recurrent, "LENGTH_EPS", 1.0), ("rwkv7", rwkv, "LENGTH_EPS", 1.0)]


def difference(path: Path, name: str) -> float:
    tokens, wanted = tiny_logits(name)
    with LanguageModel(path, activations="f32", threads=1, context=context_of(tokens), sessions=1) as lm:
        return float(np.abs(lm.logits(tokens) - wanted).max())


@pytest.mark.full
@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in COUNTS for part in parts])
def test_each_tensor_counts(name: str, part: str, tmp_path: Path) -> None:
    with open_gguf(tiny_model(name, tmp_path)) as file:
        full = next(tensor for tensor in file.tensors if tensor.endswith(f".{part}"))
        values = file.tensors[full].dequantize()
    turned = {full: np.ascontiguousarray(values.ravel()[::-1].reshape(values.shape))}
    assert difference(changed_model(name, tmp_path, tensors=turned), name) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(("name", "module", "constant", "wrong"), CONSTANTS)
def test_a_wrong_constant_shows(
    name: str, module: object, constant: str, wrong: float, tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    breaking.setattr(module, constant, wrong)
    assert difference_of(name, tmp_path) > BROKEN


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
