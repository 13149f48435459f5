"""Weights of 4 and 8 bits become the numbers that they stand for; packed here bit by bit, as the formats say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from camshaft.errors import CamshaftError
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.convert.convert import convert
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.packed.packings import PACKINGS, find_packed
from tests.support.models.hub_folders import hub_folder

Array = np.ndarray[Any, Any]
N, K, GROUP = 32, 64, 32
NAME, OURS = "model.layers.0.self_attn.v_proj", "blk.0.attn_v.weight"
_rng = np.random.default_rng(5)
CODES = _rng.integers(0, 16, (N, K))
WIDE = _rng.integers(-128, 128, (N, K))
ZEROS = _rng.integers(1, 16, (N, K // GROUP))
SCALES = (_rng.uniform(0.5, 2, (N, K // GROUP))).astype(np.float16)
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def _words(codes: Array, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """Eight codes a word along the last axis; nibble i has code order[i]."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    return sum(eights[..., c] << np.uint32(4 * i) for i, c in enumerate(order)).astype(np.uint32)


def _numbers(codes: Array = CODES, zeros: Array | int = ZEROS, scales: Array = SCALES) -> Array:
    spread = np.repeat(np.broadcast_to(zeros, scales.shape), codes.shape[1] // scales.shape[1], 1)
    return (codes - spread) * np.repeat(scales.astype(np.float64), codes.shape[1] // scales.shape[1], 1)


def _awq() -> tuple[dict[str, Array], dict[str, Any], Array]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {"qweight": _words(CODES.T, order), "qzeros": _words(ZEROS.T, order), "scales": SCALES.T.copy()}
    return tensors, {"quantization_config": {"quant_method": "awq", "bits": 4}}, _numbers()


def _gptq() -> tuple[dict[str, Array], dict[str, Any], Array]:
    groups = _rng.permutation(np.arange(K) // GROUP).astype(np.int32)
    wanted = np.stack([(CODES[:, k] - ZEROS[:, g]) * SCALES[:, g].astype(np.float64) for k, g in enumerate(groups)], 1)
    tensors = {"qweight": _words(CODES).T.copy(), "qzeros": _words((ZEROS - 1).T), "scales": SCALES.T.copy()}
    settings = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    return tensors | {"g_idx": groups}, settings, wanted


def _compressed() -> tuple[dict[str, Array], dict[str, Any], Array]:
    tensors = {"weight_packed": _words(CODES), "weight_scale": SCALES, "weight_shape": np.array([N, K], np.int64)}
    settings = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {}}}}
    return tensors, settings, _numbers(zeros=8)


def _int8() -> tuple[dict[str, Array], dict[str, Any], Array]:
    scales = SCALES[:, :1].astype(ml_dtypes.bfloat16)
    tensors = {"weight": WIDE.astype(np.int8), "weight_scale": scales}
    return tensors, {}, _numbers(WIDE, 0, scales)


def _mlx() -> tuple[dict[str, Array], dict[str, Any], Array]:
    biases = _rng.standard_normal(SCALES.shape).astype(np.float16)
    tensors = {"weight": _words(CODES), "scales": SCALES, "biases": biases}
    settings = {"quantization": {"bits": 4, "group_size": GROUP}}
    return tensors, settings, _numbers(zeros=0) + np.repeat(biases.astype(np.float64), GROUP, 1)


def _e2m1() -> tuple[dict[str, Array], dict[str, Any], Array]:
    codes = (CODES[:, ::2] | CODES[:, 1::2] << 4).astype(np.uint8)
    scales = _rng.integers(120, 134, (N, K // 16)).astype(np.uint8)
    tensors = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": np.array([4.0], np.float32)}
    return tensors, {}, np.take(E2M1, CODES) * np.repeat(2.0 ** (scales.astype(int) - 127), 16, 1) / 4


KINDS: dict[str, Callable[[], tuple[dict[str, Array], dict[str, Any], Array]]] = {
    "AWQ": _awq,
    "GPTQ": _gptq,
    "compressed-tensors": _compressed,
    "int8": _int8,
    "MLX": _mlx,
    "e2m1": _e2m1,
}


def _folder(tmp_path: Path, tensors: dict[str, Array], settings: dict[str, Any]) -> Path:
    def change(given: dict[str, Array]) -> dict[str, Array]:
        mine = {f"{NAME}.{end}": array for end, array in tensors.items()}
        if "quantization" not in settings:  # all but MLX's words are signed
            mine = {n: a.view(np.int32) if a.dtype == np.uint32 else a for n, a in mine.items()}
        return {n: a for n, a in given.items() if n != f"{NAME}.weight"} | mine

    folder, _ = hub_folder("llama", tmp_path, change=change)
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(old | settings))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_weight_is_what_it_stands_for(kind: str, tmp_path: Path) -> None:
    tensors, settings, wanted = KINDS[kind]()
    convert(_folder(tmp_path, tensors, settings), tmp_path / "out.gguf", "F32")
    with open_gguf(tmp_path / "out.gguf") as file:
        np.testing.assert_array_equal(file.tensors[OURS].dequantize(), wanted.astype(np.float32))


def test_experts_of_gpt_oss_are_turned_as_their_bf16_weights_are() -> None:
    codes, exponents = _rng.integers(0, 256, (2, 6, 3, 16)), _rng.integers(120, 134, (2, 6, 3))
    name, array = "model.layers.0.mlp.experts.gate_up_proj", {}
    array["_blocks"], array["_scales"] = codes.astype(np.uint8), exponents.astype(np.uint8)
    tensors = {name + end: _tensor(name + end, values) for end, values in array.items()}
    found, used = find_packed(tensors, HubConfig({}, "GptOssForCausalLM", "config.json"))
    numbers = np.take(E2M1, np.stack([codes & 15, codes >> 4], -1)).reshape(2, 6, 3, 32) * 2.0 ** (
        exponents[..., None] - 127
    )
    assert {*found} == {name}
    assert used == {*tensors}
    assert found[name].shape == (2, 96, 6)
    np.testing.assert_array_equal(found[name].numbers(), numbers.reshape(2, 6, 96).swapaxes(1, 2))


def _tensor(name: str, values: Array) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(
        name=name, shape=values.shape, format=SimpleNamespace(name="U8"), path="file", array=lambda: values
    )


def test_every_packing_was_tried() -> None:
    assert {packing.name for packing in PACKINGS} <= {*KINDS, "MXFP4"}


def test_tensors_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("GPTQ", {"scales": None}, r"has no '.*v_proj\.scales'"),
        ("GPTQ", {"scales": SCALES.T[:, :8].copy()}, r"\(GPTQ\): .*wanted"),
        ("GPTQ", {"g_idx": np.zeros(K, np.int32)}, "groups unlike in size"),
        ("compressed-tensors", {"weight_shape": np.array([N, 0], np.int64)}, "do not fit each other"),
        ("compressed-tensors", {"weight_g_idx": np.zeros(K, np.int32)}, "wanted weights without"),
        ("MLX", {"biases": None}, r"has no '.*v_proj\.biases'"),
        ("GPTQ", {"bits": "4"}, "bits of its weights is '4'; wanted 1 to 8"),
        ("GPTQ", {"bits": 16}, "bits of its weights is 16; wanted 1 to 8"),
        ("MLX", {"group_size": -1}, "group_size of its weights is -1; wanted 1 to 65536"),
    ]
    for i, (kind, changed, words) in enumerate(wrong):
        tensors, settings, _ = KINDS[kind]()
        for given in settings.values():
            given |= {name: value for name, value in changed.items() if name in given}
        tensors = {end: a for end, a in (tensors | changed).items() if isinstance(a, np.ndarray)}
        (tmp_path / str(i)).mkdir()
        folder = _folder(tmp_path / str(i), tensors, settings)
        with pytest.raises(CamshaftError, match=words) as error:
            convert(folder, tmp_path / "out.gguf", "F32")
        assert "\n" not in str(error.value)
