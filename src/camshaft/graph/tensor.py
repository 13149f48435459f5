"""Tensor: a value in a graph, with NumPy's operators and indexing, each of which adds nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f16
from camshaft.errors import ArrayTypeError, ShapeError, shortened
from camshaft.formats.blocks import BlockFormat
from camshaft.ops.spec import Dim, TensorSpec

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

Array: TypeAlias = np.ndarray[Any, Any]
Kind = Literal["input", "constant", "state", "value", "view", "buffer"]


class Source(Protocol):
    """The source of a constant's bytes: an array, or a tensor in a file that is read when the plan is bound."""

    def data(self) -> Array:
        """Returns the bytes as uint8, row-major; every call returns the same memory."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A constant in a contiguous array."""

    array: Array

    def data(self) -> Array:
        return self.array.reshape(-1).view(np.uint8)


Operator: TypeAlias = "Callable[[Tensor, Any], Tensor]"


def use(op: str, *inputs: object, **attrs: Any) -> Tensor:
    """Applies an op to inputs of which one is a tensor, and returns its one output."""
    first = next(x for x in inputs if isinstance(x, Tensor))
    made: Tensor = graph_of(first).node(op, *inputs, **attrs)
    return made


def _left(op: str) -> Operator:
    return lambda self, other: use(op, self, other)


def _both(op: str) -> tuple[Operator, Operator]:
    """Returns an operator's method and its reflected method."""
    return _left(op), lambda self, other: use(op, other, self)


def _logic(sign: str, op: str) -> tuple[Operator, Operator]:
    def check(values: Sequence[object]) -> Sequence[object]:
        for value in values:
            dtype = value.spec.dtype if isinstance(value, Tensor) else np.asarray(value).dtype
            if dtype not in (boolean, boolean.numpy):
                raise ArrayTypeError(f"{sign}: got {value!r}; wanted booleans, as there is no op on bits")
        return values

    return lambda self, other: use(op, *check((self, other))), lambda self, other: use(op, *check((other, self)))


def _rounding(a: Tensor, b: Any) -> dict[str, Any]:
    """Returns `to` for a product of two equal 16-bit floats, which NumPy keeps in that dtype; the op's default is f32."""
    same = a.dtype in (f16, bf16) and (b.dtype if isinstance(b, Tensor) else _dtype_of(b)) == a.dtype
    return {"to": a.dtype.name} if same else {}


def _dtype_of(value: Any) -> DType | None:
    return as_dtype(value.dtype) if isinstance(value, np.ndarray) else None


# Ops for `**` with these exponents, as NumPy computes them for floats.
_POWERS = {2: "square", 0.5: "sqrt"}


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value in a graph.

    Operators add nodes, with NumPy's broadcasting and promotion: a Python number takes the tensor's dtype. `==` adds a node too;
    compare identity with `is` or hashes. A view shares the memory of `base`, starting at `offset_nbytes`. `device` names the
    device of an input, state or buffer; None lets the plan choose.
    """

    spec: TensorSpec
    name: str
    kind: Kind
    source: Source | None = None
    base: Tensor | None = None
    graph: Graph | None = field(default=None, repr=False)
    device: str | None = None
    offset_nbytes: int = 0

    __array_ufunc__ = None  # makes `array + tensor` call Tensor.__radd__
    __hash__ = object.__hash__

    __add__, __radd__ = _both("add")
    __sub__, __rsub__ = _both("subtract")
    __mul__, __rmul__ = _both("multiply")
    __truediv__, __rtruediv__ = _both("divide")
    __floordiv__, __rfloordiv__ = _both("floor_divide")
    __mod__, __rmod__ = _both("remainder")
    __and__, __rand__ = _logic("&", "logical_and")
    __or__, __ror__ = _logic("|", "logical_or")
    __xor__, __rxor__ = _logic("^", "logical_xor")
    __lt__, __le__, __gt__, __ge__ = map(_left, ("less", "less_equal", "greater", "greater_equal"))
    __eq__ = _left("equal")  # type: ignore[assignment]
    __ne__ = _left("not_equal")  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> DType | BlockFormat:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    @property
    def T(self) -> Tensor:
        """Returns the tensor with its axes reversed."""
        return self if self.ndim < 2 else use("transpose", self)

    def __repr__(self) -> str:
        return f"the {self.kind} {shortened(self.name)!r} {self.spec}"

    def __neg__(self) -> Tensor:
        return use("negate", self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return use("abs", self)

    def __invert__(self) -> Tensor:
        if self.dtype != boolean:
            raise ArrayTypeError(f"~: got {self}; wanted booleans, as there is no op on bits")
        return use("logical_not", self)

    def __matmul__(self, other: Any) -> Tensor:
        return use("matmul", self, other, **_rounding(self, other))

    def __rmatmul__(self, other: Any) -> Tensor:
        return use("matmul", other, self, **_rounding(self, other))

    def __pow__(self, exponent: Any) -> Tensor:
        short = _POWERS.get(exponent) if type(exponent) in (int, float) else None
        floats = isinstance(self.dtype, DType) and self.dtype.is_float
        return use(short, self) if short is not None and floats else use("power", self, exponent)

    def __rpow__(self, base: Any) -> Tensor:
        return use("power", base, self)

    def __getitem__(self, key: Any) -> Tensor:
        from camshaft.graph.indexing import indexed  # here: it needs Tensor

        return indexed(self, key)

    def reshape(self, *shape: Any) -> Tensor:
        """Returns a view in another shape; it adds no thunk. One size may be -1. Raises ShapeError for an invalid shape."""
        from camshaft.graph.indexing import reshaped  # here: it needs Tensor

        return reshaped(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def pairs(self) -> Tensor:
        """Returns a view of complex numbers [..] as [.., 2]: real and imaginary part. ShapeError for other dtypes."""
        return graph_of(self).pairs(self)

    def as_complex(self) -> Tensor:
        """Returns a view of [.., 2] of f32 or f64 as complex numbers [..]. ShapeError for others."""
        return graph_of(self).as_complex(self)

    def __len__(self) -> int:
        if not self.ndim:
            raise ArrayTypeError(f"len() of {self}, which has no axis")
        if not isinstance(self.shape[0], int):
            raise ArrayTypeError(f"len() of {self}, whose first axis is known in each run only")
        return self.shape[0]

    def __iter__(self) -> NoReturn:
        raise ArrayTypeError(f"{self} cannot be iterated over: it has no values yet; index it, or use split")

    def __bool__(self) -> NoReturn:
        raise ArrayTypeError(f"{self} has no truth value: it has no values yet; where() chooses between tensors")

    if not TYPE_CHECKING:  # to a type checker a tensor is not an array

        def __array__(self, *args: object, **kwargs: object) -> NoReturn:
            raise ArrayTypeError(f"{self} is not an array: it has no values yet; compile its graph and run the plan")


def root(tensor: Tensor) -> Tensor:
    """Returns the tensor that owns a view's memory; the tensor itself if it is not a view."""
    while tensor.base is not None:
        tensor = tensor.base
    return tensor


def offset_nbytes(tensor: Tensor) -> int:
    """Returns a tensor's byte offset in its root's memory."""
    return tensor.offset_nbytes + (0 if tensor.base is None else offset_nbytes(tensor.base))


def graph_of(tensor: Tensor) -> Graph:
    """Returns a tensor's graph. Raises ShapeError if it has none."""
    if tensor.graph is None:
        raise ShapeError(f"{tensor} is of no graph; wanted a tensor of one")
    return tensor.graph
