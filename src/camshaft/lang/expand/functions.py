"""Replaces elementary functions by Kernel IR on targets whose cell in the instruction table is "expand".

Expansions use only instructions that every target has: sums, products, fused multiply-adds, comparisons, selects, shifts and
bitcasts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from camshaft.lang import ir, traversal
from camshaft.lang.expand.erf import erf
from camshaft.lang.expand.expander import Expander, Expansion
from camshaft.lang.expand.exponential import exp, log, scale, tanh
from camshaft.lang.expand.trigonometry import cos, sin
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.simt.form import SimtKernel

AnyKernel = TypeVar("AnyKernel", ir.KernelIR, SimtKernel)

EXPANSIONS: dict[str, Expansion] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "scale": scale,
}


@cache
def expanded_on(column: str, without: frozenset[str] = frozenset()) -> dict[str, Expansion]:
    """Return the expansions for a target's column; `without` names further instructions that the machine lacks."""
    rows = INSTRUCTIONS.values()
    names = [row.name for row in rows if row.name in without or row.column(column).get("f") == "expand"]
    # a WGSL driver may assume that there is no NaN
    return {name: _nan_preserving(EXPANSIONS[name]) if column == "wgsl" else EXPANSIONS[name] for name in names}


def _nan_preserving(expansion: Expansion) -> Expansion:
    def with_nan(k: Expander, x: ir.Value, *others: ir.Value) -> ir.Value:
        return k.select(k.isnan(x), x, expansion(k, x, *others))

    return with_nan


def expand_functions(kernel: AnyKernel, column: str, without: frozenset[str] = frozenset()) -> AnyKernel:
    """Return the kernel with the instructions of `expanded_on` expanded, or the same object if it has none."""
    expansions = expanded_on(column, without)
    if not any(isinstance(item, ir.Value) and item.op in expansions for item in traversal.walk(kernel.body)):
        return kernel
    rebuild = _Rebuild(kernel.name, kernel.source_file, expansions)
    with ir.recording(rebuild):
        rebuild.copy(kernel.body, rebuild.body)
    return replace(kernel, body=rebuild.body)


class _Rebuild(Expander):
    """Copies blocks. `renamed` maps values and variables of the old kernel to their replacements."""

    def __init__(self, name: str, source_file: str, expansions: dict[str, Expansion]) -> None:
        super().__init__(name, source_file, expansions)
        self.renamed: dict[ir.Value | ir.Var, Any] = {}

    def copy(self, old: ir.Block, new: ir.Block) -> None:
        outer, self.block = self.block, new
        known, self.known = self.known, dict(self.known)
        for item in old.statements:
            self.at_line = item.line
            if isinstance(item, ir.Value):
                self.value(item)
            else:
                self.statement(item)
        self.block, self.known = outer, known

    def value(self, value: ir.Value) -> None:
        args, attr = self.new(value.args), self.new(value.attr)
        if value.op in self.expansions:
            self.renamed[value] = self.expansions[value.op](self, *args)
            return
        if args is not value.args or attr is not value.attr:
            self.renamed[value] = value = replace(value, args=args, attr=attr, block=self.block)
        self.block.statements.append(value)

    def statement(self, item: ir.Statement) -> None:
        if isinstance(item, ir.VarNew) and item.var.init in self.renamed:
            self.renamed[item.var] = replace(item.var, init=self.renamed[item.var.init])
        changed = {name: self.new(old) for name, old in vars(item).items()}
        body = changed.get("body")
        if isinstance(body, ir.Block):
            changed["body"] = ir.Block(self.block)
        copied = replace(item, **changed)
        self.block.statements.append(copied)
        if isinstance(body, ir.Block):
            self.copy(body, changed["body"])

    def new(self, old: Any) -> Any:
        """Return the replacement of a value, a variable or a tuple of values; the same object if it has none."""
        if isinstance(old, (ir.Value, ir.Var)):
            return self.renamed.get(old, old)
        if isinstance(old, tuple) and any(isinstance(v, ir.Value) and v in self.renamed for v in old):
            return tuple(self.renamed.get(v, v) for v in old)
        return old
