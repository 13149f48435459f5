"""Tiny models of families whose rows are others' or near them: those of other families under other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.formats.gguf.file import open_gguf
from tests.support.fixtures import tiny_model
from tests.support.models.files import changed_model

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Renamed:
    """A tiny model of another family, with other values of keys, without tensors whose names end so, and with `made` tensors in
    place of all that it has, where that is given. `family` is its row, where it is not the name."""

    base: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    made: Callable[[Arrays], Arrays] = lambda tensors: tensors
    family: str = ""


def _first_is_second(tensors: Arrays) -> Arrays:
    """One layer: the second one, with experts."""
    others = {name: values for name, values in tensors.items() if not name.startswith("blk.")}
    return others | {n.replace("blk.1.", "blk.0."): v for n, v in tensors.items() if n.startswith("blk.1.")}


def _repeated(layers: int) -> Callable[[Arrays], Arrays]:
    """So many layers, the model's own in turn, whose results are small beside what they are added to."""

    def made(tensors: Arrays) -> Arrays:
        own = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
        found = {name: values for name, values in tensors.items() if not name.startswith("blk.")}
        for layer in range(layers):
            prefix = f"blk.{layer % own}."
            for name in (name for name in tensors if name.startswith(prefix)):
                small = name.endswith(("attn_output.weight", "ffn_down.weight"))
                found[f"blk.{layer}.{name.removeprefix(prefix)}"] = tensors[name] / (4 if small else 1)
        return found

    return made


def _joined(tensors: Arrays) -> Arrays:
    """q, k and v as one tensor, with a head of keys for each of queries."""
    found = {name: values for name, values in tensors.items() if ".attn_" not in name or "norm" in name}
    for layer in range(2):
        found[f"blk.{layer}.attn_output.weight"] = tensors[f"blk.{layer}.attn_output.weight"]
        for end in ("weight", "bias"):
            q, k, v = (tensors[f"blk.{layer}.attn_{part}.{end}"] for part in "qkv")
            wide = [part.reshape(2, 16, -1).repeat(2, axis=0).reshape(q.shape) for part in (k, v)]
            found[f"blk.{layer}.attn_qkv.{end}"] = np.concatenate([q, *wide])
    return found


def _with_output_biases(tensors: Arrays) -> Arrays:
    rng = np.random.default_rng(0)
    return tensors | {f"blk.{layer}.attn_output.bias": rng.standard_normal(64).astype(np.float32) for layer in range(2)}


def _output_alone(tensors: Arrays) -> Arrays:
    """The output is the table of embeddings too."""
    table = tensors["token_embd.weight"]
    return {name: values for name, values in tensors.items() if name != "token_embd.weight"} | {"output.weight": table}


def _normed_after(last: str, *, dense: bool = False) -> Callable[[Arrays], Arrays]:
    """Norms of what attention and feed-forward give, the `last` by its name; a dense feed-forward beside the experts."""

    def made(tensors: Arrays) -> Arrays:
        rng, found = np.random.default_rng(1), dict(tensors)
        width = len(tensors["output_norm.weight"])
        for prefix in ("blk.0", "blk.1"):
            for name in ("attn_output_norm", last):
                found[f"{prefix}.{name}.weight"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
            for name in ("gate", "up", "down") if dense else ():
                found[f"{prefix}.ffn_{name}.weight"] = tensors[f"{prefix}.ffn_{name}_exps.weight"][1]
        return found

    return made


GROK_SCALES = {"attention.output_scale": 0.2, "embedding_scale": 2.0, "logit_scale": 0.7}
GROK_SCALES |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
_YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 16, "yarn_ext_factor": 1.0}
_YARN |= {"yarn_attn_factor": 1.0, "yarn_beta_fast": 8.0, "yarn_beta_slow": 1.0}
_EXPERTS = {"expert_gating_func": 1, "expert_weights_norm": False}
_NORMS = (".attn_q_norm.weight", ".attn_k_norm.weight")
_DOTS = (*_NORMS, ".exp_probs_b.bias")
RENAMED: dict[str, Renamed] = {
    "xverse": Renamed("llama"),
    "starcoder": Renamed("gpt2"),
    "maincoder": Renamed("hunyuan-dense"),
    "deepseek": Renamed("dots1", _EXPERTS, _DOTS),
    "bailingmoe": Renamed(
        "dots1", {**_EXPERTS, "block_count": 1, "leading_dense_block_count": 0}, _DOTS, _first_is_second
    ),
    "baichuan": Renamed("llama", {"block_count": 32}, made=_repeated(32)),
    "baichuan-13b": Renamed(
        "llama", {"block_count": 40, "attention.head_count_kv": 2}, made=_repeated(40), family="baichuan"
    ),
    "qwen": Renamed("qwen2", {"feed_forward_length": 64, "attention.head_count_kv": 4}, made=_joined),
    "pangu-embedded": Renamed("qwen2", made=_with_output_biases),
    "grok": Renamed("mixtral", made=_normed_after("layer_output_norm")),
    "grok-2": Renamed(
        "mixtral",
        {**GROK_SCALES, **{f"rope.scaling.{key}": value for key, value in _YARN.items()}},
        made=_normed_after("post_ffw_norm", dense=True),
        family="grok",
    ),
    "nanbeige": Renamed("llama", {"num_loops": 3}),
    "nanbeige-bare": Renamed("llama", {"num_loops": 2, "skip_loop_final_norm": True}, family="nanbeige"),
    "plamo": Renamed("llama", without=(".ffn_norm.weight",)),
    "codeshell": Renamed("starcoder2", made=_output_alone),
}


def renamed(name: str, folder: Path) -> Path:
    """The tiny model of RENAMED as one of the family."""
    row = RENAMED[name]
    family = row.family or name
    with open_gguf(tiny_model(row.base, folder)) as file:
        old = str(file.metadata["general.architecture"])
        kept = {key.removeprefix(f"{old}."): file.metadata[key] for key in file.metadata if key.startswith(f"{old}.")}
        had = [*file.tensors]
        tensors = row.made(
            {n: t.dequantize() for n, t in file.tensors.items() if not n.endswith(row.without or ("?",))}
        )
    values = {
        key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in {**kept, **row.keys}.items()
    }
    keys = {"general.architecture": family, **{f"{family}.{key}": value for key, value in values.items()}}
    old_keys = [f"{old}.{key}" for key in kept]
    return changed_model(row.base, folder, keys=keys, drop_keys=old_keys, drop_tensors=had, tensors=tensors)
