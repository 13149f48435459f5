"""The layers after pooling: a reranker's, which turn a pair's vector into a score, and those of EmbeddingGemma."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.tensor import FileTensor
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class HeadLayer:
    """y = act(x w^T + b): weight f32 [n, k], bias f32 [n]."""

    weight: Array
    bias: Array
    activation: Callable[[Array], Array] | None = None

    def __call__(self, x: Array) -> Array:
        """Rows [T, n] of rows [T, k], one by one: a row's result does not depend on the others."""
        y: Array = np.stack([self.weight @ row for row in x]) + self.bias if len(x) else np.zeros((0, len(self.bias)))
        return y if self.activation is None else self.activation(y)


def read_classifier(tensors: Mapping[str, FileTensor], config: ModelConfig, name: str) -> tuple[HeadLayer, ...]:
    """The layers of a reranker: `cls`, with tanh, and `cls.output`, or one of them.

    The last has one row, of the score; a decoder's may have two, of "yes" and "no", which become their difference. Of ModernBERT
    `cls` has gelu and then a norm. Raises ModelError where there is none, or another number of rows.
    """
    layers, width = [], config.dim
    has_output = "cls.output.weight" in tensors
    if "cls.weight" in tensors:
        n = config.dim if has_output else 1
        layers.append(_layer(tensors, "cls", n, width, _activation(tensors, config) if has_output else None))
        width = n
    if has_output:
        shape = tensors["cls.output.weight"].shape
        last = _layer(tensors, "cls.output", shape[0] if len(shape) > 1 else 1, width)
        if len(last.weight) == 2 and not FAMILIES[config.architecture].encoder:
            last = HeadLayer(last.weight[:1] - last.weight[1:], last.bias[:1] - last.bias[1:])
        if len(last.weight) != 1:
            raise ModelError(
                f"{name} tells {len(last.weight)} classes of texts apart; wanted a reranker, with one score"
            )
        layers.append(last)
    if not layers:
        raise ModelError(f"{name} has no tensor cls.weight or cls.output.weight; wanted a reranker")
    return tuple(layers)


def read_dense(tensors: Mapping[str, FileTensor], config: ModelConfig) -> tuple[HeadLayer, ...]:
    """The layers `dense_2` and `dense_3` after a vector's pooling, where the file has them."""
    layers, width = [], config.dim
    for name in ("dense_2", "dense_3"):
        if f"{name}.weight" in tensors:
            layers.append(_layer(tensors, name, tensors[f"{name}.weight"].shape[0], width))
            width = len(layers[-1].weight)
    return tuple(layers)


def _activation(tensors: Mapping[str, FileTensor], config: ModelConfig) -> Callable[[Array], Array]:
    if not FAMILIES[config.architecture].full_first:
        return np.tanh
    w = _numbers(tensors, "cls.norm.weight", (config.dim,)) if "cls.norm.weight" in tensors else None

    def normed(x: Array) -> Array:
        y = np.array([[v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in row] for row in x.tolist()], np.float32)
        y = y.reshape(x.shape)
        if w is None:
            return y
        y -= y.mean(axis=1, keepdims=True)
        made: Array = y / np.sqrt((y**2).mean(axis=1, keepdims=True) + np.float32(config.norm_eps)) * w
        return made

    return normed


def _layer(
    tensors: Mapping[str, FileTensor],
    name: str,
    n: int,
    width: int,
    activation: Callable[[Array], Array] | None = None,
) -> HeadLayer:
    weight = _numbers(tensors, f"{name}.weight", (n, width))
    bias = _numbers(tensors, f"{name}.bias", (n,)) if f"{name}.bias" in tensors else np.zeros(n, np.float32)
    return HeadLayer(weight, bias, activation)


def _numbers(tensors: Mapping[str, FileTensor], name: str, shape: tuple[int, ...]) -> Array:
    """A tensor's numbers, f32; files that were quantized lack axes of 1."""
    tensor = tensors[name]
    if [d for d in tensor.shape if d != 1] != [d for d in shape if d != 1]:
        raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}; wanted {list(shape)}")
    return tensor.dequantize().astype(np.float32).reshape(shape)
