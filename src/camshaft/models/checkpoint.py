"""Checkpoint: a model file's tensors as graph constants, with shapes and formats checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.errors import CamshaftError, ModelError, PlanError
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.file_tensors import is_converted
from camshaft.ops.quantized.packed.packing import packed_format
from camshaft.ops.spec import TensorSpec

Array = np.ndarray[Any, Any]


class Checkpoint:
    """Adds the file's tensors to `graph` as constants; each tensor is added once. `invariant`: products of floats have the same
    bits for any number of rows."""

    def __init__(self, tensors: Mapping[str, FileTensor], graph: Graph, *, invariant: bool = False) -> None:
        self.tensors, self.graph, self._invariant = tensors, graph, invariant
        self._constants: dict[str, Tensor] = {}
        self._own_layers = 0

    def __contains__(self, name: str) -> bool:
        return self.own(name) in self.tensors

    def repeat_layers(self, n: int) -> None:
        """From now on layers behind the first n have the tensors of these, in turn."""
        self._own_layers = n

    def own(self, name: str) -> str:
        """The name in the file of a layer's tensor or matrix: that of an earlier layer where layers are repeated."""
        if not self._own_layers or not name.startswith("blk."):
            return name
        _, layer, rest = name.split(".", 2)
        return f"blk.{int(layer) % self._own_layers}.{rest}"

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return the named constant. Raises ModelError if it is missing, has another shape, or has an unsupported format."""
        name = self.own(name)
        if name not in self._constants:
            source = self.tensors.get(name)
            if source is None:
                raise ModelError(
                    f"the file has no tensor {name!r}, which this architecture needs; convert the model again"
                )
            if tuple(source.shape) != shape:
                raise ModelError(f"tensor {name!r} has shape {list(source.shape)}; wanted {list(shape)}")
            spec = TensorSpec(shape, source.format.dtype or source.format)
            _require_kernel(name, spec)
            self._constants[name] = self.graph.constant(name, source, spec)
        return self._constants[name]

    def rows(self, name: str) -> int:
        """The first axis of a tensor whose size no key has. Raises ModelError if it is missing or has none."""
        source = self.tensors.get(self.own(name))
        if source is None or not source.shape:
            self.tensor(name, 1)  # raises ModelError
        assert source is not None
        return source.shape[0]

    def vector(self, name: str, n: int) -> Tensor:
        """Return a 1-D constant, converted to f32 if the file has another dtype."""
        name = self.own(name)
        tensor = self.tensor(name, n)
        if tensor.spec.dtype.name == "f32":
            return tensor
        self._constants[name] = self.graph.constant(name, self._values(name))
        return self._constants[name]

    def converted(
        self, name: str, shape: tuple[int, ...], change: Callable[[Array], Array], part: str = "converted"
    ) -> Tensor:
        """Return `change` of the named tensor as a constant f32; its shape in the file is `shape`, axes of 1 aside. `part` names
        the change among several of one tensor."""
        name = self.own(name)
        key = f"{name}, {part}"
        if key not in self._constants:
            source = self.tensors.get(name)
            found = [d for d in (source.shape if source is not None else ()) if d != 1]
            if source is None or found != [d for d in shape if d != 1]:
                self.tensor(name, *shape)  # raises ModelError
                raise ModelError(f"tensor {name!r} has shape {found}; wanted {list(shape)}")
            self._constants[key] = self.graph.constant(name, change(self._values(name).reshape(shape)))
        return self._constants[key]

    def _values(self, name: str) -> Array:
        """The numbers of a tensor, f32. PlanError unless the keys of cached plans cover its bytes."""
        if not is_converted(self.tensors[name]):
            raise PlanError(f"{name} is converted; wanted a row for it in models/file_tensors.py")
        return self.tensors[name].dequantize().astype(np.float32)

    def zeros(self, n: int) -> Tensor:
        """Return a constant of n zeros, f32."""
        return self.made(f"zeros.{n}", lambda: np.zeros(n, np.float32))

    def ones(self, n: int) -> Tensor:
        """Return a constant of n ones, f32."""
        return self.made(f"ones.{n}", lambda: np.ones(n, np.float32))

    def made(self, name: str, make: Callable[[], Array]) -> Tensor:
        """Return a constant that is not in the file, made on its first use."""
        if name not in self._constants:
            self._constants[name] = self.graph.constant(name, make())
        return self._constants[name]

    def linear(self, x: Tensor, name: str, n: int, *, bias: bool = False) -> Tensor:
        """y[t, n] = sum_k x[t, k] w[n, k] (+ b[n]), with the tensors `name`.weight and `name`.bias."""
        y = self.product(x, self.tensor(f"{name}.weight", n, columns_of(x)), name)
        if bias:
            y = F.function("add")(y, self.vector(f"{name}.bias", n), name=f"{name}.bias")
        return y

    def product(self, x: Tensor, weight: Tensor, name: str) -> Tensor:
        """y[t, n] = sum_k x[t, k] weight[n, k], for weights of plain dtypes and block formats."""
        if weight.spec.dtype.name.isupper():
            y: Tensor = F.quantized_matmul(x, weight, name=name)
        elif self._invariant:
            y = F.batch_invariant_matmul(x, weight, name=name)
        else:
            y = F.matmul(x, weight, transpose_b=True, name=name)
        return y

    def changes(self, *names: str) -> bool:
        """Whether the products of a matrix or stack of these names are not those of the file's tensor alone."""
        return False

    def grouped(self, x: Tensor, name: str, shape: tuple[int, int, int], chosen: Tensor) -> Tensor:
        """y[t, s, n] = sum_k x[t, (s,) k] w[chosen[t, s], n, k], with the stack `name`.weight [n_experts, n, k]."""
        return self.grouped_product(x, self.tensor(f"{name}.weight", *shape), chosen, name)

    def grouped_product(self, x: Tensor, stack: Tensor, chosen: Tensor, name: str) -> Tensor:
        """The same with a stack of a plain dtype or a block format."""
        op = "quantized_matmul_grouped" if stack.spec.dtype.name.isupper() else "matmul_grouped"
        y: Tensor = F.function(op)(x, stack, chosen, name=name)
        return y


def _require_kernel(name: str, spec: TensorSpec) -> None:
    """Raise ModelError, naming the tensor, for a format that kernels cannot read or multiply."""
    plain = spec.dtype if isinstance(spec.dtype, DType) else None
    try:
        if plain is None and len(spec.shape) > 1:
            packed_format(spec)
        elif plain is not None and plain not in (f32, f16, bf16):
            raise ModelError(f"{plain.name} is not a weight dtype; wanted f32, f16, bf16 or a block format")
        elif isinstance(spec.dtype, BlockFormat):
            spec.dtype.require_readable()
    except CamshaftError as error:
        raise ModelError(f"tensor {name!r}: {error}") from None


def columns_of(x: Tensor) -> int:
    """The size of the last axis."""
    columns = x.shape[-1]
    assert isinstance(columns, int)
    return columns
