"""Python operators on traced values: each records an instruction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from camshaft.errors import KernelError

if TYPE_CHECKING:
    from camshaft.lang.ir import Operand, Value

# Stack of active tracers (lang/tracing/tracer.py); the operators of Value record into the last one.
recorders: list[Any] = []


def recorder() -> Any:
    """Return the active tracer. KernelError outside a kernel."""
    if not recorders:
        raise KernelError("a traced value was used outside of its kernel")
    return recorders[-1]


@contextmanager
def recording(tracer: Any) -> Iterator[None]:
    """Make `tracer` the active one in the block."""
    recorders.append(tracer)
    try:
        yield
    finally:
        recorders.pop()


def _record(name: str, *operands: object) -> Value:
    value: Value = recorder().apply(name, *operands)
    return value


class Operators:
    """Arithmetic, comparisons and bits. bool() of a traced value is an error."""

    def __add__(self, other: Operand) -> Value:
        return _record("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return _record("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return _record("subtract", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return _record("subtract", other, self)

    def __mul__(self, other: Operand) -> Value:
        return _record("multiply", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return _record("multiply", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return _record("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return _record("divide", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return _record("floor_divide", self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return _record("floor_divide", other, self)

    def __mod__(self, other: Operand) -> Value:
        return _record("remainder", self, other)

    def __rmod__(self, other: Operand) -> Value:
        return _record("remainder", other, self)

    def __and__(self, other: Operand) -> Value:
        return _record("and", self, other)

    def __rand__(self, other: Operand) -> Value:
        return _record("and", other, self)

    def __or__(self, other: Operand) -> Value:
        return _record("or", self, other)

    def __ror__(self, other: Operand) -> Value:
        return _record("or", other, self)

    def __xor__(self, other: Operand) -> Value:
        return _record("xor", self, other)

    def __rxor__(self, other: Operand) -> Value:
        return _record("xor", other, self)

    def __lshift__(self, other: Operand) -> Value:
        return _record("shift_left", self, other)

    def __rlshift__(self, other: Operand) -> Value:
        return _record("shift_left", other, self)

    def __rshift__(self, other: Operand) -> Value:
        return _record("shift_right", self, other)

    def __rrshift__(self, other: Operand) -> Value:
        return _record("shift_right", other, self)

    def __lt__(self, other: Operand) -> Value:
        return _record("less", self, other)

    def __le__(self, other: Operand) -> Value:
        return _record("less_equal", self, other)

    def __gt__(self, other: Operand) -> Value:
        return _record("less", other, self)

    def __ge__(self, other: Operand) -> Value:
        return _record("less_equal", other, self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return _record("equal", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return _record("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Value:
        return _record("negate", self)

    def __pow__(self, exponent: int) -> Value:
        if exponent != 2:
            raise recorder().fail(f"** {exponent}: only squares are an instruction; multiply, or use k.exp and k.log")
        return _record("multiply", self, self)

    def __bool__(self) -> bool:
        raise recorder().fail("a traced value has no truth while tracing: use k.select or k.when, not if, and, or")
