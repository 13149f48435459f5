"""What a browser's compiler cannot prove to be uniform: conditions around barriers that must go through workgroup memory.

Our verifier knows better (lang/uniformity.py), but WGSL takes every read of writable memory for one that differs by thread, and
refuses a barrier under it. The emitter sends such a condition or bound through workgroupUniformLoad.
"""

from __future__ import annotations

from camshaft.emit.c_family.uses import COLLECTIVES
from camshaft.lang import ir

_VARYING = frozenset({"lane", "scan", "shuffle", "atomic"})


class Doubt:
    """`values` and `vars` that are not provably uniform. `read_only`: arrays bound so, whose elements are.

    `one_subgroup`: reductions are shuffles, not workgroupUniformLoad, whose results are.
    """

    def __init__(self, body: ir.Block, read_only: frozenset[ir.Array], one_subgroup: bool) -> None:
        self.read_only = read_only
        self.uniform = frozenset({"broadcast"} if one_subgroup else {"broadcast", "reduce"})
        self.values: set[ir.Value] = set()
        self.vars: set[ir.Var] = set()
        self.synced = {id(s) for s in ir.walk(body) if isinstance(s, (ir.Range, ir.When)) and _meets(s.body)}
        before = -1
        while before != len(self.vars):
            before = len(self.vars)
            self._visit(body, False)

    def wants_proof(self, item: ir.Range | ir.When, value: ir.Value) -> bool:
        """Whether threads meet in the item's body while its condition or bound is in doubt."""
        return id(item) in self.synced and value in self.values

    def _visit(self, block: ir.Block, flow: bool) -> None:
        """`flow`: whether it is in doubt that all threads are here."""
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
                doubted = id(item) not in self.synced and bool(self.values.intersection(ir.operands(item)))
                if doubted and isinstance(item, ir.Range):
                    self.values.add(item.index)
                self._visit(item.body, flow or doubted)

    def _value(self, value: ir.Value) -> bool:
        if value.op in self.uniform:
            return False
        if value.op in _VARYING or value.op == "reduce" or (value.op == "load" and value.attr[0] not in self.read_only):
            return True
        if value.op == "var_get":
            return value.attr in self.vars
        return bool(self.values.intersection(value.args))


def _meets(block: ir.Block) -> bool:
    """Whether threads meet inside."""
    return any(
        isinstance(item, ir.Barrier) or (isinstance(item, ir.Value) and item.op in COLLECTIVES)
        for item in ir.walk(block)
    )
