"""Atomics in LLVM IR: one for the program, or one lane after the other."""

from __future__ import annotations

from camshaft.dtypes import i64
from camshaft.emit.llvm.lanes import LaneEmitter
from camshaft.emit.llvm.values import Rep, scalar_type, vector_type
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS, Atomic


class AtomicEmitter(LaneEmitter):
    """Emits atomics on elements of 32 bits."""

    def atomic(self, value: ir.Value) -> Rep:
        """The old element; where it varies, that of each active lane (others have 0)."""
        array, kind = value.attr
        row = ATOMICS[kind]
        operands = [self.reps[v] for v in value.args[: row.operands]]
        at = self.linear_index(array, tuple(self.reps[v] for v in value.args[row.operands :]))
        if self.lanes == 1 or value not in self.varying:
            return Rep(self.atomic_one(row, array, at.name, [rep.name for rep in operands]))
        return self.atomic_each(row, array, at, operands)

    def atomic_each(self, row: Atomic, array: ir.Array, at: Rep, operands: list[Rep]) -> Rep:
        n, dtype = self.lanes, array.dtype
        typ, slot = vector_type(dtype, n), self.fresh("old")
        self.allocas.append(f"{slot} = alloca {typ}, align 64")
        self.write(f"store {typ} zeroinitializer, ptr {slot}, align 64")
        places, values = self.widened(at, i64, n), [self.widened(rep, dtype, n) for rep in operands]
        mask = self.mask

        def one(lane: str) -> None:
            inside, done = self.label("atomic"), self.label("after")
            active = "true" if mask is None else self.line(f"extractelement {self.mask_type()} {mask}, i64 {lane}")
            self.write(f"br i1 {active}, label %{inside}, label %{done}")
            self.open(inside)
            place = self.line(f"extractelement {self.iota_type()} {places}, i64 {lane}")
            mine = [self.line(f"extractelement {typ} {v}, i64 {lane}") for v in values]
            old = self.atomic_one(row, array, place, mine)
            where = self.line(f"getelementptr inbounds {scalar_type(dtype)}, ptr {slot}, i64 {lane}")
            self.write(f"store {scalar_type(dtype)} {old}, ptr {where}")
            self.write(f"br label %{done}")
            self.open(done)

        self.counted_loop("0", str(n), 1, one)
        return Rep(self.line(f"load {typ}, ptr {slot}, align 64"), n)

    def atomic_one(self, row: Atomic, array: ir.Array, place: str, operands: list[str]) -> str:
        """One atomic on one element: its old value."""
        opcode, dtype = row.llvm[array.dtype.kind], array.dtype
        if not isinstance(opcode, str):
            raise KernelError(f"kernel {self.kernel.name}: atomic_{row.name} of {dtype}: {opcode.reason}")
        pointer, typ = self.pointer(array, place), scalar_type(dtype)
        if opcode == "cmpxchg":
            values = ", ".join(f"{typ} {v}" for v in operands)
            pair = self.line(f"cmpxchg ptr {pointer}, {values} monotonic monotonic")
            return self.line(f"extractvalue {{ {typ}, i1 }} {pair}, 0")
        return self.line(f"atomicrmw {opcode} ptr {pointer}, {typ} {operands[0]} monotonic")
