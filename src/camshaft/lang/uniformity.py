"""Find which values differ from lane to lane, by a fixpoint over the IR."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from camshaft.lang import ir, traversal


def varying(kernel: ir.KernelIR) -> tuple[frozenset[ir.Value], frozenset[ir.Var]]:
    """Return the values and the variables that vary by lane.

    A variable varies if a varying value is assigned to it, or if it is assigned under a varying mask that does not enclose its
    declaration.
    """
    values: set[ir.Value] = set()
    variables: set[ir.Var] = {
        item.var for item in traversal.walk(kernel.body) if isinstance(item, ir.VarNew) and item.var.identity
    }
    while True:
        # values are in program order: only a variable read in a loop before its assignment needs another visit
        before = len(variables)
        _visit(kernel.body, _Flow(), values, variables)
        if before == len(variables):
            return frozenset(values), frozenset(variables)


@dataclass(frozen=True)
class _Flow:
    """The control flow around a statement: a varying mask, a lanes loop. `mask` is the innermost varying one."""

    mask: ir.When | None = None
    in_lanes: bool = False
    made_under: dict[ir.Var, ir.When | None] = field(default_factory=dict)  # over all variables so far


def _visit(block: ir.Block, flow: _Flow, values: set[ir.Value], variables: set[ir.Var]) -> None:
    for item in block.statements:
        if isinstance(item, ir.Value):
            if _value_varies(item, flow, values, variables):
                values.add(item)
        elif isinstance(item, ir.VarSet):
            if flow.mask is not flow.made_under.get(item.var) or item.value in values:
                variables.add(item.var)
        elif isinstance(item, ir.VarNew):
            flow.made_under[item.var] = flow.mask
            if item.var.init in values:
                variables.add(item.var)
        elif isinstance(item, ir.Lanes):
            values.add(item.index)
            _visit(item.body, replace(flow, in_lanes=True), values, variables)
        elif isinstance(item, ir.Range):
            _visit(item.body, flow, values, variables)
        elif isinstance(item, ir.When):
            mask = item if item.condition in values else flow.mask
            _visit(item.body, replace(flow, mask=mask), values, variables)


def _value_varies(value: ir.Value, flow: _Flow, values: set[ir.Value], variables: set[ir.Var]) -> bool:
    if value.op in _ALWAYS:
        return True
    if value.op == "reduce":
        return False
    if value.op == "shuffle":  # every lane receives the same lane's value
        return value.args[1] in values
    if value.op == "var_get":
        return value.attr in variables
    if value.op == "atomic" and (flow.mask or flow.in_lanes):
        return True  # each lane performs its own
    return not values.isdisjoint(value.args)


_ALWAYS = frozenset({"lane", "scan", "subgroup_reduce"})
