"""Variable and Array: the objects through which a kernel reads and writes variables and arrays."""

from __future__ import annotations

from typing import Any

from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS
from camshaft.lang.tracing.recorder import Number


class Variable:
    """The result of k.var and k.accumulator: read `.value`; assign with `.set(x)`, `+=` or `.combine(x)`."""

    def __init__(self, var: ir.Var) -> None:
        self.ir = var

    @property
    def value(self) -> ir.Value:
        value: ir.Value = ir.recorder().record("var_get", self.ir.dtype, (), self.ir.width, self.ir)
        return value

    def set(self, value: Number) -> None:
        """Assign. The dtype and the width cannot change."""
        k = ir.recorder()
        new = k.as_value(value, self.ir.dtype)
        if new.dtype != self.ir.dtype or (new.width and new.width != self.ir.width):
            raise k.fail(f"a {new!r} set into a variable of {self.ir.dtype}, width {self.ir.width}")
        k.append(ir.VarSet(k.line(), self.ir, new))

    def combine(self, value: Number) -> None:
        """Combine a value into an accumulator by the accumulator's kind."""
        kind = self.ir.identity or "sum"
        self.set(ir.recorder().apply(COMBINERS[kind], self.value, value))

    def __iadd__(self, value: Number) -> Variable:
        self.set(self.value + value)
        return self


class Array:
    """An array as a kernel sees it: x[row, c] reads, x[row, c] = v writes."""

    def __init__(self, array: ir.Array, shape: tuple[Any, ...] | None = None) -> None:
        """`shape`: the axes that the kernel indexes, where the IR's array is flat because sizes are run-time scalars."""
        self.ir = array
        self.shape: tuple[Any, ...] = array.shape if shape is None else shape
        self.dtype = array.dtype

    def in_ir(self, indices: tuple[Number, ...]) -> tuple[Number, ...]:
        """The indices of the IR's array."""
        if len(indices) != len(self.shape):
            message = f"{self.ir.name} has {len(self.shape)} dimensions, indexed with {len(indices)}"
            raise ir.recorder().fail(message)
        if len(self.shape) == len(self.ir.shape):
            return indices
        place = indices[0]
        for index, size in zip(indices[1:], self.shape[1:], strict=True):
            place = place * size + index
        return (place,)

    def __getitem__(self, indices: Any) -> ir.Value:
        loaded: ir.Value = ir.recorder().load(self, indices if isinstance(indices, tuple) else (indices,))
        return loaded

    def __setitem__(self, indices: Any, value: Number) -> None:
        ir.recorder().store(self, indices if isinstance(indices, tuple) else (indices,), value)
