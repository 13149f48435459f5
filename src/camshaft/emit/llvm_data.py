"""Values, loads and stores in LLVM IR. The lower half of emit/llvm_body.py."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.dtypes import DType, boolean, i64
from camshaft.emit import llvm_index, llvm_math
from camshaft.emit.llvm_values import Rep, integer, literal, scalar_type, vector_type
from camshaft.emit.target import CpuTarget
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS
from camshaft.lang.uniformity import varying


class DataEmitter:
    """Holds what is known of each value while text is written. `mask` is the active lanes, None where all are."""

    def __init__(self, kernel: ir.KernelIR, target: CpuTarget) -> None:
        self.kernel, self.target, self.lanes = kernel, target, target.lanes
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, str] = {}
        self.reps: dict[ir.Value, Rep] = {}
        self.slots: dict[ir.Var, str] = {}
        self.mask: str | None = None
        self._count = 0
        self.varying_values, self.varying_vars = varying(kernel)

    # --- writing -----------------------------------------------------------------------------------------------------
    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"%{prefix}.{self._count}"

    def label(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}.{self._count}"

    def open(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def write(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def line(self, text: str) -> str:
        """Writes an instruction and gives the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def declare(self, name: str, text: str) -> None:
        self.declarations[name] = text

    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}, line {line}: {message}")

    # --- forms -------------------------------------------------------------------------------------------------------
    def mask_type(self) -> str:
        return f"<{self.lanes} x i1>"

    def iota_type(self) -> str:
        return f"<{self.lanes} x i64>"

    def iota(self, n: int | None = None, dtype: DType = i64) -> str:
        element = scalar_type(dtype)
        return "<" + ", ".join(f"{element} {literal(i, dtype)}" for i in range(n or self.lanes)) + ">"

    def splat_i64(self, name: str) -> str:
        return self.splat(name, i64, self.lanes)

    def splat(self, name: str, dtype: DType, n: int) -> str:
        element, vector = scalar_type(dtype), vector_type(dtype, n)
        if not name.startswith("%"):
            return f"splat ({element} {name})"
        first = self.line(f"insertelement {vector} poison, {element} {name}, i64 0")
        return self.line(f"shufflevector {vector} {first}, {vector} poison, <{n} x i32> zeroinitializer")

    def widened(self, rep: Rep, dtype: DType, n: int) -> str:
        """The value's name as `n` elements: a scalar is repeated, a lane index is spelled out."""
        if rep.affine is not None:
            base = self.splat_i64(rep.affine.base.name)
            steps = [rep.affine.coefficient * (i // rep.affine.divisor) for i in range(self.lanes)]
            offsets = "<" + ", ".join(f"i64 {s}" for s in steps) + ">"
            return self.line(f"add nsw {self.iota_type()} {base}, {offsets}")
        return rep.name if n <= 1 or rep.n else self.splat(rep.name, dtype, n)

    def operand(self, rep: Rep, dtype: DType, n: int) -> str:
        """Type and name, as LLVM wants an operand."""
        return f"{vector_type(dtype, n)} {self.widened(rep, dtype, n)}"

    def var_width(self, var: ir.Var) -> int:
        return var.width or (self.lanes if var in self.varying_vars and self.lanes > 1 else 0)

    def width_of(self, reps: tuple[Rep, ...]) -> int:
        """The common width of operands: that of the vectors among them."""
        return max((rep.n or (self.lanes if rep.affine is not None else 0) for rep in reps), default=0)

    def typed(self, dtype: DType, n: int) -> llvm_math.Typed:
        return llvm_math.Typed(self.line, self.declare, dtype, n, self.target)

    # --- values ------------------------------------------------------------------------------------------------------
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
        typed = self.typed(value.args[0].dtype, n)
        if value.op == "cast":
            return Rep(llvm_math.cast(typed, names[0], value.dtype), n)
        if value.op == "bitcast":
            if scalar_type(source) == scalar_type(value.dtype):
                return Rep(names[0], n)
            return Rep(self.line(f"bitcast {typed.type_of()} {names[0]} to {typed.type_of(value.dtype)}"), n)
        lowering = row.llvm[value.args[0].dtype.kind]
        if lowering.startswith("expand:"):
            return Rep(llvm_math.EXPANSIONS[lowering[7:]](typed, *names), n)
        if lowering.startswith("llvm."):
            return Rep(typed.call(lowering, *names), n)
        return Rep(typed.op(lowering, *names), n)

    def select(self, value: ir.Value, args: tuple[Rep, ...], n: int) -> Rep:
        condition, a, b = args
        typ = vector_type(value.dtype, n)
        mask = f"i1 {condition.name}"
        if condition.n:
            mask = f"<{n} x i1> {condition.name}"
        a_name, b_name = self.widened(a, value.dtype, n), self.widened(b, value.dtype, n)
        return Rep(self.line(f"select {mask}, {typ} {a_name}, {typ} {b_name}"), n)

    def const(self, value: ir.Value) -> Rep:
        if value.dtype == i64:
            return integer(int(value.attr))
        return Rep(literal(value.attr, value.dtype))

    def lane(self, value: ir.Value) -> Rep:
        from camshaft.emit.llvm_values import Affine

        return integer(0) if self.lanes == 1 else Rep("", affine=Affine(integer(0), 1))

    def var_get(self, value: ir.Value) -> Rep:
        n = self.var_width(value.attr)
        return Rep(self.line(f"load {vector_type(value.dtype, n)}, ptr {self.slots[value.attr]}"), n)

    def splat_value(self, value: ir.Value) -> Rep:
        return Rep(self.splat(self.reps[value.args[0]].name, value.dtype, value.width), value.width)

    def element(self, value: ir.Value) -> Rep:
        vector = value.args[0]
        typ = vector_type(vector.dtype, vector.width)
        return Rep(self.line(f"extractelement {typ} {self.reps[vector].name}, i64 {value.attr}"))

    def reduce(self, value: ir.Value) -> Rep:
        """All lanes into one, by halving."""
        rep = self.reps[value.args[0]]
        if self.lanes == 1:
            return rep
        name = self.widened(rep, value.dtype, self.lanes)
        return self.halve(name, value.dtype, self.lanes, COMBINERS[value.attr])

    def vector_reduce(self, value: ir.Value) -> Rep:
        kind = value.op.removeprefix("vector_")
        return self.halve(self.reps[value.args[0]].name, value.dtype, value.args[0].width, COMBINERS[kind])

    def halve(self, name: str, dtype: DType, n: int, combiner: str) -> Rep:
        while n > 1:
            typ, half = vector_type(dtype, n), n // 2
            parts = []
            for start in (0, half):
                order = ", ".join(f"i32 {start + i}" for i in range(half))
                parts.append(self.line(f"shufflevector {typ} {name}, {typ} poison, <{half} x i32> <{order}>"))
            n = half
            if n == 1:
                parts = [self.line(f"extractelement <1 x {scalar_type(dtype)}> {p}, i64 0") for p in parts]
            lowering = INSTRUCTIONS[combiner].llvm[dtype.kind]
            typed = self.typed(dtype, n)
            name = typed.call(lowering, *parts) if lowering.startswith("llvm.") else typed.op(lowering, *parts)
        return Rep(name)

    # --- memory ------------------------------------------------------------------------------------------------------
    def linear_index(self, array: ir.Array, indices: tuple[Rep, ...]) -> Rep:
        """The element offset of array[indices]; a Rep of `lanes` i64 where the lanes go anywhere."""
        total = integer(0)
        for index, stride in zip(indices, array.strides, strict=True):
            total = self.add_any(total, self.scale_any(index, stride))
        return total

    def scale_any(self, a: Rep, factor: int) -> Rep:
        exact = llvm_index.multiply(self.line, a, integer(factor))
        if exact is not None:
            return exact
        name = self.line(f"mul nsw {self.iota_type()} {self.widened(a, i64, self.lanes)}, splat (i64 {factor})")
        return Rep(name, self.lanes)

    def add_any(self, a: Rep, b: Rep) -> Rep:
        exact = llvm_index.add(self.line, a, b)
        if exact is not None:
            return exact
        left, right = self.widened(a, i64, self.lanes), self.widened(b, i64, self.lanes)
        return Rep(self.line(f"add nsw {self.iota_type()} {left}, {right}"), self.lanes)

    def pointer(self, array: ir.Array, index: str) -> str:
        return self.line(f"getelementptr inbounds {scalar_type(array.dtype)}, ptr %{array.name}, i64 {index}")

    def load(self, value: ir.Value) -> Rep:
        array, gather, counted = value.attr
        indices = value.args[:-1] if counted else value.args
        at = self.linear_index(array, tuple(self.reps[i] for i in indices))
        count = self.reps[value.args[-1]] if counted else None
        stored = self.load_stored(value, array, at, gather, count)
        typed = self.typed(array.dtype, stored.n)
        return Rep(llvm_math.cast(typed, stored.name, value.dtype), stored.n)

    def load_stored(self, value: ir.Value, array: ir.Array, at: Rep, gather: bool, count: Rep | None) -> Rep:
        align = array.dtype.nbytes
        if value.width:
            return self.load_vector(array, at, value.width, self.count_mask(count, value.width))
        if at.is_scalar:
            return Rep(self.line(f"load {scalar_type(array.dtype)}, ptr {self.pointer(array, at.name)}, align {align}"))
        pattern = at.affine
        if pattern is not None and pattern.coefficient == 1 and pattern.divisor == 1:
            return self.load_vector(array, pattern.base, self.lanes, self.mask)
        if pattern is not None and pattern.coefficient == 1:
            return self.load_repeated(array, pattern.base, pattern.divisor)
        if not gather:
            raise self.fail(value.line, f"lanes of {array.name} are not contiguous; ask for k.gather")
        return self.gather(array, at)

    def count_mask(self, count: Rep | None, n: int) -> str | None:
        if count is None:
            return None
        return self.line(f"icmp ult <{n} x i64> {self.iota(n)}, {self.splat(count.name, i64, n)}")

    def load_vector(self, array: ir.Array, at: Rep, n: int, mask: str | None) -> Rep:
        pointer, typ = self.pointer(array, at.name), vector_type(array.dtype, n)
        if mask is None or n == 1:
            return Rep(self.line(f"load {typ}, ptr {pointer}, align {array.dtype.nbytes}"), n)
        name = f"llvm.masked.load.v{n}{self.suffix(array.dtype)}.p0"
        self.declare(name, f"declare {typ} @{name}(ptr, i32, <{n} x i1>, {typ})")
        arguments = f"ptr {pointer}, i32 {array.dtype.nbytes}, <{n} x i1> {mask}, {typ} zeroinitializer"
        return Rep(self.line(f"call {typ} @{name}({arguments})"), n)

    def suffix(self, dtype: DType) -> str:
        return dtype.name.replace("u", "i") if dtype != boolean else "i1"

    def load_repeated(self, array: ir.Array, base: Rep, each: int) -> Rep:
        """lanes // each: fewer elements, each repeated."""
        n = self.lanes // each
        mask = None
        if self.mask is not None:
            order = ", ".join(f"i32 {i * each}" for i in range(n))
            typ = self.mask_type()
            mask = self.line(f"shufflevector {typ} {self.mask}, {typ} poison, <{n} x i32> <{order}>")
            if n == 1:
                mask = None  # the first lane of a ragged end is always active
        few = self.load_vector(array, base, n, mask)
        if n == 1:
            return Rep(few.name)
        typ = vector_type(array.dtype, n)
        order = ", ".join(f"i32 {i // each}" for i in range(self.lanes))
        return Rep(
            self.line(f"shufflevector {typ} {few.name}, {typ} poison, <{self.lanes} x i32> <{order}>"), self.lanes
        )

    def all_lanes(self) -> str:
        return self.mask or "splat (i1 true)"

    def pointers(self, array: ir.Array, at: Rep) -> str:
        index = f"{self.iota_type()} {self.widened(at, i64, self.lanes)}"
        return self.line(f"getelementptr inbounds {scalar_type(array.dtype)}, ptr %{array.name}, {index}")

    def gather(self, array: ir.Array, at: Rep) -> Rep:
        n, typ = self.lanes, vector_type(array.dtype, self.lanes)
        name = f"llvm.masked.gather.v{n}{self.suffix(array.dtype)}.v{n}p0"
        self.declare(name, f"declare {typ} @{name}(<{n} x ptr>, i32, <{n} x i1>, {typ})")
        arguments = (
            f"<{n} x ptr> {self.pointers(array, at)}, i32 {array.dtype.nbytes}, {self.mask_type()} {self.all_lanes()}"
        )
        return Rep(self.line(f"call {typ} @{name}({arguments}, {typ} zeroinitializer)"), n)

    def store(self, item: ir.Store) -> None:
        array, rep = item.array, self.reps[item.value]
        at = self.linear_index(array, tuple(self.reps[i] for i in item.indices))
        n = item.value.width or (self.lanes if self.lanes > 1 and not at.is_scalar else 0)
        if at.is_scalar and not item.value.width and self.width_of((rep,)):
            raise self.fail(item.line, f"every lane stores another value to one element of {array.name}")
        name = self.widened(rep, item.value.dtype, n)
        name = llvm_math.cast(self.typed(item.value.dtype, n), name, array.dtype)
        if item.value.width:
            mask = self.count_mask(self.reps[item.count] if item.count is not None else None, n)
            self.store_vector(array, at, name, n, mask)
        elif at.is_scalar:
            self.store_vector(array, at, name, 0, None)
        elif at.affine is not None and at.affine.coefficient == 1 and at.affine.divisor == 1:
            self.store_vector(array, at.affine.base, name, n, self.mask)
        elif item.scattered:
            self.scatter(array, at, name)
        else:
            raise self.fail(item.line, f"lanes of {array.name} are not contiguous; ask for k.scatter")

    def store_vector(self, array: ir.Array, at: Rep, value: str, n: int, mask: str | None) -> None:
        pointer, typ = self.pointer(array, at.name), vector_type(array.dtype, n)
        if mask is None:
            self.write(f"store {typ} {value}, ptr {pointer}, align {array.dtype.nbytes}")
            return
        name = f"llvm.masked.store.v{n}{self.suffix(array.dtype)}.p0"
        self.declare(name, f"declare void @{name}({typ}, ptr, i32, <{n} x i1>)")
        self.write(f"call void @{name}({typ} {value}, ptr {pointer}, i32 {array.dtype.nbytes}, <{n} x i1> {mask})")

    def scatter(self, array: ir.Array, at: Rep, value: str) -> None:
        n, typ = self.lanes, vector_type(array.dtype, self.lanes)
        name = f"llvm.masked.scatter.v{n}{self.suffix(array.dtype)}.v{n}p0"
        self.declare(name, f"declare void @{name}({typ}, <{n} x ptr>, i32, <{n} x i1>)")
        pointers = self.pointers(array, at)
        arguments = f"{typ} {value}, <{n} x ptr> {pointers}, i32 {array.dtype.nbytes}"
        self.write(f"call void @{name}({arguments}, {self.mask_type()} {self.all_lanes()})")


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
    "splat": DataEmitter.splat_value,
    "iota": lambda e, v: Rep(e.iota(v.width, v.dtype), v.width),
    "element": DataEmitter.element,
    "vector_sum": DataEmitter.vector_reduce,
    "vector_max": DataEmitter.vector_reduce,
}
