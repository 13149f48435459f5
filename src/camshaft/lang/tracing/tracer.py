"""Tracer: the methods of the kernel language, which record a kernel function as Kernel IR; and functions that hot kernels share.

Loops, branches and variables are here; arithmetic.py, lanes.py, memory.py (with atomics) and tiles.py have the other methods,
recorder.py has Variable and Array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from camshaft.dtypes import DType, boolean, f32, i32, i64, u32
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, identity
from camshaft.lang.tracing.lanes import LaneMethods
from camshaft.lang.tracing.recorder import Array as Array
from camshaft.lang.tracing.recorder import Number as Number
from camshaft.lang.tracing.recorder import Variable as Variable
from camshaft.lang.tracing.tiles import TileMethods


class Tracer(LaneMethods, TileMethods):
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
            raise self.fail(f"k.when of {condition!r}: wanted a traced boolean that is not an explicit vector")
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


# The functions below are here because every kernel's cache key covers this folder: a change recompiles the kernels.

# 2^r for r in [-1/2, 1/2]: the minimax polynomial of degree 5 that is 1 at 0; relative error 9.2e-8.
_POWER_OF_TWO = (
    0.0013264727224390313,
    0.00967151267112565,
    0.05550733743473982,
    0.24022242084894058,
    0.6931469775988681,
    1.0,
)
_SMALLEST_EXPONENT = -126.0
# Adding it to a float below 2^22 in magnitude rounds to the nearest integer, in the lowest bits.
_ROUNDER, _ROUNDER_BITS = 1.5 * 2.0**23, 0x4B400000


def tile_of(k: Tracer, rows: int, vectors: int, width: int) -> list[list[Variable]]:
    """Return a tile of zeros in registers: `rows` times `vectors` variables of `width` elements."""
    return [[k.var(k.splat(0.0, width)) for _ in range(vectors)] for _ in range(rows)]


def add_products(k: Tracer, tile: list[list[Variable]], left: Sequence[ir.Value], right: Sequence[ir.Value]) -> None:
    """tile[r][v] += left[r] * right[v]: one step of an outer product; `left` are scalars, `right` explicit vectors."""
    for row, scalar in zip(tile, left, strict=True):
        for total, vector in zip(row, right, strict=True):
            total.set(k.fma(scalar, vector, total.value))


def greater(k: Tracer, a: ir.Value, b: ir.Value) -> ir.Value:
    """a where a > b, else b: one instruction on most CPUs; k.maximum takes several to propagate NaN."""
    return k.select(b < a, a, b)


def power_of_two(k: Tracer, x: ir.Value) -> ir.Value:
    """2^x for x <= 0, with 2e-7 relative error; exactly 1 at 0 and 0 below 2^-126. Half the instructions of k.exp. NaN stays NaN.

    x = n + r with integer n: a polynomial in r, then n added to its exponent.
    """
    rounded = x + _ROUNDER
    # On integers: WebGPU drivers may simplify x + c - c to x.
    r = x - (k.bitcast(rounded, i32) - _ROUNDER_BITS).to(x.dtype)
    result: Number = _POWER_OF_TWO[0]
    for coefficient in _POWER_OF_TWO[1:]:
        result = k.fma(result, r, coefficient)
    assert isinstance(result, ir.Value)
    exponent = k.bitcast(rounded, u32) << 23
    power = k.bitcast(k.bitcast(result, u32) + exponent, x.dtype)
    return k.select(x < _SMALLEST_EXPONENT, 0.0, power)


def first_elements(k: Tracer, count: ir.Value, width: int) -> ir.Value:
    """Return the mask of the first `count` (any integer) elements of a vector."""
    return k.iota(width, i32) < k.splat(count.to(i32), width, i32)
