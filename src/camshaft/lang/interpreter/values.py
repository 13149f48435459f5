"""Evaluate values in the interpreter with the NumPy column of the instruction table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from camshaft.errors import VerifyError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, byte_pair_sums, identity
from camshaft.lang.interpreter.checks import ALL_LANES, Undefined, of_result
from camshaft.lang.interpreter.memory import Memory


def halve(values: Any, kind: str) -> Any:
    """Reduce the last axis: combine the first half with the second until one element is left, as the emitters do."""
    combine = INSTRUCTIONS[COMBINERS[kind]].numpy
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = combine(values[..., :half], values[..., half:])
    return values[..., 0]


def subgroups(values: Any, kind: str, lanes: int) -> Any:
    """Reduce within each subgroup; every lane receives its subgroup's result."""
    return np.repeat(halve(values.reshape(-1, lanes), kind), lanes)


def scan(values: Any, kind: str, exclusive: bool) -> Any:
    """Inclusive scan by doubling: combine lane i with i - 1, then i - 2, i - 4 and so on."""
    combine = INSTRUCTIONS[COMBINERS[kind]].numpy
    start = np.full(1, identity(kind, values.dtype), values.dtype)
    if exclusive:
        values = np.concatenate([start, values[:-1]])
    step = 1
    while step < len(values):
        values = np.concatenate([values[:step], combine(values[step:], values[:-step])])
        step *= 2
    return values


def packed(values: Any, mask: Any) -> Any:
    """The elements where the mask is true, then zeros."""
    result = np.zeros_like(values)
    found = values[mask]
    result[: len(found)] = found
    return result


def partitioned(values: Any, mask: Any) -> Any:
    """The elements where the mask is true, in order from the first on, the others from the last."""
    return np.concatenate([values[mask], values[~mask][::-1]])


class ValueMachine:
    """The state of a running program (values, variables, mask) and how it computes values."""

    def __init__(
        self,
        kernel: ir.KernelIR,
        lanes: int,
        memories: dict[ir.Array, Memory],
        scalars: list[np.int64],
        subgroup: int = 1,
    ) -> None:
        self.kernel, self.lanes, self.memories, self.scalars, self.subgroup = kernel, lanes, memories, scalars, subgroup
        self.varying: frozenset[ir.Value] = frozenset()
        self.random = np.random.default_rng(lanes)
        self.iota = np.arange(lanes, dtype=np.int64)
        self.env: dict[ir.Value, Any] = {}
        self.vars: dict[ir.Var, Any] = {}
        self.mask: Any = None
        self.index: tuple[int, ...] = ()
        self.undefined: dict[ir.Value | ir.Var, Undefined] = {}
        self.structural: dict[str, Callable[[ir.Value], Any]] = {
            "const": lambda v: v.dtype.numpy.type(v.attr),
            "program": lambda v: np.int64(self.index[v.attr]),
            "scalar": lambda v: self.scalars[v.attr],
            "lane": lambda v: self.iota,
            "lane_count": lambda v: np.int64(self.lanes),
            "load": self.load,
            "var_get": lambda v: self.vars[v.attr],
            "reduce": lambda v: halve(self.each_lane(v.args[0]), v.attr),
            "scan": lambda v: scan(self.each_lane(v.args[0]), *v.attr),
            "shuffle": self.shuffle,
            "subgroup_lanes": lambda v: np.int64(self.subgroup),
            "subgroup_reduce": lambda v: subgroups(self.each_lane(v.args[0]), v.attr, self.subgroup),
            "atomic": self.atomic,
            "splat": lambda v: np.broadcast_to(self.env[v.args[0]], (v.width,)),
            "iota": lambda v: np.arange(v.width).astype(v.dtype.numpy),
            "element": lambda v: self.env[v.args[0]][v.attr],
            "vector_sum": lambda v: halve(self.env[v.args[0]], "sum"),
            "vector_max": lambda v: halve(self.env[v.args[0]], "max"),
            "pack": lambda v: packed(*(self.env[a] for a in v.args)),
            "partition": lambda v: partitioned(*(self.env[a] for a in v.args)),
            "reverse": lambda v: self.env[v.args[0]][::-1],
            "permute": lambda v: self.env[v.args[0]][self.env[v.args[1]] % v.width],
            "count": lambda v: np.int64(np.count_nonzero(self.env[v.args[0]])),
        }

    def instruction(self, value: ir.Value) -> Any:
        """Evaluate a row of the instruction table. The result has the value's dtype, whatever NumPy would promote to."""
        row, args = INSTRUCTIONS[value.op], [self.env[a] for a in value.args]
        check = _CHECKS.get(value.op)
        if check is not None:
            self.check(check, value, args)
        result = row.numpy(*args, value.dtype) if row.result == "attr" else row.numpy(*args)
        wanted = value.dtype.numpy
        if result.dtype != wanted:
            result = result.astype(wanted)
        return result if result.ndim or not isinstance(result, np.ndarray) else result[()]

    def check(self, check: Callable[..., tuple[str, Any]], value: ir.Value, args: list[Any]) -> None:
        """Raise VerifyError if an active lane does something undefined: a division by 0, or too large a shift."""
        message, wrong = check(*args)
        if np.ndim(wrong) and self.mask is not None and not value.width:
            wrong = wrong & self.mask
        if np.any(wrong):
            where = f"lane {int(np.argmax(wrong))}" if np.ndim(wrong) else "all lanes"
            raise self.fail(value.line, f"{message} (program {self.index}, {where})")

    def load(self, value: ir.Value) -> Any:
        array, _gather, counted = value.attr
        memory = self.memories[array]
        self.whole(value.args, value.line)
        indices = [self.env[i] for i in (value.args[:-1] if counted else value.args)]
        if value.width:
            count = int(self.env[value.args[-1]]) if counted else value.width
            loaded, undefined = memory.load_vector(value.line, indices, value.width, min(count, value.width))
        else:
            loaded, undefined = memory.load(value.line, indices, self.mask, self.lanes)
        self.set_undefined(value, undefined)
        return loaded if loaded.dtype == value.dtype.numpy else loaded.astype(value.dtype.numpy)

    # --- between lanes -------------------------------------------------------------------------------------------
    def each_lane(self, value: ir.Value) -> Any:
        return self.spread(self.env[value])

    def spread(self, given: Any) -> Any:
        """A value as an array of one element per lane."""
        return given if given.ndim else np.full(self.lanes, given)  # a fourth of broadcast_to's time

    def shuffle(self, value: ir.Value) -> Any:
        self.whole(value.args[1:], value.line)
        lane = self.env[value.args[1]]
        wrong = (lane < 0) | (lane >= self.lanes)
        if np.any(wrong):
            came = int(np.atleast_1d(lane)[int(np.argmax(wrong))])
            raise self.fail(value.line, f"a shuffle from lane {came} of {self.lanes} (program {self.index})")
        return self.each_lane(value.args[0])[lane]

    def atomic(self, value: ir.Value) -> Any:
        """Run an atomic lane by lane in a shuffled order if it varies, else once; return the old elements."""
        self.whole(value.args, value.line)
        operands = [self.env[v] for v in value.args]
        if value not in self.varying:
            return self.atomic_of(value, operands, ALL_LANES)
        old = np.zeros(self.lanes, value.attr[0].dtype.numpy)
        for lane in self.random.permutation(self.active()):
            old[lane] = self.atomic_of(value, [v if np.ndim(v) == 0 else v[lane] for v in operands], int(lane))
        return old

    def atomic_of(self, value: ir.Value, operands: list[Any], lane: int) -> Any:
        """Run the atomic of one lane (ALL_LANES: of the program) and return the old element."""
        array, kind = value.attr
        row, memory = ATOMICS[kind], self.memories[array]
        at = memory.atomic(value.line, operands[row.operands :], lane)
        old = memory.data[at]
        memory.data[at] = row.numpy(old, *operands[: row.operands])
        return old

    def active(self) -> Any:
        """Return the indices of the lanes that the mask leaves active."""
        return np.arange(self.lanes) if self.mask is None else np.flatnonzero(self.mask)

    def fail(self, line: int, message: str) -> VerifyError:
        return VerifyError(f"kernel {self.kernel.name}, line {line}: {message}")

    # --- undefined values ----------------------------------------------------------------------------------------
    def set_undefined(self, key: ir.Value | ir.Var, undefined: Undefined | None) -> None:
        """Record which elements of a value or variable are undefined; None: all are defined."""
        if undefined is not None:
            self.undefined[key] = undefined
        elif self.undefined:
            self.undefined.pop(key, None)

    def spread_undefined(self, value: ir.Value) -> None:
        """Mark the elements of a computed value that depend on undefined operands."""
        if value.op == "var_get":
            self.set_undefined(value, self.undefined.get(value.attr))
        elif value.op not in ("load", "atomic"):
            condition = self.env[value.args[value.op == "shuffle"]] if value.op in ("select", "shuffle") else None
            self.set_undefined(value, of_result(value, [self.undefined.get(a) for a in value.args], condition))

    def whole(self, values: Iterable[ir.Value], line: int) -> None:
        """Raise VerifyError if an index, a bound or a condition is undefined in an active lane."""
        for value in values if self.undefined else ():
            undefined = self.undefined.get(value)
            if undefined is not None and np.any(undefined.where if self.mask is None else undefined.where & self.mask):
                raise self.fail(line, f"an index, a bound or a condition depends on scratch: {undefined.origin}")


def _bad_divisor(a: Any, b: Any) -> tuple[str, Any]:
    wrong = b == 0
    if a.dtype.kind == "i":
        wrong = wrong | ((b == -1) & (a == np.iinfo(a.dtype).min))
    return "a division by 0, or one that overflows", wrong


def _bad_shift(a: Any, b: Any) -> tuple[str, Any]:
    return f"a shift by less than 0 or by {a.dtype.itemsize * 8} and more", (b < 0) | (b >= a.dtype.itemsize * 8)


def _wide_pairs(acc: Any, a: Any, b: Any) -> tuple[str, Any]:
    sums = byte_pair_sums(a, b)
    return "byte_pairs of two products whose sum exceeds 16 bits", (sums != sums.astype(np.int16)).any(-1)


_CHECKS: dict[str, Callable[..., tuple[str, Any]]] = {
    "floor_divide": _bad_divisor,
    "remainder": _bad_divisor,
    "shift_left": _bad_shift,
    "shift_right": _bad_shift,
    "byte_pairs": _wide_pairs,
}
