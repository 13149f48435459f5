"""The body of one program in LLVM IR: control flow, variables, masks. Values are in llvm_data.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.emit.llvm import index as llvm_index
from camshaft.emit.llvm import matrix_unit
from camshaft.emit.llvm.data import DataEmitter
from camshaft.emit.llvm.values import (
    Affine,
    Rep,
    array_name,
    common_multiple,
    integer,
    memory_dtype,
    scalar_type,
    vector_type,
)
from camshaft.lang import ir


class BodyEmitter(DataEmitter):
    """Emits statements; DataEmitter, below it, emits values, loads and stores."""

    def emit(self) -> None:
        """The whole kernel body."""
        for array in self.kernel.scratch:
            count = 1
            for size in array.shape:
                count *= size
            element = scalar_type(memory_dtype(array.dtype))
            self.allocas.append(f"{array_name(array.name)} = alloca [{count} x {element}], align 64")
        self.block(self.kernel.body)

    def block(self, block: ir.Block) -> None:
        for item in block.statements:
            if isinstance(item, ir.Value):
                self.reps[item] = self.value(item)
            else:
                self.statement(item)

    def statement(self, item: ir.Statement) -> None:
        _STATEMENTS[type(item)](self, item)

    # --- variables ---------------------------------------------------------------------------------------------------
    def var_new(self, item: ir.VarNew) -> None:
        n = self.var_width(item.var)
        slot = self.fresh("var")
        self.allocas.append(f"{slot} = alloca {vector_type(item.var.dtype, n)}")
        self.slots[item.var] = slot
        self.write(f"store {self.operand(self.reps[item.var.init], item.var.dtype, n)}, ptr {slot}")

    def var_set(self, item: ir.VarSet) -> None:
        n, slot = self.var_width(item.var), self.slots[item.var]
        new = self.widened(self.reps[item.value], item.var.dtype, n)
        if self.mask is not None and item.var in self.varying_vars:
            typ = vector_type(item.var.dtype, n)
            old = self.line(f"load {typ}, ptr {slot}")
            new = self.line(f"select {self.mask_type()} {self.mask}, {typ} {new}, {typ} {old}")
        self.write(f"store {vector_type(item.var.dtype, n)} {new}, ptr {slot}")

    # --- loops -------------------------------------------------------------------------------------------------------
    def range(self, item: ir.Range) -> None:
        start, stop = self.reps[item.start], self.reps[item.stop]

        def body(counter: str) -> None:
            self.reps[item.index] = Rep(counter, multiple=common_multiple(start.multiple, item.step))
            self.block(item.body)

        self.counted_loop(start.name, stop.name, item.step, body)

    def lanes_loop(self, item: ir.Lanes) -> None:
        start, stop, width = self.reps[item.start], self.reps[item.stop], self.lanes
        if width == 1:
            self.counted_loop(start.name, stop.name, 1, lambda i: self.lanes_body(item, Rep(i)))
            return
        length = llvm_index.add(self.line, stop, start, -1)
        assert length is not None
        whole = self.whole_lanes(length)
        end = llvm_index.add(self.line, start, whole, 1)
        assert end is not None
        multiple = common_multiple(start.multiple, width)
        if whole.constant != 0:
            self.counted_loop(start.name, end.name, width, lambda i: self.lanes_body(item, Rep(i, multiple=multiple)))
        if length.constant is not None and length.constant % width == 0:
            return
        self.ragged_end(item, end, stop, multiple)

    def whole_lanes(self, length: Rep) -> Rep:
        """length rounded down to whole vectors (0 for a negative length)."""
        if length.constant is not None:
            return integer(max(length.constant, 0) // self.lanes * self.lanes)
        self.declare("llvm.smax.i64", "declare i64 @llvm.smax.i64(i64, i64)")
        positive = self.line(f"call i64 @llvm.smax.i64(i64 {length.name}, i64 0)")
        return Rep(self.line(f"and i64 {positive}, {-self.lanes}"), multiple=self.lanes)

    def ragged_end(self, item: ir.Lanes, end: Rep, stop: Rep, multiple: int) -> None:
        """The body once more under the mask lane < stop - end."""
        tail, done = self.label("tail"), self.label("after")
        rest = self.line(f"icmp slt i64 {end.name}, {stop.name}")
        self.write(f"br i1 {rest}, label %{tail}, label %{done}")
        self.open(tail)
        left = self.line(f"sub nsw i64 {stop.name}, {end.name}")
        mask = self.line(f"icmp ult {self.iota_type()} {self.iota()}, {self.splat_i64(left)}")
        outer = self.mask
        self.mask = mask if outer is None else self.line(f"and {self.mask_type()} {outer}, {mask}")
        self.mask_is_prefix = outer is None
        self.lanes_body(item, Rep(end.name, multiple=multiple, constant=end.constant))
        self.mask, self.mask_is_prefix = outer, False
        self.write(f"br label %{done}")
        self.open(done)

    def lanes_body(self, item: ir.Lanes, base: Rep) -> None:
        self.reps[item.index] = base if self.lanes == 1 else Rep("", affine=Affine(base, 1))
        self.block(item.body)

    # --- branches ----------------------------------------------------------------------------------------------------
    def when(self, item: ir.When) -> None:
        condition = self.reps[item.condition]
        inside, done = self.label("when"), self.label("after")
        if condition.n == 0:
            self.write(f"br i1 {condition.name}, label %{inside}, label %{done}")
            self.open(inside)
            self.block(item.body)
        else:
            self.masked_when(item, condition, inside, done)
        self.write(f"br label %{done}")
        self.open(done)

    def masked_when(self, item: ir.When, condition: Rep, inside: str, done: str) -> None:
        outer = self.mask
        mask = condition.name
        if outer is not None:
            mask = self.line(f"and {self.mask_type()} {outer}, {mask}")
        bits = self.line(f"bitcast {self.mask_type()} {mask} to i{self.lanes}")
        some = self.line(f"icmp ne i{self.lanes} {bits}, 0")
        self.write(f"br i1 {some}, label %{inside}, label %{done}")
        self.open(inside)
        was_prefix, self.mask_is_prefix = self.mask_is_prefix, False
        self.mask = mask
        self.block(item.body)
        self.mask, self.mask_is_prefix = outer, was_prefix

    def barrier(self, item: ir.Barrier) -> None:
        """Lanes of a vector go in step: memory order within a thread is enough."""

    def prefetch(self, item: ir.Prefetch) -> None:
        at = self.linear_index(item.array, tuple(self.reps[i] for i in item.indices))
        place = self.first_lane(at)
        # a hint may point past the end, which `inbounds` would forbid
        pointer = self.pointer(item.array, place, inbounds=False)
        self.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.write(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")


_STATEMENTS: dict[type, Callable[[BodyEmitter, Any], None]] = {
    ir.VarNew: BodyEmitter.var_new,
    ir.VarSet: BodyEmitter.var_set,
    ir.Store: BodyEmitter.store,
    ir.Lanes: BodyEmitter.lanes_loop,
    ir.Range: BodyEmitter.range,
    ir.When: BodyEmitter.when,
    ir.Barrier: lambda e, item: e.barrier(item),
    ir.Prefetch: BodyEmitter.prefetch,
    **matrix_unit.STATEMENTS,
}
