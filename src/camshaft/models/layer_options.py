"""LayerOptions: what differs between the layers of a model, read from metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.models.configs.experts import expert_layers
from camshaft.models.configs.recurrent import (
    ATTENTION,
    BOTH,
    kv_heads,
    layer_kinds,
    layer_widths,
)
from camshaft.models.families import Family

# More than any model has; a file that lies would unroll a graph for each.
MOST_STREAMS = 16


@dataclass(frozen=True)
class Streams:
    """`n` streams, of which layers compute number `active`. `cuts`: by how many standard deviations a layer's gates must exceed
    their mean, None: all count."""

    n: int
    active: int
    cuts: tuple[float | None, ...]


# Keys that have no architecture in front.
XIELU_KEYS = tuple(f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps"))
# Of numbers that a file says: more would overflow squares of f32.
_MOST = 1e6


@dataclass(frozen=True)
class Xielu:
    """xIELU (Huang and Schlag, 2024): positive x^2 + linear x above 0, else negative (expm1(min(x, edge)) - x) + linear x."""

    positive: float
    negative: float
    linear: float
    edge: float


if TYPE_CHECKING:
    from camshaft.models.file_keys import Keys

# No model has a tenth of them; a file that lies would fill the memory with their options.
MOST_LAYERS = 4096


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a layer in models whose layers differ."""

    n_kv_heads: int
    head_dim: int
    ffn_dim: int


@dataclass(frozen=True)
class LayerOptions:
    """`window`: the tokens that a layer's attention sees, 0 for all; `chunk`: of those only the ones in the same part of the
    context, of this many tokens. `rope`: its rotation table, empty for none. `kind`:
    attention, that of the model's recurrent layers, both, or feed-forward alone. `experts`: whether its feed-forward is the
    mixture of experts. `sizes`: its own ones, None for the model's. `shares`: the layer whose keys and values it reads, -1: its
    own."""

    window: int = 0
    rope: str = "rope"
    kind: str = ATTENTION
    experts: bool = True
    sizes: LayerSizes | None = None
    shares: int = -1
    chunk: int = 0


def read_layers(keys: Keys, family: Family, n_layers: int, head_dim: int) -> tuple[LayerOptions, ...]:
    """Each layer's options. Raises ModelError, naming the key, for an impossible value."""
    windows, kinds = _windows(keys, family, n_layers), layer_kinds(keys, family, n_layers)
    if family.attention and not family.latent:
        keys.require("attention.value_length", head_dim, "the length of keys")
    rotates = _rotates(keys) if family.rotates_if_finetuned else family.rotates
    rotates = rotates and not family.has_alibi(n_layers)
    experts = expert_layers(keys, n_layers)
    layers = tuple(
        LayerOptions(
            window,
            _rope(family, layer, window, any(windows)) if rotates else "",
            kind,
            experts[layer],
            chunk=window if family.chunks else 0,
        )
        if kind in (ATTENTION, BOTH)
        else LayerOptions(0, "", kind, experts[layer])
        for layer, (window, kind) in enumerate(zip(windows, kinds, strict=True))
    )
    return _with_sizes(keys, family, layers, head_dim) if family.layer_sizes else layers


def _with_sizes(
    keys: Keys, family: Family, layers: tuple[LayerOptions, ...], head_dim: int
) -> tuple[LayerOptions, ...]:
    """The layers with sizes of their own, those of heads by window; the last ones read the keys of earlier ones."""
    n, window_dim = len(layers), keys.size("attention.key_length_swa", head_dim)
    keys.require("attention.value_length_swa", window_dim, "the length of keys in layers with a window")
    given = zip(layers, kv_heads(keys, family, n), layer_widths(keys, family, n), strict=True)
    sized = [
        replace(o, sizes=LayerSizes(heads, window_dim if o.window else head_dim, width)) for o, heads, width in given
    ]
    shared = keys.count("attention.shared_kv_layers")
    own = {bool(options.window): layer for layer, options in enumerate(layers[: max(0, n - shared)])}
    for layer in range(max(0, n - shared), n):
        if bool(layers[layer].window) not in own:
            raise ModelError(
                f"the key '{keys.architecture}.attention.shared_kv_layers' is {shared}; wanted earlier layers with and "
                f"without a window among the {n}, whose keys the last ones share"
            )
        sized[layer] = replace(sized[layer], shares=own[bool(layers[layer].window)])
    return tuple(sized)


def _rotates(keys: Keys) -> bool:
    value = keys.metadata.get(f"{keys.architecture}.rope.scaling.finetuned", False)
    if not isinstance(value, bool):
        raise ModelError(
            f"the key '{keys.architecture}.rope.scaling.finetuned' is {shown_value(value)}; wanted True or False"
        )
    return value


def _rope(family: Family, layer: int, window: int, some_windows: bool) -> str:
    unrotated = family.unrotated_every and (layer + 1) % family.unrotated_every == 0
    no_windows_here = family.rotates_windows_only and some_windows and not window
    if unrotated or family.learned_positions or no_windows_here:
        return ""
    return "rope_window" if window and family.window_rope == "plain" else "rope"


def _windows(keys: Keys, family: Family, n_layers: int) -> tuple[int, ...]:
    """Each layer's window; the pattern is the file's (every n-th layer sees all, or which layers have one), else the family's."""
    window = keys.count("attention.sliding_window", family.chunks) if family.windows else 0
    pattern = keys.metadata.get(f"{keys.architecture}.attention.sliding_window_pattern", family.full_every)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 0:
        first = 0 if family.full_first else 1
        pattern = [not pattern or (layer + first) % pattern != 0 for layer in range(n_layers)]
    listed = keys.by_layer(pattern, n_layers)
    if not listed or any(has not in (False, True) for has in listed):
        raise ModelError(
            f"the key '{keys.architecture}.attention.sliding_window_pattern' is {shown_value(pattern)}; wanted an integer of 0 "
            f"or more or {n_layers} booleans"
        )
    width = window // 2 + 1 if family.encoder and window else window
    return tuple(width if has else 0 for has in listed)


def count_layers(keys: Keys, family: Family) -> int:
    """The layers as often as they run, but for the last ones that predict tokens after the next one: they are not part of the
    model proper."""
    n = keys.size("block_count", most=MOST_LAYERS)
    n -= some_layers(keys, "nextn_predict_layers", n)
    return n * keys.size("num_loops", 1, most=MOST_LAYERS // n) if family.loops else n


def some_layers(keys: Keys, key: str, n_layers: int) -> int:
    """A number of layers that are not all, 0 where the file does not say."""
    n = keys.count(key)
    if n >= n_layers:
        raise ModelError(f"the key '{keys.architecture}.{key}' is {n}; wanted less than the {n_layers} layers")
    return n


def read_xielu(metadata: Mapping[str, Any], n_layers: int) -> tuple[Xielu, ...]:
    """The activation of each layer. Raises ModelError, naming the key, for an impossible value."""
    numbers = zip(*(_of_layers(metadata, key, n_layers) for key in XIELU_KEYS), strict=True)
    return tuple(Xielu(_softplus(p), beta + _softplus(n), beta, eps) for p, n, beta, eps in numbers)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _of_layers(metadata: Mapping[str, Any], key: str, n_layers: int) -> list[float]:
    """A number for each layer, or one for all."""
    value: Any = metadata.get(key)
    listed: Any = value.tolist() if hasattr(value, "tolist") else value
    listed = [listed] * n_layers if isinstance(listed, float) else listed
    good = isinstance(listed, list | tuple) and len(listed) >= n_layers
    if not good or not all(isinstance(x, float) and abs(x) <= _MOST for x in listed):
        raise ModelError(f"the key {key!r} is {shown_value(value)}; wanted {n_layers} numbers up to {_MOST:g}")
    return list(listed[:n_layers])


def read_streams(keys: Keys, n_layers: int) -> Streams:
    """The streams of a file. Raises ModelError, naming the key, for an impossible value."""
    n, active = keys.size("altup.num_inputs", 4), keys.count("altup.active_idx")
    if not 1 < n <= MOST_STREAMS:
        raise ModelError(f"the key '{keys.architecture}.altup.num_inputs' is {n}; wanted 2 to {MOST_STREAMS}")
    if active >= n:
        raise ModelError(f"the key '{keys.architecture}.altup.active_idx' is {active}; wanted less than {n}")
    name = f"{keys.architecture}.activation_sparsity_scale"
    value = keys.metadata.get(name)
    listed = [-math.inf] * n_layers if value is None else keys.by_layer(value, n_layers)
    if not listed or any(not isinstance(x, float) or math.isnan(x) or x == math.inf for x in listed):
        raise ModelError(
            f"the key {name!r} is {shown_value(value)}; wanted {n_layers} numbers, or -inf where all count"
        )
    return Streams(n, active, tuple(None if x == -math.inf else x for x in listed))
