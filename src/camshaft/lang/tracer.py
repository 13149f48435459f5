"""The words of the kernel language: a Tracer `k` records what a kernel function says as Kernel IR. Used by lang/kernel.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import DType, boolean, f32, i32, i64
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, identity

Number: TypeAlias = ir.Operand


def current() -> Tracer:
    """The tracer that is recording now. KernelError outside a kernel."""
    tracer: Tracer = ir.recorder()
    return tracer


class Tracer:
    """Records one kernel. Only kernels call these words; every index is i64, every f16 or bf16 load is f32."""

    def __init__(self, name: str, filename: str) -> None:
        self.name, self.filename = name, filename
        self.body = ir.Block()
        self.block = self.body
        self.scratches: list[ir.Array] = []
        self.in_lanes = False
        self.broken: KernelError | None = None
        self.loop_line = 0

    # --- recording -------------------------------------------------------------------------------------------------
    def _line(self) -> int:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.filename:
            frame = frame.f_back  # type: ignore[assignment]
        return frame.f_lineno if frame is not None else 0

    def fail(self, message: str) -> KernelError:
        """An error that names the kernel and the line of its source."""
        return KernelError(f"kernel {self.name}, line {self._line()}: {message}")

    def left_early(self, line: int) -> KernelError:
        """The error for a loop, begun at `line`, that Python code left."""
        return KernelError(
            f"kernel {self.name}, line {line}: a traced loop was left early (break, return or an exception): "
            "loops run to their end; use k.when"
        )

    def _check_open(self, value: ir.Value) -> None:
        block: ir.Block | None = self.block
        while block is not None:
            if block is value.block:
                return
            block = block.parent
        raise self.fail(f"{value!r} is used outside the loop that made it; keep it in a variable (k.var)")

    def record(
        self, op: str, dtype: DType, args: tuple[ir.Value, ...] = (), width: int = 0, attr: Any = None
    ) -> ir.Value:
        """Appends an instruction to the open block."""
        if self.broken:
            raise self.broken
        for arg in args:
            self._check_open(arg)
        value = ir.Value(op, dtype, args, width, attr, self.block, self._line())
        self.block.statements.append(value)
        return value

    def _append(self, statement: ir.Statement) -> None:
        if self.broken:
            raise self.broken
        for arg in ir.operands(statement):
            self._check_open(arg)
        self.block.statements.append(statement)

    def const(self, value: float | int | bool, dtype: DType) -> ir.Value:
        """A constant of that dtype."""
        return self.record("const", dtype, attr=value)

    def as_value(self, value: Number, dtype: DType) -> ir.Value:
        """A Value as it is; a Python number as a constant of `dtype`."""
        if isinstance(value, ir.Value):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(f"wanted a traced value or a number, got {type(value).__name__}")
        if isinstance(value, float) and not dtype.is_float:
            raise self.fail(f"the number {value} does not fit {dtype}; use .to(f32) first")
        if dtype.is_integer and not np.iinfo(dtype.numpy).min <= value <= np.iinfo(dtype.numpy).max:
            raise self.fail(f"the number {value} does not fit {dtype}")
        return self.const(value, dtype)

    def apply(self, name: str, *args: Number) -> ir.Value:
        """Records a row of the instruction table; Python numbers take the dtype of the traced operands."""
        row = INSTRUCTIONS[name]
        typed = [a for a in (args[1:] if name == "select" else args) if isinstance(a, ir.Value)]
        dtype = typed[0].dtype if typed else f32
        values = [self.as_value(a, boolean if name == "select" and i == 0 else dtype) for i, a in enumerate(args)]
        checked = values[1:] if name == "select" else values
        if name != "dot4" and any(v.dtype != dtype for v in checked):
            raise self.fail(
                f"{name} of {', '.join(str(v.dtype) for v in checked)}: wanted one dtype; convert with .to(...)"
            )
        if checked[0].dtype.kind not in row.kinds:
            raise self.fail(f"{name} does not take {checked[0].dtype}")
        width = self._common_width(name, values)
        return self.record(name, boolean if row.result == "bool" else checked[0].dtype, tuple(values), width)

    def _common_width(self, name: str, values: list[ir.Value]) -> int:
        widths = {v.width for v in values if v.width}
        if len(widths) > 1:
            raise self.fail(f"{name} of vectors of {sorted(widths)} elements: wanted one width")
        if widths and self.in_lanes:
            raise self.fail("explicit vectors do not go inside k.lanes")
        return widths.pop() if widths else 0

    # --- where am I ------------------------------------------------------------------------------------------------
    def program(self, axis: int) -> ir.Value:
        """This program's index along an axis of the grid."""
        return self.record("program", i64, attr=axis)

    def lane(self) -> ir.Value:
        """This lane's index (varying), 0 up to lane_count."""
        return self.record("lane", i64)

    def lane_count(self) -> ir.Value:
        """The number of lanes (uniform): a power of two that no kernel may assume."""
        return self.record("lane_count", i64)

    # --- loops and branches ----------------------------------------------------------------------------------------
    def _loop(self, statement: ir.Lanes | ir.Range) -> Iterator[ir.Value]:
        self._append(statement)
        self.loop_line = statement.line
        outer, self.block = self.block, statement.body
        finished = False
        try:
            yield statement.index
            finished = True
        finally:
            if not finished and self.broken is None:
                self.broken = self.left_early(statement.line)
            self.block = outer

    def lanes(self, start: Number, stop: Number | None = None) -> Iterator[ir.Value]:
        """for c in k.lanes(n): the columns 0..n (or start..stop), spread over the lanes; the ragged end is masked."""
        if self.in_lanes:
            raise self.fail("k.lanes inside k.lanes")
        low, high = (0, start) if stop is None else (start, stop)
        body = ir.Block(self.block)
        index = ir.Value("index", i64, block=body, line=self._line(), attr="lanes")
        loop = ir.Lanes(self._line(), index, self.as_value(low, i64), self.as_value(high, i64), body)
        self.in_lanes = True
        yield from self._loop(loop)
        self.in_lanes = False

    def elements(self, n: Number, block: int) -> Iterator[ir.Value]:
        """Flat work: this program's `block` elements of n, spread over the lanes. The grid is ceil(n / block)."""
        first = self.program(0) * block
        yield from self.lanes(first, self.minimum(first + block, n))

    def range(self, start: Number, stop: Number | None = None, step: int = 1) -> Iterator[ir.Value]:
        """for i in k.range(n): one after the other."""
        if self.in_lanes:
            raise self.fail("k.range inside k.lanes: turn the loops round, or unroll with Python's range")
        low, high = (0, start) if stop is None else (start, stop)
        body = ir.Block(self.block)
        index = ir.Value("index", i64, block=body, line=self._line(), attr="range")
        loop = ir.Range(self._line(), index, self.as_value(low, i64), self.as_value(high, i64), step, body)
        yield from self._loop(loop)

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        """with k.when(condition): a branch if uniform, a mask if it varies by lane."""
        if not isinstance(condition, ir.Value) or condition.dtype != boolean or condition.width:
            raise self.fail(f"k.when of {condition!r}: wanted a traced boolean that is no explicit vector")
        statement = ir.When(self._line(), condition, ir.Block(self.block))
        self._append(statement)
        outer, self.block = self.block, statement.body
        try:
            yield
        finally:
            self.block = outer

    def barrier(self) -> None:
        """Every lane arrives before any goes on; scratch written before is seen after."""
        if self.in_lanes:
            raise self.fail("a barrier inside k.lanes")
        self._append(ir.Barrier(self._line()))

    # --- variables -------------------------------------------------------------------------------------------------
    def _new_var(self, dtype: DType, init: ir.Value, kind: str | None) -> Variable:
        var = ir.Var(dtype, init.width, init, kind, self.block, self._line())
        self._append(ir.VarNew(self._line(), var))
        return Variable(var)

    def var(self, init: Number, dtype: DType = f32) -> Variable:
        """A variable with a start value."""
        value = self.as_value(init, dtype)
        return self._new_var(value.dtype, value, None)

    def accumulator(self, kind: str, dtype: DType = f32) -> Variable:
        """One accumulator per lane, starting at the identity of 'sum', 'max' or 'min'; read it with k.lanes_sum and so on."""
        if kind not in COMBINERS:
            raise self.fail(f"no accumulator {kind!r}; wanted one of {', '.join(COMBINERS)}")
        return self._new_var(dtype, self.const(identity(kind, dtype.numpy), dtype), kind)

    # --- memory ----------------------------------------------------------------------------------------------------
    def scratch(self, dtype: DType, *shape: int) -> Array:
        """Workgroup memory of this program, not initialized."""
        array = ir.Array(f"scratch{len(self.scratches)}", dtype, shape, writable=True, scratch=True)
        self.scratches.append(array)
        return Array(array)

    def _indices(self, array: ir.Array, indices: tuple[Number, ...]) -> tuple[ir.Value, ...]:
        if len(indices) != len(array.shape):
            raise self.fail(f"{array.name} has {len(array.shape)} dimensions, indexed with {len(indices)}")
        values = [self.as_value(i, i64) for i in indices]
        return tuple(v if v.dtype == i64 else self.cast(v, i64) for v in values)

    def _load(
        self, array: Array, indices: tuple[Number, ...], width: int = 0, gather: bool = False, count: Any = None
    ) -> ir.Value:
        target = array.ir
        at = self._indices(target, indices)
        if count is not None:
            at = (*at, self.as_value(count, i64))
        return self.record("load", ir.arithmetic_dtype(target.dtype), at, width, (target, gather, count is not None))

    def _store(
        self, array: Array, indices: tuple[Number, ...], value: Number, scattered: bool = False, count: Any = None
    ) -> None:
        target = array.ir
        if not target.writable:
            raise self.fail(f"{target.name} is not writable")
        wanted = ir.arithmetic_dtype(target.dtype)
        stored = self.as_value(value, wanted)
        if stored.dtype != wanted:
            raise self.fail(f"a {stored.dtype} stored into {target.name} of {target.dtype}: wanted {wanted}")
        length = None if count is None else self.as_value(count, i64)
        self._append(ir.Store(self._line(), target, self._indices(target, indices), stored, scattered, length))

    def gather(self, array: Array, *indices: Number) -> ir.Value:
        """array[indices] where lanes may read anywhere (slower than a contiguous read, so it is asked for)."""
        return self._load(array, indices, gather=True)

    def scatter(self, array: Array, value: Number, *indices: Number) -> None:
        """array[indices] = value where lanes may write anywhere; no two lanes the same element."""
        self._store(array, indices, value, scattered=True)

    def load_vector(self, array: Array, *indices: Number, width: int, count: Number | None = None) -> ir.Value:
        """`width` consecutive elements from array[indices]; with `count`, only the first of them (the rest 0)."""
        return self._load(array, indices, width, count=count)

    def store_vector(self, array: Array, value: ir.Value, *indices: Number, count: Number | None = None) -> None:
        """The elements of an explicit vector to array[indices], [.. + 1], ...; with `count`, only the first of them."""
        if not value.width:
            raise self.fail("store_vector wants an explicit vector")
        self._store(array, indices, value, count=count)

    def prefetch(self, array: Array, *indices: Number) -> None:
        """A hint that array[indices] is read soon."""
        self._append(ir.Prefetch(self._line(), array.ir, self._indices(array.ir, indices)))

    # --- arithmetic ------------------------------------------------------------------------------------------------
    def cast(self, value: ir.Value, dtype: DType) -> ir.Value:
        """Conversion by value: floats to integers truncate towards zero."""
        return value if value.dtype == dtype else self.record("cast", dtype, (value,), value.width)

    def bitcast(self, value: ir.Value, dtype: DType) -> ir.Value:
        """The same bits as another dtype of the same size."""
        if value.dtype.nbytes != dtype.nbytes:
            raise self.fail(f"bitcast of {value.dtype} to {dtype}: sizes differ")
        return self.record("bitcast", dtype, (value,), value.width)

    def minimum(self, a: Number, b: Number) -> ir.Value:
        return self.apply("minimum", a, b)

    def maximum(self, a: Number, b: Number) -> ir.Value:
        return self.apply("maximum", a, b)

    def select(self, condition: ir.Value, a: Number, b: Number) -> ir.Value:
        """a where the condition holds, else b."""
        return self.apply("select", condition, a, b)

    def fma(self, a: Number, b: Number, c: Number) -> ir.Value:
        """a * b + c, rounded once."""
        return self.apply("fma", a, b, c)

    def exp(self, x: Number) -> ir.Value:
        return self.apply("exp", x)

    def log(self, x: Number) -> ir.Value:
        return self.apply("log", x)

    def tanh(self, x: Number) -> ir.Value:
        return self.apply("tanh", x)

    def sqrt(self, x: Number) -> ir.Value:
        return self.apply("sqrt", x)

    def rsqrt(self, x: Number) -> ir.Value:
        return self.apply("rsqrt", x)

    def floor(self, x: Number) -> ir.Value:
        return self.apply("floor", x)

    def round(self, x: Number) -> ir.Value:
        """To the nearest integer, ties to even."""
        return self.apply("round", x)

    def abs(self, x: Number) -> ir.Value:
        return self.apply("abs", x)

    def dot4(self, acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """acc + the sum over 4 bytes of u8(a) * s8(b), in each 32-bit word: acc i32, a and b u32."""
        if acc.dtype != i32 or a.dtype.name != "u32" or b.dtype.name != "u32":
            raise self.fail(f"dot4 of {acc.dtype}, {a.dtype}, {b.dtype}: wanted i32, u32, u32")
        return self.apply("dot4", acc, a, b)

    # --- collectives and explicit vectors --------------------------------------------------------------------------
    def _reduce(self, kind: str, value: ir.Value | Variable) -> ir.Value:
        if self.in_lanes:
            raise self.fail(f"k.lanes_{kind} inside k.lanes would depend on the lane count")
        operand = value.value if isinstance(value, Variable) else value
        return self.record("reduce", operand.dtype, (operand,), attr=kind)

    def lanes_sum(self, value: ir.Value | Variable) -> ir.Value:
        """The sum over all lanes, uniform."""
        return self._reduce("sum", value)

    def lanes_max(self, value: ir.Value | Variable) -> ir.Value:
        """The greatest over all lanes, uniform."""
        return self._reduce("max", value)

    def lanes_min(self, value: ir.Value | Variable) -> ir.Value:
        """The least over all lanes, uniform."""
        return self._reduce("min", value)

    def splat(self, value: Number, width: int, dtype: DType = f32) -> ir.Value:
        """A vector of equal elements."""
        operand = self.as_value(value, dtype)
        return self.record("splat", operand.dtype, (operand,), width)

    def iota(self, width: int, dtype: DType = i64) -> ir.Value:
        """The vector 0, 1, ..., width - 1."""
        return self.record("iota", dtype, (), width)

    def element(self, vector: ir.Value, index: int) -> ir.Value:
        """One element of an explicit vector."""
        return self.record("element", vector.dtype, (vector,), attr=index)

    def vector_sum(self, vector: ir.Value) -> ir.Value:
        """The sum of an explicit vector's elements, by halving."""
        return self.record("vector_sum", vector.dtype, (vector,))

    def vector_max(self, vector: ir.Value) -> ir.Value:
        """The greatest of an explicit vector's elements."""
        return self.record("vector_max", vector.dtype, (vector,))


class Variable:
    """What k.var and k.accumulator give: read `.value`, set with `.set(x)` or `+=` (sum) and `k.maximum` (max)."""

    def __init__(self, var: ir.Var) -> None:
        self.ir = var

    @property
    def value(self) -> ir.Value:
        return current().record("var_get", self.ir.dtype, (), self.ir.width, self.ir)

    def set(self, value: Number) -> None:
        """Assigns. The dtype and width stay as they were made."""
        k = current()
        new = k.as_value(value, self.ir.dtype)
        if new.dtype != self.ir.dtype or (new.width and new.width != self.ir.width):
            raise k.fail(f"a {new!r} set into a variable of {self.ir.dtype}, width {self.ir.width}")
        k._append(ir.VarSet(k._line(), self.ir, new))

    def combine(self, value: Number) -> None:
        """Folds a value into an accumulator by its own kind."""
        kind = self.ir.identity or "sum"
        self.set(current().apply(COMBINERS[kind], self.value, value))

    def __iadd__(self, value: Number) -> Variable:
        self.set(self.value + value)
        return self


class Array:
    """An array as a kernel sees it: x[row, c] reads, x[row, c] = v writes."""

    def __init__(self, array: ir.Array) -> None:
        self.ir = array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, indices: Any) -> ir.Value:
        return current()._load(self, indices if isinstance(indices, tuple) else (indices,))

    def __setitem__(self, indices: Any, value: Number) -> None:
        current()._store(self, indices if isinstance(indices, tuple) else (indices,), value)
