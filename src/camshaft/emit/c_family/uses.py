"""Count how often and where each value of a kernel is used, to decide which values get a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from camshaft.lang import ir

# Values that do something besides giving a value: never dropped.
EFFECTS = frozenset({"atomic"})
# Values that the threads make together: a dialect flushes before them, and none moves from its place.
COLLECTIVES = frozenset({"reduce", "broadcast", "scan", "shuffle"})


@dataclass
class Uses:
    """`count`: uses of each value that is alive. `block`: the one block it is used in, None where there are several.

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
        """Whether the value has one use, in that block."""
        return self.count.get(value) == 1 and self.block[value] is block


def uses_of(body: ir.Block) -> Uses:
    """The uses in a kernel's body; what only dead values use is dead too."""
    uses = Uses()
    _visit(body, uses)
    return uses


def _visit(block: ir.Block, uses: Uses) -> None:
    """Backwards: a value comes before its uses, and a body after its statement's operands."""
    for item in reversed(block.statements):
        inner = getattr(item, "body", None)
        if inner is not None:
            _visit(inner, uses)
        if not isinstance(item, ir.Value) or uses.alive(item):
            for arg in ir.operands(item):
                uses.note(arg, block)
            if not isinstance(item, ir.Value):
                uses.by_statement.update(ir.operands(item))
