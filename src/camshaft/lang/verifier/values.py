"""Verifier rules for single values: operand dtypes and widths of instructions; structural.py has the others."""

from __future__ import annotations

from camshaft.dtypes import DType, boolean, f32, i32, u32
from camshaft.lang import ir
from camshaft.lang.instructions import INSTRUCTIONS, STRUCTURAL, Instruction
from camshaft.lang.verifier.scope import Scope
from camshaft.lang.verifier.structural import RULES

# Instructions that only move a value also accept storage dtypes (f16, i8, ...).
_MOVES = frozenset({"cast", "bitcast", "select"})


def value_rule(scope: Scope, value: ir.Value) -> None:
    """Raise VerifyError if a recorded value breaks the rule of its instruction."""
    if value.width < 0 or value.width & (value.width - 1):
        raise scope.fail(value.line, f"a vector of {value.width} elements: wanted a power of two")
    if value.width and scope.in_lanes:
        raise scope.fail(value.line, "explicit vectors do not go inside k.lanes")
    row = INSTRUCTIONS.get(value.op)
    if row is not None:
        _instruction(scope, value, row)
    elif value.op in STRUCTURAL and value.op in RULES:
        RULES[value.op](scope, value)
    else:
        raise scope.fail(value.line, f"no row for the instruction {value.op!r}")


def _instruction(scope: Scope, value: ir.Value, row: Instruction) -> None:
    dtypes = tuple(arg.dtype for arg in value.args)
    if len(value.args) != row.arity:
        raise scope.fail(value.line, f"{row.name} of {len(value.args)} operands: wanted {row.arity}")
    wanted = _wanted(row, dtypes, value.dtype)
    if dtypes != wanted:
        raise scope.fail(value.line, f"{row.name} of {_spell(dtypes)}: wanted {_spell(wanted)}")
    kind = (dtypes[1] if row.name == "select" else dtypes[0]).kind
    if kind not in row.kinds or kind not in row.llvm:
        raise scope.fail(value.line, f"{row.name} has no row for {_spell(dtypes)}")
    if row.name not in _MOVES and any(d in ir.ARITHMETIC_DTYPE for d in dtypes):
        raise scope.fail(value.line, f"{row.name} of {_spell(dtypes)}: storage dtypes have no arithmetic; use .to(...)")
    if row.name == "bitcast" and (value.dtype.nbytes != dtypes[0].nbytes or value.dtype.kind == "b"):
        raise scope.fail(value.line, f"bitcast of {dtypes[0]} to {value.dtype}")
    result = {"bool": boolean, "attr": value.dtype, "same": dtypes[0], "second": dtypes[-1]}[row.result]
    if value.dtype != result:
        raise scope.fail(value.line, f"{row.name} of {_spell(dtypes)} gives {value.dtype}: wanted {result}")
    _widths(scope, value)


def _wanted(row: Instruction, dtypes: tuple[DType, ...], result: DType) -> tuple[DType, ...]:
    if row.name == "dot4":
        return (i32, u32, u32)
    if row.name == "dot2":
        return (i32 if result == i32 else f32, u32, u32)
    if row.name in ("byte_lookup", "byte_pairs", "byte_signs"):
        return (u32,) * row.arity
    if row.name == "select":
        return (boolean, dtypes[1], dtypes[1])
    return (dtypes[0],) * row.arity


def _widths(scope: Scope, value: ir.Value) -> None:
    widths = {arg.width for arg in value.args}
    if not widths <= {0, value.width} or (value.width and widths == {0}):
        raise scope.fail(value.line, f"{value.op} of widths {sorted(widths)} gives a width of {value.width}")
    if value.width and not scope.varying.isdisjoint(value.args):
        raise scope.fail(value.line, f"{value.op} of an explicit vector and a value that varies by lane")


def _spell(dtypes: tuple[DType, ...]) -> str:
    return ", ".join(str(d) for d in dtypes)
