"""Values in SIMT form: each becomes a scalar of one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dtypes import DType, boolean, i64
from camshaft.lang import ir, traversal
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS
from camshaft.lang.uniformity import varying


class ValueLowering:
    """Rebuilds values in the block `here`. `values` and `vars` map old objects to new ones."""

    def __init__(self, kernel: ir.KernelIR, lanes: int, subgroup: int) -> None:
        self.lanes, self.subgroup = lanes, min(subgroup, lanes)
        self.varying, _ = varying(kernel)
        self.used = {arg for item in traversal.walk(kernel.body) for arg in traversal.operands(item)}
        self.out = self.here = ir.Block()
        self.values: dict[ir.Value, ir.Value] = {}
        self.vars: dict[ir.Var, ir.Var] = {}
        self.flow_varies = False

    # --- building --------------------------------------------------------------------------------------------------
    def add(self, op: str, dtype: DType, args: tuple[ir.Value, ...] = (), attr: Any = None, line: int = 0) -> ir.Value:
        value = ir.Value(op, dtype, args, 0, attr, self.here, line)
        self.here.statements.append(value)
        return value

    def const(self, value: int, line: int) -> ir.Value:
        return self.add("const", i64, attr=value, line=line)

    def element(self, width: int, line: int) -> ir.Value:
        """Return the index of this thread's element in a vector of `width`."""
        lane = self.add("lane", i64, line=line)
        return lane if width == self.lanes else self.add("and", i64, (lane, self.const(width - 1, line)), line=line)

    def inside(self, body: ir.Block, build: Callable[[], None]) -> None:
        outer, self.here = self.here, body
        build()
        self.here = outer

    def when_(self, condition: ir.Value, line: int, build: Callable[[], None]) -> None:
        statement = ir.When(line, condition, ir.Block(self.here))
        self.here.statements.append(statement)
        self.inside(statement.body, build)

    # --- values ----------------------------------------------------------------------------------------------------
    def value(self, value: ir.Value) -> ir.Value:
        if value.op in INSTRUCTIONS or value.op in ("const", "program", "scalar", "lane"):
            return self.add(value.op, value.dtype, self.mapped(value.args), value.attr, value.line)
        return _VALUES[value.op](self, value)

    def mapped(self, values: tuple[ir.Value, ...]) -> tuple[ir.Value, ...]:
        return tuple(self.values[v] for v in values)

    def iota(self, value: ir.Value) -> ir.Value:
        element = self.element(value.width, value.line)
        return element if value.dtype == i64 else self.add("cast", value.dtype, (element,), line=value.line)

    def combine(self, value: ir.Value, kind: str, n: int) -> ir.Value:
        operand = self.values[value.args[0]]
        return operand if n == 1 else self.add("reduce", value.dtype, (operand,), (kind, n), value.line)

    def pick(self, value: ir.Value) -> ir.Value:
        operand = self.values[value.args[0]]
        if value.args[0].width == 1:
            return operand
        return self.add("broadcast", value.dtype, (operand,), value.attr, value.line)

    def shuffle(self, value: ir.Value) -> ir.Value:
        operand, lane = self.mapped(value.args)
        if lane.op == "const":
            return self.add("broadcast", value.dtype, (operand,), lane.attr, value.line)
        return self.add("shuffle", value.dtype, (operand, lane), line=value.line)

    def subgroup_reduce(self, value: ir.Value) -> ir.Value:
        """Reduce over a subgroup with a butterfly of shuffles."""
        total, step, line = self.values[value.args[0]], self.subgroup // 2, value.line
        lane = self.add("lane", i64, line=line)
        while step:
            other = self.add("xor", i64, (lane, self.const(step, line)), line=line)
            theirs = self.add("shuffle", value.dtype, (total, other), line=line)
            total = self.add(COMBINERS[value.attr], value.dtype, (total, theirs), line=line)
            step //= 2
        return total

    def atomic(self, value: ir.Value) -> ir.Value:
        """Record one atomic per thread if it varies; else one in the first thread, with its result broadcast."""
        args, line = self.mapped(value.args), value.line
        if value in self.varying or self.flow_varies:
            return self.add("atomic", value.dtype, args, value.attr, line)
        old = self.value_when(
            value,
            lambda: self.add("equal", boolean, (self.add("lane", i64, line=line), self.const(0, line)), line=line),
            lambda: self.add("atomic", value.dtype, args, value.attr, line),
        )
        return self.add("broadcast", value.dtype, (old,), 0, line) if value in self.used else old

    def load(self, value: ir.Value) -> ir.Value:
        array, gather, counted = value.attr
        indices = self.mapped(value.args[:-1] if counted else value.args)
        if not value.width:
            return self.add("load", value.dtype, indices, (array, gather, False), value.line)
        element = self.element(value.width, value.line)
        at = self.shifted(indices, element, value.line)
        if not counted:
            return self.add("load", value.dtype, at, (array, gather, False), value.line)
        return self.value_when(
            value,
            lambda: self.below(element, self.values[value.args[-1]], value.line),
            lambda: self.add("load", value.dtype, at, (array, gather, False), value.line),
        )

    def value_when(self, value: ir.Value, condition: Callable[[], ir.Value], make: Callable[[], ir.Value]) -> ir.Value:
        """Record `make`, of the dtype of `value`, in a branch; return its result where the condition holds, else 0."""
        line = value.line
        zero = self.add("const", value.dtype, attr=0, line=line)
        var = ir.Var(value.dtype, 0, zero, None, self.here, line)
        self.here.statements.append(ir.VarNew(line, var))
        self.when_(condition(), line, lambda: self.here.statements.append(ir.VarSet(line, var, make())))
        return self.add("var_get", value.dtype, (), var, line)

    def shifted(self, indices: tuple[ir.Value, ...], by: ir.Value, line: int) -> tuple[ir.Value, ...]:
        return (*indices[:-1], self.add("add", i64, (indices[-1], by), line=line))

    def below(self, a: ir.Value, b: ir.Value, line: int) -> ir.Value:
        return self.add("less", boolean, (a, b), line=line)

    def var_get(self, value: ir.Value) -> ir.Value:
        return self.add("var_get", value.dtype, (), self.vars[value.attr], value.line)


_VALUES: dict[str, Callable[[ValueLowering, ir.Value], ir.Value]] = {
    "lane_count": lambda e, v: e.const(e.lanes, v.line),
    "load": ValueLowering.load,
    "var_get": ValueLowering.var_get,
    "splat": lambda e, v: e.values[v.args[0]],
    "iota": ValueLowering.iota,
    "element": ValueLowering.pick,
    "reduce": lambda e, v: e.combine(v, v.attr, e.lanes),
    "scan": lambda e, v: e.add("scan", v.dtype, e.mapped(v.args), v.attr, v.line),
    "shuffle": ValueLowering.shuffle,
    "subgroup_lanes": lambda e, v: e.const(e.subgroup, v.line),
    "subgroup_reduce": ValueLowering.subgroup_reduce,
    "atomic": ValueLowering.atomic,
    "vector_sum": lambda e, v: e.combine(v, "sum", v.args[0].width),
    "vector_max": lambda e, v: e.combine(v, "max", v.args[0].width),
}
