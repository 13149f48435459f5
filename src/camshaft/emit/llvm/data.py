"""Values in LLVM IR: instructions of the table and structural ones. The lower half of emit/llvm/body.py."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.dtypes import DType, i64
from camshaft.emit.llvm import index as llvm_index
from camshaft.emit.llvm.dots.dot4 import dot4
from camshaft.emit.llvm.dots.lookup import shuffled
from camshaft.emit.llvm.lanes import LaneEmitter
from camshaft.emit.llvm.math import table as llvm_math
from camshaft.emit.llvm.values import Affine, Rep, integer, literal, scalar_type, vector_type
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS, Atomic
from camshaft.lang.instructions import INSTRUCTIONS


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


class DataEmitter(AtomicEmitter):
    """Emits values; statements are above it, in BodyEmitter."""

    def value(self, value: ir.Value) -> Rep:
        """Emits an instruction and gives what it yields."""
        if value.op in INSTRUCTIONS:
            args = tuple(self.reps[a] for a in value.args)
            return self.index_arithmetic(value, args) or self.instruction(value, args)
        return _STRUCTURAL[value.op](self, value)

    def index_arithmetic(self, value: ir.Value, args: tuple[Rep, ...]) -> Rep | None:
        """i64 arithmetic that keeps the lanes' pattern; None where it is ordinary arithmetic."""
        if value.dtype != i64 or value.width or value.op not in _INDEX_OPS:
            return None
        return _INDEX_OPS[value.op](self, *args)

    def instruction(self, value: ir.Value, args: tuple[Rep, ...]) -> Rep:
        row, source = INSTRUCTIONS[value.op], value.args[-1].dtype
        n = self.width_of(args)
        if value.op == "select":
            return self.select(value, args, n)
        names = [self.widened(rep, arg.dtype, n) for rep, arg in zip(args, value.args, strict=True)]
        if value.op in _DIVISIONS and self.mask is not None and args[1].n and not value.width:
            names[1] = self.safe_divisor(names[1], value.dtype)
        typed = self.typed(value.args[0].dtype, n)
        if value.op == "cast":
            return Rep(llvm_math.cast(typed, names[0], value.dtype), n)
        if value.op == "bitcast":
            if scalar_type(source) == scalar_type(value.dtype):
                return Rep(names[0], n)
            return Rep(self.line(f"bitcast {typed.type_of()} {names[0]} to {typed.type_of(value.dtype)}"), n)
        lowering = str(row.column(self.target.column)[value.args[0].dtype.kind])
        if lowering == "expand:dot4":
            acc, a, b = names
            return Rep(dot4(typed, acc, a, b, small=_bytes_below_128(value.args[1])), n)
        if lowering == "expand:byte_lookup" and all(word.op == "const" for word in value.args[1:]):
            found = shuffled(typed, names[0], [int(word.attr) for word in value.args[1:]])
            if found is not None:
                return Rep(found, n)
        if lowering.startswith("expand:"):
            return Rep(llvm_math.EXPANSIONS[lowering[7:]](typed, *names), n)
        if lowering.startswith("llvm."):
            return Rep(typed.call(lowering, *names), n)
        if value.attr == ir.EXACT:
            lowering = lowering.removesuffix(" contract")
        return Rep(typed.op(lowering, *names), n)

    def safe_divisor(self, name: str, dtype: DType) -> str:
        """The divisor, 1 in the lanes that are off: what they hold may be 0, on which a division stops the process."""
        typ = vector_type(dtype, self.lanes)
        return self.line(
            f"select {self.mask_type()} {self.mask}, {typ} {name}, {typ} {self.splat('1', dtype, self.lanes)}"
        )

    def select(self, value: ir.Value, args: tuple[Rep, ...], n: int) -> Rep:
        condition, a, b = args
        typ = vector_type(value.dtype, n)
        mask = f"i1 {condition.name}"
        if condition.n > 1:
            mask = f"<{n} x i1> {condition.name}"
        a_name, b_name = self.widened(a, value.dtype, n), self.widened(b, value.dtype, n)
        return Rep(self.line(f"select {mask}, {typ} {a_name}, {typ} {b_name}"), n)

    def const(self, value: ir.Value) -> Rep:
        if value.dtype == i64:
            return integer(int(value.attr))
        return Rep(literal(value.attr, value.dtype))

    def lane(self, value: ir.Value) -> Rep:
        return integer(0) if self.lanes == 1 else Rep("", affine=Affine(integer(0), 1))

    def var_get(self, value: ir.Value) -> Rep:
        n = self.var_width(value.attr)
        return Rep(self.line(f"load {vector_type(value.dtype, n)}, ptr {self.slots[value.attr]}"), n)

    def splat_value(self, value: ir.Value) -> Rep:
        return Rep(self.splat(self.reps[value.args[0]].name, value.dtype, value.width), value.width)

    def element(self, value: ir.Value) -> Rep:
        vector = value.args[0]
        if vector.width == 1:
            return Rep(self.reps[vector].name)
        typ = vector_type(vector.dtype, vector.width)
        return Rep(self.line(f"extractelement {typ} {self.reps[vector].name}, i64 {value.attr}"))


def _bytes_below_128(value: ir.Value) -> bool:
    """Whether it is known of a word's bytes, as of 4-bit codes: a mask or a table leaves out their top bits."""
    if value.op == "byte_lookup":
        return all(word.op == "const" and not int(word.attr) & 0x80808080 for word in value.args[1:])
    return value.op == "and" and any(a.op == "const" and not int(a.attr) & 0x80808080 for a in value.args)


_DIVISIONS = frozenset({"floor_divide", "remainder"})
_INDEX_OPS: dict[str, Callable[..., Rep | None]] = {
    "add": lambda e, a, b: llvm_index.add(e.line, a, b),
    "subtract": lambda e, a, b: llvm_index.add(e.line, a, b, -1),
    "multiply": lambda e, a, b: llvm_index.multiply(e.line, a, b),
    "floor_divide": lambda e, a, b: (
        llvm_index.divide(e.line, e.lanes, a, b.constant) if (b.constant or 0) > 0 else None
    ),
    "remainder": lambda e, a, b: (
        llvm_index.remainder(e.line, e.lanes, a, b.constant) if (b.constant or 0) > 0 else None
    ),
}
_STRUCTURAL: dict[str, Callable[[DataEmitter, ir.Value], Rep]] = {
    "const": DataEmitter.const,
    "program": lambda e, v: Rep(f"%program{v.attr}"),
    "scalar": lambda e, v: Rep(f"%scalar{v.attr}"),
    "lane": DataEmitter.lane,
    "lane_count": lambda e, v: integer(e.lanes),
    "load": DataEmitter.load,
    "var_get": DataEmitter.var_get,
    "reduce": DataEmitter.reduce,
    "scan": DataEmitter.scan,
    "shuffle": DataEmitter.shuffle,
    "subgroup_lanes": lambda e, v: integer(e.lanes),
    "subgroup_reduce": DataEmitter.reduce,
    "atomic": DataEmitter.atomic,
    "splat": DataEmitter.splat_value,
    "iota": lambda e, v: Rep(e.iota(v.width, v.dtype), v.width),
    "element": DataEmitter.element,
    "vector_sum": DataEmitter.vector_reduce,
    "vector_max": DataEmitter.vector_reduce,
}
