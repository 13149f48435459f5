"""Reports why a target cannot run a kernel, from the Absent cells of the tables of instructions, values and elements."""

from __future__ import annotations

from math import prod

from camshaft.lang import ir, traversal
from camshaft.lang.dialects import Absent, Cell
from camshaft.lang.instructions import INSTRUCTIONS, STRUCTURAL
from camshaft.lang.targets import ELEMENTS, VALUES

# Elements that an index of the target reaches; targets not named have 64-bit indexes.
_MOST_ELEMENTS = {"wgsl": 1 << 31}


def refusal(kernel: ir.KernelIR, target: str) -> str | None:
    """Return None, or the first reason why `target` ('llvm', 'c', 'wgsl', 'msl', 'ptx') lacks something that the kernel uses."""
    for array in (*kernel.arrays, *kernel.scratch):
        reason = _array(array, target)
        if reason is not None:
            return f"{array.name}: {reason}"
    for item in traversal.walk(kernel.body):
        cell = _cell(item, target)
        if isinstance(cell, Absent):
            return f"line {item.line}: {cell.reason}"
    return None


def _array(array: ir.Array, target: str) -> str | None:
    """Scratch holds values; arrays hold elements."""
    if array.scratch:
        cell = VALUES[target][ir.arithmetic_dtype(array.dtype).name]
    else:
        cell = ELEMENTS[target][array.dtype.name]
    if isinstance(cell, Absent):
        return cell.reason
    size, most = prod(array.shape), _MOST_ELEMENTS.get(target)
    if most is not None and size >= most:
        return f"{size} elements; an index of {target} reaches {most - 1}"
    return None


def _cell(item: ir.Value | ir.Statement, target: str) -> Cell:
    """Return the table's cell of an item: an Absent cell of the item itself, else of its value."""
    if isinstance(item, ir.Value):
        if item.op in INSTRUCTIONS:
            kind = item.args[1 if item.op == "select" else 0].dtype.kind
            own = INSTRUCTIONS[item.op].column(target)[kind]
        else:
            own = STRUCTURAL[item.op][target]
        return own if isinstance(own, Absent) else VALUES[target][item.dtype.name]
    row = STRUCTURAL.get(type(item).__name__.lower())
    return "emitter" if row is None else row[target]
