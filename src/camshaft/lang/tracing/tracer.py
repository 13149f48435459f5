"""Tracer: the methods of the kernel language, which record a kernel function as Kernel IR.

Loops, branches and variables are here; arithmetic.py, lanes.py, memory.py (with atomics) and tiles.py hold the other methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from camshaft.dtypes import DType, boolean, f32, i64
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, identity
from camshaft.lang.tracing.handles import Array as Array
from camshaft.lang.tracing.handles import Variable as Variable
from camshaft.lang.tracing.lanes import LaneWords
from camshaft.lang.tracing.recorder import Number as Number
from camshaft.lang.tracing.tiles import TileWords


class Tracer(LaneWords, TileWords):
    """Records one kernel. Only kernel functions call these methods. Indexes are i64; an f16 or bf16 load yields f32."""

    # --- loops and branches ----------------------------------------------------------------------------------------
    def _loop(self, statement: ir.Lanes | ir.Range) -> Iterator[ir.Value]:
        self.append(statement)
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
        """for c in k.lanes(n): the columns 0..n (or start..stop), distributed over the lanes; the last partial step is masked."""
        if self.in_lanes:
            raise self.fail("k.lanes inside k.lanes")
        low, high = (0, start) if stop is None else (start, stop)
        body = ir.Block(self.block)
        index = ir.Value("index", i64, block=body, line=self.line(), attr="lanes")
        loop = ir.Lanes(self.line(), index, self.as_value(low, i64), self.as_value(high, i64), body)
        self.in_lanes = True
        yield from self._loop(loop)
        self.in_lanes = False

    def elements(self, n: Number, block: int) -> Iterator[ir.Value]:
        """Iterate over this program's `block` elements of n, distributed over the lanes. The grid is ceil(n / block)."""
        first = self.program(0) * block
        yield from self.lanes(first, self.minimum(first + block, n))

    def range(self, start: Number, stop: Number | None = None, step: int = 1) -> Iterator[ir.Value]:
        """for i in k.range(n): a sequential loop."""
        if self.in_lanes:
            raise self.fail("k.range inside k.lanes: turn the loops round, or unroll with Python's range")
        low, high = (0, start) if stop is None else (start, stop)
        body = ir.Block(self.block)
        index = ir.Value("index", i64, block=body, line=self.line(), attr="range")
        loop = ir.Range(self.line(), index, self.as_value(low, i64), self.as_value(high, i64), step, body)
        yield from self._loop(loop)

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        """with k.when(condition): a branch if uniform, a mask if it varies by lane."""
        if not isinstance(condition, ir.Value) or condition.dtype != boolean or condition.width:
            raise self.fail(f"k.when of {condition!r}: wanted a traced boolean that is no explicit vector")
        statement = ir.When(self.line(), condition, ir.Block(self.block))
        self.append(statement)
        outer, self.block = self.block, statement.body
        try:
            yield
        finally:
            self.block = outer

    def barrier(self) -> None:
        """Workgroup barrier: all lanes arrive before any continues, and scratch written before is visible after."""
        if self.in_lanes:
            raise self.fail("a barrier inside k.lanes")
        self.append(ir.Barrier(self.line()))

    # --- variables -------------------------------------------------------------------------------------------------
    def _new_var(self, dtype: DType, init: ir.Value, kind: str | None) -> Variable:
        var = ir.Var(dtype, init.width, init, kind, self.block, self.line())
        self.append(ir.VarNew(self.line(), var))
        return Variable(var)

    def var(self, init: Number, dtype: DType = f32) -> Variable:
        """Declare a variable with an initial value."""
        value = self.as_value(init, dtype)
        return self._new_var(value.dtype, value, None)

    def accumulator(self, kind: str, dtype: DType = f32) -> Variable:
        """Declare one accumulator per lane, initialized to the identity of 'sum', 'max' or 'min'; reduce it with k.lanes_*."""
        if kind not in COMBINERS:
            raise self.fail(f"no accumulator {kind!r}; wanted one of {', '.join(COMBINERS)}")
        return self._new_var(dtype, self.const(identity(kind, dtype.numpy), dtype), kind)
