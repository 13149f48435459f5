"""LayerOptions: what differs between the layers of a model, read from metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from camshaft.dataclass import dataclass
from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.models.configs.experts import expert_layers
from camshaft.models.configs.recurrent import ATTENTION, BOTH, kv_heads, layer_kinds, layer_widths
from camshaft.models.families import Family

if TYPE_CHECKING:
    from camshaft.models.file_keys import Keys


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
