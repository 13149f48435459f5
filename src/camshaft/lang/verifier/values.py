"""Verifier rules for single values: operand dtypes and widths, accesses, collectives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from camshaft.dtypes import DType, boolean, f32, i32, i64, u32
from camshaft.errors import VerifyError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, STRUCTURAL, Instruction
from camshaft.lang.uniformity import varying

# Instructions that only move a value also accept storage dtypes (f16, i8, ...).
_MOVES = frozenset({"cast", "bitcast", "select"})


class Scope:
    """The context of a rule: which values vary, and the control flow around the value."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        self.kernel = kernel
        self.arrays = {*kernel.arrays, *kernel.scratch}
        self.varying, self.varying_vars = varying(kernel)
        self.in_lanes = False
        self.masked = False

    def fail(self, line: int, message: str) -> VerifyError:
        return VerifyError(f"kernel {self.kernel.name}, line {line}: {message}")

    def contiguous(self, array: ir.Array, indices: tuple[ir.Value, ...]) -> bool:
        """Return whether lanes access neighbours or one element. // and % by a constant are accepted: the emitter decides."""
        total = 0
        for index, stride in zip(indices, array.strides, strict=True):
            step, known = self.lane_step(index)
            if not known:
                return step is not None
            total += (step or 0) * stride
        return total in (0, 1)

    def lane_step(self, value: ir.Value) -> tuple[int | None, bool]:
        """Return (step per lane, True) if linear; (0, False) if // or % make it depend on the width; (None, False) if unknown."""
        if value not in self.varying:
            return 0, True
        if value.op in ("index", "lane"):
            return 1, True
        if value.op in ("add", "subtract"):
            return self._sum(value)
        if value.op == "multiply" and any(a.op == "const" for a in value.args):
            factor, other = value.args if value.args[0].op == "const" else value.args[::-1]
            step, known = self.lane_step(other)
            return (step * factor.attr if known and step is not None else step), known
        if value.op in ("floor_divide", "remainder") and value.args[1].op == "const":
            return (0, False) if self.lane_step(value.args[0])[0] is not None else (None, False)
        return None, False

    def _sum(self, value: ir.Value) -> tuple[int | None, bool]:
        (a, a_known), (b, b_known) = (self.lane_step(arg) for arg in value.args)
        if a is None or b is None:
            return None, False
        return (a + b if value.op == "add" else a - b), a_known and b_known


def value_rule(scope: Scope, value: ir.Value) -> None:
    """Raise VerifyError if a recorded value breaks the rule of its instruction."""
    if value.width < 0 or value.width & (value.width - 1):
        raise scope.fail(value.line, f"a vector of {value.width} elements: wanted a power of two")
    if value.width and scope.in_lanes:
        raise scope.fail(value.line, "explicit vectors do not go inside k.lanes")
    row = INSTRUCTIONS.get(value.op)
    if row is not None:
        _instruction(scope, value, row)
    elif value.op in STRUCTURAL and value.op in _STRUCTURAL:
        _STRUCTURAL[value.op](scope, value)
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


def wanted_index(scope: Scope, array: ir.Array, indices: tuple[ir.Value, ...], line: int, bounds: bool = True) -> None:
    """Raise VerifyError unless the array is the kernel's and the indices are i64, one per dimension; constants in bounds."""
    if array not in scope.arrays:
        raise scope.fail(line, f"{array.name} is no array of this kernel")
    if len(indices) != len(array.shape):
        raise scope.fail(line, f"{array.name} has {len(array.shape)} dimensions, indexed with {len(indices)}")
    for axis, (index, size) in enumerate(zip(indices, array.shape, strict=True)):
        if index.dtype != i64 or index.width:
            raise scope.fail(line, f"{array.name} is indexed with {index!r}: wanted i64")
        if bounds and index.op == "const" and not 0 <= index.attr < size:
            raise scope.fail(line, f"{array.name} is indexed with {index.attr} along axis {axis} of {size}")


def vector_index(
    scope: Scope, array: ir.Array, indices: tuple[ir.Value, ...], count: ir.Value | None, line: int
) -> None:
    """Raise VerifyError unless an explicit vector's indices and count are uniform, outside k.lanes."""
    if scope.in_lanes:
        raise scope.fail(line, "explicit vectors do not go inside k.lanes")
    if not scope.varying.isdisjoint(indices):
        raise scope.fail(line, f"an explicit vector of {array.name} at an index that varies by lane")
    if count is not None and (count.dtype != i64 or count.width or count in scope.varying):
        raise scope.fail(line, f"the count of a vector is {count!r}: wanted a uniform i64")


# --- structural values -----------------------------------------------------------------------------------------------
def _const(scope: Scope, value: ir.Value) -> None:
    number = value.attr
    if value.dtype.is_integer:
        info = np.iinfo(value.dtype.numpy)
        if not isinstance(number, int) or not info.min <= number <= info.max:
            raise scope.fail(value.line, f"the constant {number!r} does not fit {value.dtype}")
    elif not isinstance(number, (int, float)):
        raise scope.fail(value.line, f"the constant {number!r} is no {value.dtype}")


def _program(scope: Scope, value: ir.Value) -> None:
    if not 0 <= value.attr < len(scope.kernel.grid):
        raise scope.fail(value.line, f"program axis {value.attr} of a grid of {len(scope.kernel.grid)}")


def _scalar(scope: Scope, value: ir.Value) -> None:
    if not 0 <= value.attr < len(scope.kernel.scalars):
        raise scope.fail(value.line, f"scalar {value.attr} of {len(scope.kernel.scalars)}")


def _load(scope: Scope, value: ir.Value) -> None:
    array, gather, counted = value.attr
    indices, count = (value.args[:-1], value.args[-1]) if counted else (value.args, None)
    wanted_index(scope, array, indices, value.line)
    if value.dtype != ir.arithmetic_dtype(array.dtype):
        raise scope.fail(value.line, f"{array.name} of {array.dtype} gives {value.dtype}")
    if value.width:
        vector_index(scope, array, indices, count, value.line)
    elif count is not None:
        raise scope.fail(value.line, "a count without an explicit vector")
    elif not gather and not scope.contiguous(array, indices):
        raise scope.fail(value.line, f"lanes of {array.name} are not contiguous; ask for k.gather")


def _var_get(scope: Scope, value: ir.Value) -> None:
    if value.dtype != value.attr.dtype or value.width != value.attr.width:
        raise scope.fail(value.line, f"a variable of {value.attr.dtype}, width {value.attr.width}, read as {value!r}")


def _reduce(scope: Scope, value: ir.Value) -> None:
    operand = value.args[0]
    if scope.in_lanes or scope.masked:
        raise scope.fail(value.line, f"k.lanes_{value.attr} where not all lanes arrive")
    if value.attr not in COMBINERS or operand.width or operand.dtype != value.dtype or operand.dtype == boolean:
        raise scope.fail(value.line, f"k.lanes_{value.attr} of {operand!r}")
    if value.attr == "sum" and operand not in scope.varying:
        raise scope.fail(value.line, "k.lanes_sum of a uniform value would depend on the lane count")


def _lane_exchange(scope: Scope, value: ir.Value) -> None:
    """scan, shuffle, subgroup_reduce: a scalar of a number's dtype, where all lanes arrive."""
    operand = value.args[0]
    if scope.in_lanes or scope.masked:
        raise scope.fail(value.line, f"{_WORDS[value.op]} where not all lanes arrive")
    kind = value.attr[0] if value.op == "scan" else value.attr
    wrong_kind = value.op != "shuffle" and kind not in COMBINERS
    if wrong_kind or operand.width or operand.dtype != value.dtype or operand.dtype == boolean:
        raise scope.fail(value.line, f"{_WORDS[value.op]} of {operand!r}")
    if value.op == "shuffle" and (value.args[1].dtype != i64 or value.args[1].width):
        raise scope.fail(value.line, f"k.shuffle of lane {value.args[1]!r}: wanted i64")


_WORDS = {"scan": "k.lanes_scan", "shuffle": "k.shuffle", "subgroup_reduce": "a subgroup reduction"}


def _atomic(scope: Scope, value: ir.Value) -> None:
    array, kind = value.attr
    row = ATOMICS.get(kind)
    if row is None or array.dtype.kind not in row.kinds or array.dtype.nbytes != 4:
        raise scope.fail(value.line, f"no row for an atomic {kind!r} on {array.name} of {array.dtype}")
    if not array.writable:
        raise scope.fail(value.line, f"{array.name} is read-only")
    wanted_index(scope, array, value.args[row.operands :], value.line)
    if any(v.dtype != array.dtype or v.width for v in (*value.args[: row.operands], value)):
        raise scope.fail(value.line, f"atomic_{kind} of {value.args[0]!r} on {array.name} of {array.dtype}")


def _splat(scope: Scope, value: ir.Value) -> None:
    operand = value.args[0]
    if operand.width or operand in scope.varying or operand.dtype != value.dtype or not value.width:
        raise scope.fail(value.line, f"splat of {operand!r} to a width of {value.width}: wanted one uniform value")


def _iota(scope: Scope, value: ir.Value) -> None:
    if not value.width:
        raise scope.fail(value.line, "iota of no width")


def _from_vector(scope: Scope, value: ir.Value) -> None:
    operand = value.args[0]
    if not operand.width or value.width or operand.dtype != value.dtype:
        raise scope.fail(value.line, f"{value.op} of {operand!r}: wanted an explicit vector")
    if value.op == "element" and not 0 <= value.attr < operand.width:
        raise scope.fail(value.line, f"element {value.attr} of a vector of {operand.width}")


def _pack(scope: Scope, value: ir.Value) -> None:
    vector, mask = value.args
    if mask.dtype != boolean or mask.width != vector.width or not vector.width or value.width != vector.width:
        raise scope.fail(value.line, f"pack of {vector!r} by {mask!r}: wanted a vector and as many booleans")
    if value.dtype != vector.dtype or vector.dtype.nbytes not in (4, 8):
        raise scope.fail(value.line, f"pack of {vector!r}: wanted elements of 32 or 64 bits")


def _reverse(scope: Scope, value: ir.Value) -> None:
    (vector,) = value.args
    if not vector.width or (value.width, value.dtype) != (vector.width, vector.dtype):
        raise scope.fail(value.line, f"reverse of {vector!r}: wanted an explicit vector")


def _count(scope: Scope, value: ir.Value) -> None:
    (mask,) = value.args
    if mask.dtype != boolean or not mask.width or value.width or value.dtype != i64:
        raise scope.fail(value.line, f"count of {mask!r}: wanted an explicit vector of booleans")


def _free(scope: Scope, value: ir.Value) -> None:
    """lane, lane_count and subgroup_lanes have no operands."""


_STRUCTURAL: dict[str, Callable[[Scope, ir.Value], None]] = {
    "const": _const,
    "program": _program,
    "scalar": _scalar,
    "lane": _free,
    "lane_count": _free,
    "load": _load,
    "var_get": _var_get,
    "reduce": _reduce,
    "scan": _lane_exchange,
    "shuffle": _lane_exchange,
    "subgroup_lanes": _free,
    "subgroup_reduce": _lane_exchange,
    "atomic": _atomic,
    "splat": _splat,
    "iota": _iota,
    "element": _from_vector,
    "vector_sum": _from_vector,
    "vector_max": _from_vector,
    "pack": _pack,
    "reverse": _reverse,
    "count": _count,
}
