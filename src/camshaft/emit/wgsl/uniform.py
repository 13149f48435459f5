"""Finds conditions and loop bounds around barriers that a browser's compiler cannot prove to be uniform.

The verifier's analysis (lang/uniformity.py) is more precise, but WGSL treats every read of writable memory as non-uniform and
rejects a barrier that depends on one. The emitter passes such a condition or bound through workgroupUniformLoad.
"""

from __future__ import annotations

from collections.abc import Callable

from camshaft.emit.c_family.analysis import COLLECTIVES
from camshaft.lang import ir, traversal

HALF = 1 << 31


def below_half(value: ir.Value) -> bool:
    """Return whether a u32 value is known to be below 2^31 from its operands."""
    rule = _RULES.get(value.op)
    return rule is not None and rule(value)


def _any(value: ir.Value) -> bool:
    return any(map(below_half, value.args))


def _all(value: ir.Value) -> bool:
    return all(map(below_half, value.args))


def _number(value: ir.Value) -> int:
    """A constant's number, 0 for another value."""
    return int(value.attr) if value.op == "const" else 0


_RULES: dict[str, Callable[[ir.Value], bool]] = {
    "const": lambda v: _number(v) < HALF,
    "load": lambda v: bool(v.attr[0].dtype.nbytes < 4),
    "cast": lambda v: v.args[0].dtype.kind == "b" or (v.args[0].dtype.kind == "u" and v.args[0].dtype.nbytes < 4),
    "and": _any,
    "minimum": _any,
    "or": _all,
    "xor": _all,
    "maximum": _all,
    "select": lambda v: all(map(below_half, v.args[1:])),
    "remainder": _any,
    "shift_right": lambda v: _number(v.args[1]) > 0 or below_half(v.args[0]),
    "floor_divide": lambda v: _number(v.args[1]) > 1 or below_half(v.args[0]),
}


_VARYING = frozenset({"lane", "scan", "shuffle", "atomic"})


class NonUniform:
    """`values` and `vars` that WGSL does not accept as uniform. It accepts elements of arrays bound as `read_only`.

    It accepts the results of reductions, except with `one_subgroup`, when these are shuffles and not workgroupUniformLoad.
    """

    def __init__(self, body: ir.Block, read_only: frozenset[ir.Array], one_subgroup: bool) -> None:
        self.read_only = read_only
        self.uniform = frozenset({"broadcast"} if one_subgroup else {"broadcast", "reduce"})
        self.values: set[ir.Value] = set()
        self.vars: set[ir.Var] = set()
        self.with_barrier = {
            id(s) for s in traversal.walk(body) if isinstance(s, (ir.Range, ir.When)) and _has_barrier(s.body)
        }
        before = -1
        while before != len(self.vars):
            before = len(self.vars)
            self._visit(body, False)

    def must_be_proved(self, item: ir.Range | ir.When, value: ir.Value) -> bool:
        """Return whether the item's body has a barrier or collective while its condition or bound is not provably uniform."""
        return id(item) in self.with_barrier and value in self.values

    def _visit(self, block: ir.Block, flow: bool) -> None:
        """Visit a block. `flow`: the control flow is not provably uniform."""
        for item in block.statements:
            if isinstance(item, ir.Value):
                if self._value(item):
                    self.values.add(item)
            elif isinstance(item, ir.VarNew):
                if item.var.init in self.values:
                    self.vars.add(item.var)
            elif isinstance(item, ir.VarSet):
                if flow or item.value in self.values:
                    self.vars.add(item.var)
            elif isinstance(item, (ir.Range, ir.When)):
                diverges = id(item) not in self.with_barrier and bool(
                    self.values.intersection(traversal.operands(item))
                )
                if diverges and isinstance(item, ir.Range):
                    self.values.add(item.index)
                self._visit(item.body, flow or diverges)

    def _value(self, value: ir.Value) -> bool:
        if value.op in self.uniform:
            return False
        if value.op in _VARYING or value.op == "reduce" or (value.op == "load" and value.attr[0] not in self.read_only):
            return True
        if value.op == "var_get":
            return value.attr in self.vars
        return bool(self.values.intersection(value.args))


def _has_barrier(block: ir.Block) -> bool:
    """Return whether a barrier or collective is inside."""
    return any(
        isinstance(item, ir.Barrier) or (isinstance(item, ir.Value) and item.op in COLLECTIVES)
        for item in traversal.walk(block)
    )
