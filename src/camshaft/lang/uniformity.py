"""Find which values differ from lane to lane, by a fixpoint over the IR."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from camshaft.lang import ir


def varying(kernel: ir.KernelIR) -> tuple[frozenset[ir.Value], frozenset[ir.Var]]:
    """The values and variables that vary by lane. A variable varies if any value set into it does, or a mask that it was not made
    under."""
    values: set[ir.Value] = set()
    variables: set[ir.Var] = {
        item.var for item in ir.walk(kernel.body) if isinstance(item, ir.VarNew) and item.var.identity
    }
    while True:
        # values come in order: only a variable found late, read earlier in a loop, makes another visit necessary
        before = len(variables)
        _visit(kernel.body, _Flow(), values, variables)
        if before == len(variables):
            return frozenset(values), frozenset(variables)


@dataclass(frozen=True)
class _Flow:
    """Where a statement stands: under a mask that varies, inside a lanes loop. `mask`: the innermost that varies."""

    mask: ir.When | None = None
    in_lanes: bool = False
    made_under: dict[ir.Var, ir.When | None] = field(default_factory=dict)  # of all variables so far


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
    if value.op == "shuffle":  # one lane's value, wherever it is read, is the same for all
        return value.args[1] in values
    if value.op == "var_get":
        return value.attr in variables
    if value.op == "atomic" and (flow.mask or flow.in_lanes):
        return True  # each lane does its own
    return any(arg in values for arg in value.args)


_ALWAYS = frozenset({"lane", "scan", "subgroup_reduce"})
