"""Which integers are known not to be negative: their divisions need no rounding down."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.lang import ir


class NonNegative:
    """Answers for the values of one kernel."""

    def __init__(self, body: ir.Block) -> None:
        self.starts = {s.index: s.start for s in ir.walk(body) if isinstance(s, (ir.Range, ir.Lanes))}
        self.known: dict[ir.Value, bool] = {}

    def __call__(self, value: ir.Value) -> bool:
        if value not in self.known:
            rule = _RULES.get(value.op)
            self.known[value] = value.dtype.kind == "u" or (rule is not None and rule(self, value))
        return self.known[value]

    def every(self, value: ir.Value) -> bool:
        return all(self(arg) for arg in value.args)

    def some(self, value: ir.Value) -> bool:
        return any(self(arg) for arg in value.args)

    def index(self, value: ir.Value) -> bool:
        return self(self.starts[value])


_RULES: dict[str, Callable[[NonNegative, ir.Value], bool]] = {
    "program": lambda n, v: True,
    "lane": lambda n, v: True,
    "const": lambda n, v: v.dtype.is_integer and v.attr >= 0,
    "index": NonNegative.index,
    "add": NonNegative.every,
    "multiply": NonNegative.every,
    "minimum": NonNegative.every,
    "floor_divide": NonNegative.every,
    "maximum": NonNegative.some,
    "and": NonNegative.some,
    "remainder": lambda n, v: n(v.args[1]),
}
