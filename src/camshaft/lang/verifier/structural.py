"""Verifier rules of structural values: constants, loads, collectives, atomics, explicit vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from camshaft.dtypes import boolean, i32, i64
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.instructions import COMBINERS
from camshaft.lang.verifier.scope import Scope, vector_index, wanted_index


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
        raise scope.fail(value.line, f"{value.op} of {vector!r} by {mask!r}: wanted a vector and as many booleans")
    if value.dtype != vector.dtype or vector.dtype.nbytes not in (4, 8):
        raise scope.fail(value.line, f"{value.op} of {vector!r}: wanted elements of 32 or 64 bits")


def _reverse(scope: Scope, value: ir.Value) -> None:
    (vector,) = value.args
    if not vector.width or (value.width, value.dtype) != (vector.width, vector.dtype):
        raise scope.fail(value.line, f"reverse of {vector!r}: wanted an explicit vector")


def _permute(scope: Scope, value: ir.Value) -> None:
    vector, indexes = value.args
    if not vector.width or indexes.width != vector.width or indexes.dtype != i32:
        raise scope.fail(value.line, f"permute of {vector!r} by {indexes!r}: wanted a vector and as many i32")
    if (value.width, value.dtype) != (vector.width, vector.dtype) or vector.dtype.nbytes != 4:
        raise scope.fail(value.line, f"permute of {vector!r}: wanted elements of 32 bits")


def _count(scope: Scope, value: ir.Value) -> None:
    (mask,) = value.args
    if mask.dtype != boolean or not mask.width or value.width or value.dtype != i64:
        raise scope.fail(value.line, f"count of {mask!r}: wanted an explicit vector of booleans")


def _free(scope: Scope, value: ir.Value) -> None:
    """lane, lane_count and subgroup_lanes have no operands."""


RULES: dict[str, Callable[[Scope, ir.Value], None]] = {
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
    "partition": _pack,
    "reverse": _reverse,
    "permute": _permute,
    "count": _count,
}
