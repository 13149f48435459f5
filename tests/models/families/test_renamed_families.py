"""Families whose rows are others' or near them: tiny models of those under other names, beside llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.convert.convert import convert
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.hub_folders import hub_folder
from tests.support.quick import quick_of

Arrays = dict[str, np.ndarray]
GELU = 1e-2  # llama.cpp's is a table in 16 bits


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


_GROK_SCALES = {"attention.output_scale": 0.2, "embedding_scale": 2.0, "logit_scale": 0.7}
_GROK_SCALES |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
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
        {**_GROK_SCALES, **{f"rope.scaling.{key}": value for key, value in _YARN.items()}},
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


def logits_of(path: Path, tokens: list[int], **options: Any) -> np.ndarray:
    given = {"activations": "f32", "threads": 1, "context": 160, "sessions": 1}
    with LanguageModel(path, **given) as lm:  # type: ignore[arg-type]
        return lm.logits(tokens, **options)


@pytest.mark.parametrize("family", quick_of(["xverse", "starcoder", "qwen", "codeshell"], ["xverse", "codeshell"]))
def test_rows_that_are_others_give_transformers_logits(family: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(RENAMED[family].base)
    assert np.abs(logits_of(renamed(family, tmp_path), tokens) - wanted).max() < 1e-3


@pytest.mark.oracle
def test_starcoder_with_one_head_of_keys_is_as_in_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    whole, tensors = renamed("starcoder", tmp_path), {}
    with open_gguf(whole) as file:
        dim, heads = (int(file.metadata[f"starcoder.{key}"]) for key in ("embedding_length", "attention.head_count"))
        rows = [*range(dim + dim // heads), *range(2 * dim, 2 * dim + dim // heads)]
        for name, tensor in file.tensors.items():
            if ".attn_qkv." in name:
                tensors[name] = tensor.dequantize()[rows]
    folder = tmp_path / "one"
    folder.mkdir()
    path = changed_model(whole, folder, keys={"starcoder.attention.head_count_kv": 1}, tensors=tensors)
    tokens = tiny_logits("gpt2")[0]
    assert np.abs(logits_of(path, tokens) - llama.logits(path, tokens, exact=True)).max() < GELU


@pytest.mark.oracle
@pytest.mark.parametrize("family", RENAMED)
def test_logits_are_those_of_llama_cpp(family: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    tokens, path = tiny_logits(RENAMED[family].base)[0], renamed(family, tmp_path)
    wanted = llama.logits(path, tokens, exact=True)
    assert wanted.std(axis=0).mean() > 0.5
    tolerance = GELU if family in ("starcoder", "codeshell", "grok", "grok-2") else 1e-4
    for chunk in (None, 7, 1):
        assert np.abs(logits_of(path, tokens, chunk=chunk) - wanted).max() < tolerance


def test_another_share_of_extrapolation_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    folder.mkdir()
    key = "grok.rope.scaling.yarn_ext_factor"
    path = changed_model(renamed("grok-2", tmp_path), folder, keys={key: 0.5})
    with pytest.raises(ModelError, match=f"the key '{key}' is 0.5; wanted 1"):
        logits_of(path, [1, 2])


@pytest.mark.full
@pytest.mark.parametrize("key", [*_GROK_SCALES, "rope.scaling.factor"])
def test_each_number_of_grok_counts(key: str, tmp_path: Path) -> None:
    tokens, path, folder = tiny_logits("mixtral")[0], renamed("grok-2", tmp_path), tmp_path / "changed"
    folder.mkdir()
    other = changed_model(path, folder, keys={f"grok.{key}": 1.5})
    assert np.abs(logits_of(other, tokens) - logits_of(path, tokens)).max() > 1e-2


@pytest.mark.full
def test_a_session_goes_back_where_layers_run_several_times(tmp_path: Path) -> None:
    path, tokens = renamed("nanbeige", tmp_path), tiny_logits("llama")[0]
    with LanguageModel(path, activations="f32", threads=1, context=64, sessions=2) as lm, lm.session() as session:
        wanted = lm.logits(tokens)
        session.process(tokens)
        session.rewind(9)
        assert np.abs(session.process(tokens[9:]) - wanted[-1]).max() < 1e-4
        assert lm.config.n_layers == 6
    plain = renamed_without_loops(tmp_path)
    assert np.abs(logits_of(plain, tokens) - wanted).max() > 0.1


def renamed_without_loops(folder: Path) -> Path:
    """The same layers, run once."""
    once = folder / "once"
    once.mkdir()
    return changed_model(folder / "changed.gguf", once, keys={"nanbeige.num_loops": 1})


def test_a_folder_of_nanbeige_runs_its_layers_as_often(tmp_path: Path) -> None:
    tokens, wanted = tiny_logits("llama")[0], logits_of(renamed("nanbeige", tmp_path), tiny_logits("llama")[0])
    folder, _ = hub_folder("llama", tmp_path)
    _say(folder, architectures=["NanbeigeForCausalLM"], num_loops=3)
    convert(folder, tmp_path / "out.gguf", "F32")
    assert np.abs(logits_of(tmp_path / "out.gguf", tokens) - wanted).max() < 1e-5
    _say(folder, skip_loop_final_norm="no")
    with pytest.raises(ModelError, match="skip_loop_final_norm is 'no'; wanted true or false"):
        convert(folder, tmp_path / "other.gguf", "F32")


def test_a_folder_of_pangu_keeps_its_biases(tmp_path: Path) -> None:
    rng, sizes = np.random.default_rng(0), {"q": 64, "k": 32, "v": 32, "o": 64}
    biases = {part: rng.standard_normal(n).astype(np.float32) for part, n in sizes.items()}
    added = {f"model.layers.1.self_attn.{part}_proj.bias": values for part, values in biases.items()}
    added |= {f"model.layers.0.self_attn.{part}_proj.bias": np.zeros(n, np.float32) for part, n in sizes.items()}
    folder, _ = hub_folder("llama", tmp_path, change=lambda tensors: tensors | added)
    _say(folder, architectures=["PanguEmbeddedForCausalLM"])
    convert(folder, tmp_path / "out.gguf", "F32")
    with open_gguf(tmp_path / "out.gguf") as file:
        for part, name in {"q": "q", "k": "k", "v": "v", "o": "output"}.items():
            np.testing.assert_array_equal(file.tensors[f"blk.1.attn_{name}.bias"].dequantize(), biases[part])
    tokens, plain = tiny_logits("llama")
    none = {
        f"blk.1.attn_{part}.bias": np.zeros(n, np.float32) for part, n in {**sizes, "output": 64}.items() if part != "o"
    }
    without = changed_model(tmp_path / "out.gguf", tmp_path, tensors=none)
    assert np.abs(logits_of(tmp_path / "out.gguf", tokens) - plain).max() > 0.1
    assert np.abs(logits_of(without, tokens) - plain).max() < 1e-3


def _say(folder: Path, **values: Any) -> None:
    """Other values in config.json."""
    old = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(old | values), "utf-8")
