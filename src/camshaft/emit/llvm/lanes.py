"""Exchange between lanes in LLVM IR: reductions, scans, shuffles. Lanes are elements of one vector."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.emit.llvm.memory import MemoryEmitter
from camshaft.emit.llvm.values import Rep, literal, scalar_type, vector_type
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, identity


class LaneEmitter(MemoryEmitter):
    """Emits collectives. A subgroup is the whole vector."""

    def reduce(self, value: ir.Value) -> Rep:
        """All lanes into one, by halving."""
        rep = self.reps[value.args[0]]
        if self.lanes == 1:
            return rep
        name = self.widened(rep, value.dtype, self.lanes)
        return self.halve(name, value.dtype, self.lanes, value.attr)

    def vector_reduce(self, value: ir.Value) -> Rep:
        kind = value.op.removeprefix("vector_")
        return self.halve(self.reps[value.args[0]].name, value.dtype, value.args[0].width, kind)

    def halve(self, name: str, dtype: DType, n: int, kind: str) -> Rep:
        while n > 1:
            typ, half = vector_type(dtype, n), n // 2
            parts = []
            for start in (0, half):
                order = ", ".join(f"i32 {start + i}" for i in range(half))
                parts.append(self.line(f"shufflevector {typ} {name}, {typ} poison, <{half} x i32> <{order}>"))
            n = half
            if n == 1:
                parts = [self.line(f"extractelement <1 x {scalar_type(dtype)}> {p}, i64 0") for p in parts]
            name = self.combine(dtype, n, kind, *parts)
        return Rep(name)

    def combine(self, dtype: DType, n: int, kind: str, a: str, b: str) -> str:
        """Two accumulators of a kind in one."""
        lowering, typed = INSTRUCTIONS[COMBINERS[kind]].llvm[dtype.kind], self.typed(dtype, n)
        return typed.call(lowering, a, b) if lowering.startswith("llvm.") else typed.op(lowering, a, b)

    def scan(self, value: ir.Value) -> Rep:
        """Lane i with i - 1, then with i - 2, i - 4 and so on; the identity comes in from below lane 0."""
        kind, exclusive = value.attr
        rep, n, dtype = self.reps[value.args[0]], self.lanes, value.dtype
        neutral = literal(identity(kind, dtype.numpy), dtype)
        if n == 1:
            return Rep(neutral) if exclusive else rep
        name = self.widened(rep, dtype, n)
        if exclusive:
            name = self.moved_up(name, dtype, neutral, 1)
        step = 1
        while step < n:
            name = self.combine(dtype, n, kind, name, self.moved_up(name, dtype, neutral, step))
            step *= 2
        return Rep(name, n)

    def moved_up(self, name: str, dtype: DType, neutral: str, by: int) -> str:
        """Lane i gets lane i - by; the lowest get `neutral`."""
        typ = vector_type(dtype, self.lanes)
        order = ", ".join(f"i32 {i if i < by else self.lanes + i - by}" for i in range(self.lanes))
        fill = f"{typ} splat ({scalar_type(dtype)} {neutral})"
        return self.line(f"shufflevector {fill}, {typ} {name}, <{self.lanes} x i32> <{order}>")

    def shuffle(self, value: ir.Value) -> Rep:
        """A uniform lane extracts an element, a pattern known now shuffles the vector, others go through memory."""
        rep, n, dtype = self.reps[value.args[0]], self.lanes, value.dtype
        if n == 1 or rep.is_scalar:
            return rep
        lane, typ = self.reps[value.args[1]], vector_type(dtype, n)
        name = self.widened(rep, dtype, n)
        if lane.is_scalar:
            return Rep(self.line(f"extractelement {typ} {name}, i64 {lane.name}"))
        pattern = _pattern(value.args[1], n)
        if pattern is None:
            return Rep(self.picked(name, dtype, self.widened(lane, value.args[1].dtype, n)), n)
        order = ", ".join(f"i32 {int(i)}" for i in np.broadcast_to(pattern, (n,)))
        return Rep(self.line(f"shufflevector {typ} {name}, {typ} poison, <{n} x i32> <{order}>"), n)

    def picked(self, name: str, dtype: DType, lanes: str) -> str:
        """Each lane's element of a vector that is put in memory for it."""
        n, typ = self.lanes, vector_type(dtype, self.lanes)
        slot = self.fresh("shuffled")
        self.allocas.append(f"{slot} = alloca {typ}, align 64")
        self.write(f"store {typ} {name}, ptr {slot}, align 64")
        pointers = self.line(f"getelementptr inbounds {scalar_type(dtype)}, ptr {slot}, {self.iota_type()} {lanes}")
        intrinsic = f"llvm.masked.gather.v{n}{self.suffix(dtype)}.v{n}p0"
        self.declare(intrinsic, f"declare {typ} @{intrinsic}(<{n} x ptr>, i32, <{n} x i1>, {typ})")
        arguments = f"<{n} x ptr> {pointers}, i32 {dtype.nbytes}, {self.mask_type()} splat (i1 true), {typ} poison"
        return self.line(f"call {typ} @{intrinsic}({arguments})")


def _pattern(value: ir.Value, lanes: int) -> Any:
    """A value's elements where they follow from the lane's number alone, or None."""
    if value.op == "lane":
        return np.arange(lanes, dtype=np.int64)
    if value.op in ("const", "lane_count"):
        return value.dtype.numpy.type(value.attr if value.op == "const" else lanes)
    row = INSTRUCTIONS.get(value.op)
    if row is None or row.result == "attr":
        return None
    args = [_pattern(arg, lanes) for arg in value.args]
    return None if any(a is None for a in args) else row.numpy(*args)
