"""The specs of a KV cache's arrays by layer; layers with windowed attention have a ring buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from camshaft.dtypes import DType, f32
from camshaft.errors import SettingError
from camshaft.models.config import ModelConfig
from camshaft.models.configs.recurrent import ATTENTION, BOTH, FEED_FORWARD
from camshaft.models.families import FAMILIES
from camshaft.models.layer_options import LayerOptions
from camshaft.ops.spec import TensorSpec

BLOCK_TOKENS = 16
KINDS = ("keys", "values", "key_scales", "value_scales")  # arrays of a layer; scales only for quantized caches


@dataclass(frozen=True)
class Ring:
    """The rows that layers with windows keep of a slot: `n_blocks` blocks, used in turn. A token sees `window` keys."""

    window: int
    n_blocks: int

    @property
    def rows(self) -> int:
        """Tokens whose keys there is room for."""
        return self.n_blocks * BLOCK_TOKENS

    @property
    def window_blocks(self) -> int:
        """Blocks that the keys seen from a position are in, at most."""
        return -(-(self.window - 1) // BLOCK_TOKENS) + 1

    def first(self, position: int) -> int:
        """The first token whose key one at `position` sees."""
        return max(0, position - self.window + 1)

    def blocks_before(self, slot: int, position: int) -> list[int]:
        """The blocks of the last tokens before a position, in order; before the first tokens there are some without any."""
        end = -(-position // BLOCK_TOKENS)
        return [slot * self.n_blocks + i % self.n_blocks for i in range(end - self.window_blocks, end)]


def ring_of(config: ModelConfig, context: int, run_tokens: int) -> Ring | None:
    """The ring for runs of up to `run_tokens` tokens; None where no layer has a window, or all keys take no more room."""
    window = max((options.window for options in config.layers), default=0)
    if not window or FAMILIES[config.architecture].encoder:
        return None
    # All tokens of a run are written before the first one reads its window.
    n_blocks = -(-(window + run_tokens) // BLOCK_TOKENS)
    return Ring(window, n_blocks) if n_blocks * BLOCK_TOKENS < context else None


def cache_specs(
    config: ModelConfig, form: DType | str, n_slots: int, n_blocks: int, ring: Ring | None
) -> dict[str, TensorSpec]:
    """The arrays of all layers by name. SettingError for a quantized cache whose heads have no whole groups."""
    specs: dict[str, TensorSpec] = {}
    for layer, options in enumerate(config.layers):
        if options.kind not in (ATTENTION, FEED_FORWARD):
            assert config.recurrent is not None
            specs |= {f"{n}.{layer}": TensorSpec((n_slots, *s), f32) for n, s in config.recurrent.states.items()}
        if options.kind not in (ATTENTION, BOTH) or options.shares >= 0:
            continue
        of_layer = n_slots * ring.n_blocks if ring is not None and options.window else n_blocks
        heads, dim = config.of_layer(layer).n_kv_heads, config.of_layer(layer).head_dim
        make = _plain if isinstance(form, DType) else _quantized
        found = make(form, of_layer, heads, dim)
        specs |= {f"{kind}.{layer}": spec for kind, spec in zip(KINDS, found, strict=False)}
    return specs


def ring_names(specs: Mapping[str, TensorSpec], layers: tuple[LayerOptions, ...], ring: Ring | None) -> list[str]:
    """The arrays that are rings."""
    parts = {name: name.partition(".") for name in specs}
    return [] if ring is None else [n for n, (kind, _, at) in parts.items() if kind in KINDS and layers[int(at)].window]


def _plain(dtype: DType | str, n_blocks: int, heads: int, dim: int) -> tuple[TensorSpec, ...]:
    assert isinstance(dtype, DType)
    keys = TensorSpec((n_blocks, heads, dim, BLOCK_TOKENS), dtype)
    return keys, TensorSpec((n_blocks, heads, BLOCK_TOKENS, dim), dtype)


def _quantized(form: DType | str, n_blocks: int, heads: int, dim: int) -> tuple[TensorSpec, ...]:
    from camshaft.ops.attention import kv_cache_quantize as quantized  # only quantized caches import the op

    assert isinstance(form, str)
    if dim % quantized.GROUP:
        raise SettingError(
            f"a {form} KV cache for a head size of {dim}; wanted a multiple of {quantized.GROUP}: use f16"
        )
    return tuple(quantized.cache_specs(form, n_blocks, heads, dim))
