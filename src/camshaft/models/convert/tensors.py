"""Makes the tensors of a GGUF file from those of transformers: permuted, transposed, stacked, split as llama.cpp's converter
does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.bits import Floats
from camshaft.formats.mapped import shown, shown_value
from camshaft.models.convert.architecture import Architecture
from camshaft.models.convert.delta_rule import delta_changes
from camshaft.models.convert.families import encoders
from camshaft.models.convert.families.gemma4 import still_factors
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.state_space import state_space_changes
from camshaft.models.convert.tensor_names import NewName, is_left_out, layer_of, new_name
from camshaft.models.families import FAMILIES

Change: TypeAlias = Callable[[Floats], Floats]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A tensor to write: `change` of each source, stacked if there are several, or `joined` along the first axis. A part without
    sources has `values`."""

    name: str
    shape: Shape
    sources: tuple[str, ...] = ()
    change: Change = lambda values: values
    values: Floats | None = None
    stacked: bool = False
    joined: bool = False

    def made(self, load: Callable[[str], Floats]) -> Floats:
        """The tensor's values, float32 [*shape]."""
        if self.values is not None:
            return self.values
        loaded = [np.ascontiguousarray(self.change(load(source)), np.float32) for source in self.sources]
        return np.concatenate(loaded) if self.joined else np.stack(loaded) if self.stacked else loaded[0]


def parts(config: HubConfig, row: Architecture, shapes: Mapping[str, Shape]) -> Iterator[Part]:
    """Returns the tensors of the file for the model's shapes. Raises ModelError for a tensor with an unknown name."""
    is_tied = bool(config.get("tie_word_embeddings"))
    if row.encoder_decoder is not None:
        kept = [source for source in shapes if not (is_tied and source.startswith("lm_head."))]
        yield from (Part(name, shapes[source], (source,)) for source, name in row.encoder_decoder.names(kept, config))
        return
    experts: dict[str, dict[int, str]] = {}
    joined: dict[str, dict[int, str]] = {}
    family = FAMILIES[row.name]
    for source, shape in shapes.items():
        if is_left_out(source) or (is_tied and source.startswith("lm_head.")):
            continue
        if config.get("num_nextn_predict_layers") and layer_of(source) >= config.size("layers"):
            continue
        if source.endswith(tuple(row.numbers)):
            continue
        if family.encoder and encoders.is_unused(source, config):
            continue
        found = new_name(encoders.plain_name(source) if family.encoder else source, row.name)
        if found is None:
            raise ModelError(f"{config.path}: {shown(source)} is not a tensor of {row.name} that camshaft knows")
        role = found.name.rpartition(".")[2]
        if family.encoder and family.fused in ("qkv", "all") and role in encoders.JOINED:
            whole = f"{found.name.removesuffix(role)}attn_qkv{found.ending}"
            joined.setdefault(whole, {})[encoders.JOINED[role]] = source
        elif found.expert is not None:
            experts.setdefault(found.name, {})[found.expert] = source
        else:
            for name, change in _changes(found, config, row):
                yield Part(name, _shape(change, shape, source), (source,), change)
    for name, sources in experts.items():
        yield _stack(name, sources, shapes, config)
    for name, sources in joined.items():
        yield _join(name, sources, shapes, config)
    yield from _rotations(config)


def layer_numbers(
    config: HubConfig, row: Architecture, names: Iterable[str], load: Callable[[str], Floats]
) -> dict[str, list[float]]:
    """Metadata from the scalar tensors in `row.numbers`. Raises ModelError for a layer without one, or a tensor of several
    elements."""
    found: dict[str, list[float]] = {}
    for end, key in row.numbers.items():
        sources = {layer_of(name): name for name in names if name.endswith(end)}
        values = [load(sources[layer]) for layer in range(config.size("layers")) if layer in sources]
        if len(values) != config.size("layers") or any(value.size != 1 for value in values):
            raise ModelError(f"{config.path}: wanted a number ...{end} in each of {config.size('layers')} layers")
        found[key] = [float(value.reshape(())) for value in values]
    return found


def _stack(name: str, sources: Mapping[int, str], shapes: Mapping[str, Shape], config: HubConfig) -> Part:
    """Stacks the tensors of all experts. Raises ModelError if one is missing or has another shape."""
    n = config.size("experts") if name.endswith("_exps") else len(sources)
    ordered = tuple(sources.get(i, "") for i in range(n))
    inner = {shapes.get(source) for source in ordered}
    if len(sources) != n or len(inner) != 1 or "" in ordered:
        raise ModelError(f"{config.path}: {name} has {len(sources)} experts of {len(inner)} shapes; wanted {n} of one")
    return Part(f"{name}.weight", (n, *shapes[ordered[0]]), ordered, stacked=True)


def _join(name: str, sources: Mapping[int, str], shapes: Mapping[str, Shape], config: HubConfig) -> Part:
    """Joins q, k and v. Raises ModelError if one is missing or their row lengths differ."""
    ordered = tuple(sources[i] for i in sorted(sources))
    inner = {shapes[source][1:] for source in ordered}
    if len(ordered) != len(encoders.JOINED) or len(inner) != 1:
        raise ModelError(
            f"{config.path}: {name} has {len(ordered)} parts of {len(inner)} shapes; wanted q, k and v of one"
        )
    return Part(name, (sum(shapes[source][0] for source in ordered), *inner.pop()), ordered, joined=True)


def _changes(new: NewName, config: HubConfig, row: Architecture) -> Iterator[tuple[str, Change]]:
    """Yields (name, change) of the tensors made from one."""
    prefix, _, role = new.name.rpartition(".")
    full = new.name + new.ending
    own = list(row.changes(role + new.ending, config)) or list(_recurrent(role + new.ending, config, row))
    if own:
        yield from ((f"{prefix}.{name}" if prefix else name, change) for name, change in own)
        return
    if role.endswith("gate_up_exps"):
        in_turn = row.name == "gpt-oss"  # stored transposed: its columns are outputs
        for i, part in enumerate(("gate", "up")):
            yield full.replace("gate_up", part), _half(i, in_turn=in_turn, turned=in_turn and new.ending == ".weight")
    elif role == "ffn_down_exps" and row.name == "gpt-oss" and new.ending == ".weight":
        yield full, lambda values: values.swapaxes(1, 2)
    elif role in ("attn_q", "attn_k") and row.permuted:
        yield full, _paired(config.size("heads") if role == "attn_q" else kv_heads(config))
    elif role == "attn_qkv" and row.name in ("bloom", "falcon", "gptneox"):
        yield full, _joined_apart(config)
    elif row.transposed and new.ending == ".weight" and role in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
        yield full, np.transpose
    elif role.endswith("norm") and row.norm_offset and new.ending == ".weight":
        yield full, lambda values: values + np.float32(row.norm_offset)
    elif new.name.endswith("shortconv.conv"):
        yield full, lambda values: values.reshape(values.shape[0], -1)
    elif role == "exp_probs_b" or role == "ffn_gate_inp_shexp":
        yield full, lambda values: values.reshape(-1)
    else:
        yield full, lambda values: values


def _recurrent(name: str, config: HubConfig, row: Architecture) -> Iterator[tuple[str, Change]]:
    """Returns the converted tensors of a recurrent layer's tensor, if it needs conversion."""
    kind = FAMILIES[row.name].recurrent
    if kind == "delta":
        yield from delta_changes(name, config, in_turn=row.in_turn)
    elif kind in ("mamba", "mamba2"):
        yield from state_space_changes(name, config, by_heads=kind == "mamba2")


def kv_heads(config: HubConfig) -> int:
    """The number of KV heads; the first Falcon models have one, whatever their config has."""
    if config.architecture == "FalconForCausalLM" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else config.size("heads")
    return config.size("kv_heads", config.size("heads"))


def _half(index: int, *, in_turn: bool, turned: bool) -> Change:
    """Gate (0) or up (1) from [experts, gate and up, ...]: a half, or every other row; `turned`: of the last axis."""

    def change(values: Floats) -> Floats:
        values = values.swapaxes(1, 2) if turned else values
        half = values.shape[1] // 2
        return values[:, index::2] if in_turn else values[:, index * half : (index + 1) * half]

    return change


def _paired(heads: int) -> Change:
    """Moves rows i and i + d/2 of each head next to each other, for interleaved RoPE."""
    return lambda values: (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def _joined_apart(config: HubConfig) -> Change:
    """Reorders rows from groups of (q, k, v) per KV head to all q, then all k, then all v."""
    heads, groups, head_dim = config.size("heads"), kv_heads(config), config.head_dim

    def change(values: Floats) -> Floats:
        rows = values.reshape(groups, heads // groups + 2, head_dim, *values.shape[1:])
        parts = rows[:, :-2], rows[:, -2], rows[:, -1]
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

    return change


def _shape(change: Change, shape: Shape, source: str) -> Shape:
    """The shape of a change's result, found by applying it to zeros that take no memory."""
    try:
        return change(np.broadcast_to(np.float32(0), shape)).shape
    except (ValueError, IndexError):
        raise ModelError(
            f"{shown(source)} has shape {list(shape)}, which the sizes in config.json do not divide"
        ) from None


def _rotations(config: HubConfig) -> Iterator[Part]:
    """RoPE frequency factors, if the config has them."""
    rope = config.rope
    if rope["rope_type"] == "proportional":
        yield _vector("rope_freqs.weight", still_factors(config))
    if rope["rope_type"] == "llama3":
        yield _vector("rope_freqs.weight", _llama3_factors(config, rope))
    if rope["rope_type"] in ("longrope", "su"):
        for kind in ("short", "long"):
            factors = np.asarray(rope.get(f"{kind}_factor"))
            if factors.shape != (config.rope_dim // 2,) or factors.dtype.kind not in "iuf":
                raise ModelError(
                    f"{config.path}: {kind}_factor is {shown_value(rope.get(f'{kind}_factor'))}; wanted numbers"
                )
            yield _vector(f"rope_factors_{kind}.weight", factors)


def _vector(name: str, values: np.ndarray[Any, Any]) -> Part:
    return Part(name, values.shape, values=values.astype(np.float32))


def _llama3_factors(config: HubConfig, rope: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Returns the divisor of each RoPE frequency: 1 for short wavelengths, `factor` for long ones, smooth in between."""
    low, high, factor = (float(rope.get(key, default)) for key, default in _LLAMA3.items())
    frequency = float(rope["rope_theta"]) ** -(np.arange(0, config.rope_dim, 2) / config.rope_dim)
    waves = float(rope.get("original_max_position_embeddings", 8192)) * frequency / (2 * math.pi)
    smooth = np.clip((waves - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
