"""Which values differ from lane to lane: a fixpoint over the IR. Read by the verifier, the emitters and the interpreter."""

from __future__ import annotations

from camshaft.lang import ir


def varying(kernel: ir.KernelIR) -> tuple[frozenset[ir.Value], frozenset[ir.Var]]:
    """The values and variables that vary by lane. A variable varies if any value set into it, or its mask, does."""
    values: set[ir.Value] = set()
    variables: set[ir.Var] = {
        item.var for item in ir.walk(kernel.body) if isinstance(item, ir.VarNew) and item.var.identity
    }
    while True:
        # values come in order: only a variable found late, read earlier in a loop, makes another visit necessary
        before = len(variables)
        _visit(kernel.body, False, values, variables)
        if before == len(variables):
            return frozenset(values), frozenset(variables)


def _visit(block: ir.Block, masked: bool, values: set[ir.Value], variables: set[ir.Var]) -> None:
    for item in block.statements:
        if isinstance(item, ir.Value):
            if _value_varies(item, values, variables):
                values.add(item)
        elif isinstance(item, ir.VarSet):
            if masked or item.value in values:
                variables.add(item.var)
        elif isinstance(item, ir.VarNew):
            if item.var.init in values:
                variables.add(item.var)
        elif isinstance(item, ir.Lanes):
            values.add(item.index)
            _visit(item.body, masked, values, variables)
        elif isinstance(item, ir.Range):
            _visit(item.body, masked, values, variables)
        elif isinstance(item, ir.When):
            _visit(item.body, masked or item.condition in values, values, variables)


def _value_varies(value: ir.Value, values: set[ir.Value], variables: set[ir.Var]) -> bool:
    if value.op == "lane":
        return True
    if value.op == "reduce":
        return False
    if value.op == "var_get":
        return value.attr in variables
    return any(arg in values for arg in value.args)
