"""Checkpoint: a model file's tensors as constants of a graph, each checked against the shape its architecture wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.errors import CamshaftError, ModelError
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.quantized.packing import packed_format
from camshaft.ops.spec import TensorSpec


class Checkpoint:
    """Gives `graph` the file's tensors by name; asking twice gives one constant."""

    def __init__(self, tensors: Mapping[str, FileTensor], graph: Graph) -> None:
        self.tensors, self.graph = tensors, graph
        self._made: dict[str, Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The constant. ModelError if the file lacks it, its shape is another, or no kernel reads its format."""
        if name not in self._made:
            found = self.tensors.get(name)
            if found is None:
                raise ModelError(
                    f"the file has no tensor {name!r}, which this architecture needs; convert the model again"
                )
            if tuple(found.shape) != shape:
                raise ModelError(f"tensor {name!r} has shape {list(found.shape)}; wanted {list(shape)}")
            spec = TensorSpec(shape, found.format.dtype or found.format)
            _require_kernel(name, spec)
            self._made[name] = self.graph.constant(name, found, spec)
        return self._made[name]

    def vector(self, name: str, n: int) -> Tensor:
        """A 1-D constant as f32 (norms and biases are small: converted here if the file has them shorter)."""
        tensor = self.tensor(name, n)
        if tensor.spec.dtype.name == "f32":
            return tensor
        values = self.tensors[name].dequantize().astype(np.float32)
        self._made[name] = self.graph.constant(name, values)
        return self._made[name]

    def linear(self, x: Tensor, name: str, n: int, *, bias: bool = False) -> Tensor:
        """y[t, n] = sum_k x[t, k] w[n, k] (+ b[n]) with the file's `name`.weight and `name`.bias."""
        weight = self.tensor(f"{name}.weight", n, _columns(x))
        op = "quantized_matmul" if weight.spec.dtype.name.isupper() else "matmul"
        attrs: dict[str, Any] = {} if op == "quantized_matmul" else {"transpose_b": True}
        y: Tensor = F.function(op)(x, weight, name=name, **attrs)
        if bias:
            y = F.function("add")(y, self.vector(f"{name}.bias", n), name=f"{name}.bias")
        return y


def _require_kernel(name: str, spec: TensorSpec) -> None:
    """ModelError, naming the tensor, for a format that cannot be read or multiplied."""
    plain = spec.dtype if isinstance(spec.dtype, DType) else None
    try:
        if plain is None and len(spec.shape) > 1:
            packed_format(spec)
        elif plain is not None and plain not in (f32, f16, bf16):
            raise ModelError(f"{plain.name} is no type of weights; wanted f32, f16, bf16 or a block format")
        elif isinstance(spec.dtype, BlockFormat):
            spec.dtype.require_readable()
    except CamshaftError as error:
        raise ModelError(f"tensor {name!r}: {error}") from None


def _columns(x: Tensor) -> int:
    columns = x.shape[-1]
    assert isinstance(columns, int)
    return columns
