"""Tracers for passes over Kernel IR: Copier, and Expander, which writes elementary functions for functions.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from camshaft.dtypes import DType, boolean
from camshaft.lang import ir
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.tracing.tracer import Number, Tracer

_MAY_FUSE = frozenset({"add", "subtract", "multiply"})


class Copier(Tracer):
    """A tracer for passes: recorded items get the source line of the item that the pass is rewriting."""

    at_line = 0

    def line(self) -> int:
        return self.at_line

    def check_open(self, value: ir.Value) -> None:
        """No check: the verifier has run, and a pass keeps the scope of values."""


class Expander(Copier):
    """Records into the open block and expands the instructions in `expansions` as it records them.

    Float sums and products are recorded as EXACT; the expansions state their fused multiply-adds explicitly.
    """

    def __init__(self, name: str, source_file: str, expansions: Mapping[str, Expansion]) -> None:
        super().__init__(name, source_file)
        self.expansions = expansions
        self.known: dict[tuple[Any, ...], Any] = {}  # values that can be reused while this block is open

    def apply(self, name: str, *args: Number) -> ir.Value:
        """Record an instruction as Recorder.apply does, without checking the operands."""
        typed = [a for a in (args[1:] if name == "select" else args) if isinstance(a, ir.Value)]
        dtype = typed[0].dtype
        values = tuple([a if isinstance(a, ir.Value) else self.const(a, dtype) for a in args])
        result = boolean if INSTRUCTIONS[name].result == "bool" else dtype
        return self.record(name, result, values, max([v.width for v in values]))

    def record(
        self, op: str, dtype: DType, args: tuple[ir.Value, ...] = (), width: int = 0, attr: Any = None
    ) -> ir.Value:
        if op in self.expansions:
            return self.expansions[op](self, *args)
        if op in _MAY_FUSE and dtype.is_float:
            attr = ir.EXACT
        value = ir.Value(op, dtype, args, width, attr, self.block, self.at_line)
        self.block.statements.append(value)
        return value

    def const(self, value: float | int | bool, dtype: DType) -> ir.Value:
        """Return a constant; the same Value is reused while its block is open."""
        key = value, dtype.name
        if key not in self.known:
            self.known[key] = self.record("const", dtype, attr=value)
        found: ir.Value = self.known[key]
        return found

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        outer, self.known = self.known, dict(self.known)
        with super().when(condition):
            yield
        self.known = outer

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once or twice, as the target chooses."""
        for op, other in (("multiply", b), ("add", c)):
            a = ir.Value(op, a.dtype, (a, other), max(a.width, other.width), None, self.block, self.at_line)
            self.block.statements.append(a)
        return a

    def polynomial(self, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
        """Horner's rule, highest power first."""
        result: ir.Value | float = coefficients[0]
        for c in coefficients[1:]:
            result = self.fma(result, x, c)
        assert isinstance(result, ir.Value)
        return result


Expansion: TypeAlias = Callable[..., ir.Value]
