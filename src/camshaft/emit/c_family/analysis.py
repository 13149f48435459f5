"""Analyze a kernel's values: how often and where each is used, and which integers are never negative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from camshaft.lang import ir, traversal

# Values with side effects: never dropped.
EFFECTS = frozenset({"atomic"})
# Collectives: a dialect flushes pending values before them, and they never move.
COLLECTIVES = frozenset({"reduce", "broadcast", "scan", "shuffle"})


@dataclass
class Uses:
    """`count`: uses of each live value. `block`: the only block with uses, None if there are several.

    `by_statement`: values that a statement uses.
    """

    count: dict[ir.Value, int] = field(default_factory=dict)
    block: dict[ir.Value, ir.Block | None] = field(default_factory=dict)
    by_statement: set[ir.Value] = field(default_factory=set)

    def note(self, value: ir.Value, block: ir.Block) -> None:
        self.block[value] = block if self.block.get(value, block) is block else None
        self.count[value] = self.count.get(value, 0) + 1

    def alive(self, value: ir.Value) -> bool:
        return value in self.count or value.op in EFFECTS

    def once_in(self, value: ir.Value, block: ir.Block) -> bool:
        """Return whether the value has one use, in that block."""
        return self.count.get(value) == 1 and self.block[value] is block


def uses_of(body: ir.Block) -> Uses:
    """Count the uses in a kernel's body; a value that only dead values use is dead too."""
    uses = Uses()
    _visit(body, uses)
    return uses


def _visit(block: ir.Block, uses: Uses) -> None:
    """Visit in reverse order, so that all uses are counted before the value itself."""
    for item in reversed(block.statements):
        inner = getattr(item, "body", None)
        if inner is not None:
            _visit(inner, uses)
        if not isinstance(item, ir.Value) or uses.alive(item):
            for arg in traversal.operands(item):
                uses.note(arg, block)
            if not isinstance(item, ir.Value):
                uses.by_statement.update(traversal.operands(item))


class NonNegative:
    """Whether an integer of one kernel is never negative. Answers are cached."""

    def __init__(self, body: ir.Block) -> None:
        self.starts = {s.index: s.start for s in traversal.walk(body) if isinstance(s, (ir.Range, ir.Lanes))}
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
