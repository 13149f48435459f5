"""Recurrent layers of a decoder: what takes the place of attention, with a state per slot that a run updates in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.recurrent_config import Recurrent
from camshaft.models.transformer import LayerState, TokenBatch, logit_rows


@dataclass(frozen=True)
class Layer:
    """A recurrent layer of a graph: the names of its tensors begin with `prefix`."""

    prefix: str
    sizes: Recurrent
    config: ModelConfig
    file: Checkpoint
    rows: Tensor
    states: LayerState


def recurrent(
    h: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch, state: LayerState
) -> Tensor:
    """The layer's result f32 [T, dim] of its normed input; in the last layer, of the rows whose logits are computed."""
    assert config.recurrent is not None
    assert batch.slot_rows is not None
    prefix = f"blk.{layer}"
    made = Layer(prefix, config.recurrent, config, file, batch.slot_rows, state)
    y, output = _KINDS[config.recurrent.kind](h, made)
    y = logit_rows(y, batch, f"{prefix}.recurrent_rows") if batch.is_last else y
    return file.linear(y, f"{prefix}.{output}", config.dim)


def _short_conv(h: Tensor, layer: Layer) -> tuple[Tensor, str]:
    """LFM2: c conv(b x) of three projections."""
    name = f"{layer.prefix}.shortconv"
    parts = layer.file.linear(h, f"{name}.in_proj", 3 * layer.sizes.channels)
    y = F.short_conv_slots(parts, _taps(layer, f"{name}.conv.weight"), layer.states["conv"], layer.rows, name=name)
    return y, "shortconv.out_proj"


_KINDS: Mapping[str, Callable[[Tensor, Layer], tuple[Tensor, str]]] = {"short_conv": _short_conv}


def _taps(layer: Layer, name: str) -> Tensor:
    """The weights of a convolution, f32 [taps, channels]; the file has them by channel."""
    return layer.file.converted(name, (layer.sizes.channels, layer.sizes.taps), lambda w: np.ascontiguousarray(w.T))
