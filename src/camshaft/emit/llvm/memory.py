"""Loads and stores in LLVM IR: contiguous, repeated, gathered, masked."""

from __future__ import annotations

from camshaft.dtypes import DType, i64
from camshaft.emit.llvm import index as llvm_index
from camshaft.emit.llvm.math import table as llvm_math
from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import Rep, array_name, integer, memory_dtype, scalar_type, vector_type
from camshaft.emit.llvm.writer import Writer
from camshaft.lang import ir


class MemoryEmitter(Writer):
    """Emits what touches arrays."""

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

    def pointer(self, array: ir.Array, index: str, inbounds: bool = True) -> str:
        element = scalar_type(memory_dtype(array.dtype))
        how = "inbounds " if inbounds else ""
        return self.line(f"getelementptr {how}{element}, ptr {array_name(array.name)}, i64 {index}")

    def load(self, value: ir.Value) -> Rep:
        array, gather, counted = value.attr
        indices = value.args[:-1] if counted else value.args
        at = self.linear_index(array, tuple(self.reps[i] for i in indices))
        count = self.reps[value.args[-1]] if counted else None
        stored = self.load_stored(value, array, at, gather, count)
        memory, name = self.typed(memory_dtype(array.dtype), stored.n), stored.name
        if array.dtype.is_float and array.dtype != memory.dtype:
            name, memory = memory.bitcast(name, array.dtype), memory.as_dtype(array.dtype)
        return Rep(llvm_math.cast(memory, name, value.dtype), stored.n)

    def load_stored(self, value: ir.Value, array: ir.Array, at: Rep, gather: bool, count: Rep | None) -> Rep:
        if value.width:
            return self.load_vector(array, at, value.width, self.count_mask(count, value.width))
        if at.is_scalar:
            return self.load_vector(array, at, 0, None)
        pattern = at.affine
        if pattern is not None and pattern.coefficient == 1 and pattern.divisor == 1:
            return self.load_vector(array, pattern.base, self.lanes, self.mask)
        if pattern is not None and pattern.coefficient == 1:
            return self.load_repeated(array, pattern.base, pattern.divisor)
        if not gather:
            raise self.fail(value.line, f"lanes of {array.name} are not contiguous; ask for k.gather")
        return self.gather(array, at)

    def count_mask(self, count: Rep | None, n: int) -> str | None:
        """The lanes below `count` (none of them where it is negative)."""
        if count is None:
            return None
        return self.line(f"icmp slt {vector_type(i64, n)} {self.iota(n)}, {self.splat(count.name, i64, n)}")

    def load_vector(self, array: ir.Array, at: Rep, n: int, mask: str | None) -> Rep:
        """n elements from `at` on (0: a scalar); those off the mask are 0."""
        dtype = memory_dtype(array.dtype)
        pointer, typ = self.pointer(array, at.name), vector_type(dtype, n)
        if mask is None:
            return Rep(self.line(f"load {typ}, ptr {pointer}, align {dtype.nbytes}"), n)
        wide = f"<{n} x {scalar_type(dtype)}>"
        name = f"llvm.masked.load.v{n}{self.suffix(dtype)}.p0"
        self.declare(name, f"declare {wide} @{name}(ptr, i32, <{n} x i1>, {wide})")
        arguments = f"ptr {pointer}, i32 {dtype.nbytes}, {self.as_mask(mask, n)}, {wide} zeroinitializer"
        loaded = self.line(f"call {wide} @{name}({arguments})")
        return Rep(loaded if n > 1 else self.line(f"extractelement {wide} {loaded}, i64 0"), n)

    def as_mask(self, mask: str, n: int) -> str:
        """A mask as an operand: one of a single element is a scalar elsewhere."""
        return f"<{n} x i1> {mask if n > 1 else self.line(f'insertelement <1 x i1> poison, i1 {mask}, i64 0')}"

    def suffix(self, dtype: DType) -> str:
        return dtype.name.replace("u", "i")

    def load_repeated(self, array: ir.Array, base: Rep, each: int) -> Rep:
        """lanes // each: fewer elements, each repeated."""
        n, dtype = self.lanes // each, memory_dtype(array.dtype)
        # one element is wanted by every lane, and code under a mask runs only where some lane is active
        mask = self.group_mask(self.mask, n, each) if self.mask is not None and n > 1 else None
        few = self.load_vector(array, base, n, mask)
        if n == 1:
            return Rep(few.name)
        typ = vector_type(dtype, n)
        order = ", ".join(f"i32 {i // each}" for i in range(self.lanes))
        shuffle = f"shufflevector {typ} {few.name}, {typ} poison, <{self.lanes} x i32> <{order}>"
        return Rep(self.line(shuffle), self.lanes)

    def group_mask(self, mask: str, n: int, each: int) -> str:
        """Whether any lane of each group is active; of a ragged end's, the first is where any is."""
        typ = self.mask_type()
        parts = []
        for start in range(1 if self.mask_is_prefix else each):
            order = ", ".join(f"i32 {i * each + start}" for i in range(n))
            parts.append(self.line(f"shufflevector {typ} {mask}, {typ} poison, <{n} x i32> <{order}>"))
        result = parts[0]
        for part in parts[1:]:
            result = self.line(f"or <{n} x i1> {result}, {part}")
        return result

    def all_lanes(self) -> str:
        return self.mask or "splat (i1 true)"

    def pointers(self, array: ir.Array, at: Rep) -> str:
        index = f"{self.iota_type()} {self.widened(at, i64, self.lanes)}"
        element = scalar_type(memory_dtype(array.dtype))
        return self.line(f"getelementptr inbounds {element}, ptr {array_name(array.name)}, {index}")

    def gather(self, array: ir.Array, at: Rep) -> Rep:
        n, dtype = self.lanes, memory_dtype(array.dtype)
        typ = vector_type(dtype, n)
        name = f"llvm.masked.gather.v{n}{self.suffix(dtype)}.v{n}p0"
        self.declare(name, f"declare {typ} @{name}(<{n} x ptr>, i32, <{n} x i1>, {typ})")
        arguments = f"<{n} x ptr> {self.pointers(array, at)}, i32 {dtype.nbytes}, {self.mask_type()} {self.all_lanes()}"
        return Rep(self.line(f"call {typ} @{name}({arguments}, {typ} zeroinitializer)"), n)

    def store(self, item: ir.Store) -> None:
        array, rep = item.array, self.reps[item.value]
        at = self.linear_index(array, tuple(self.reps[i] for i in item.indices))
        n = item.value.width or (self.lanes if self.lanes > 1 and not at.is_scalar else 0)
        if at.is_scalar and not item.value.width and self.width_of((rep,)):
            raise self.fail(item.line, f"every lane stores another value to one element of {array.name}")
        name = self.widened(rep, item.value.dtype, n)
        name = self.stored_form(self.typed(item.value.dtype, n), name, array.dtype)
        if item.value.width:
            mask = self.count_mask(self.reps[item.count] if item.count is not None else None, n)
            self.store_vector(array, at, name, n, mask)
        elif at.is_scalar:
            self.store_vector(array, at, name, 0, None)
        elif at.affine is not None and at.affine.coefficient == 1 and at.affine.divisor == 1:
            if item.streamed and self.may_stream(array, at.affine.base, n):
                self.store_streamed(array, at.affine.base, name, n)
            else:
                self.store_vector(array, at.affine.base, name, n, self.mask)
        elif item.scattered:
            self.scatter(array, at, name)
        else:
            raise self.fail(item.line, f"lanes of {array.name} are not contiguous; ask for k.scatter")

    def stored_form(self, t: Typed, name: str, dtype: DType) -> str:
        """A value as an array of the dtype has it in memory."""
        memory = memory_dtype(dtype)
        if dtype.is_float and dtype != memory:
            return t.as_dtype(dtype).bitcast(llvm_math.cast(t, name, dtype), memory)
        return llvm_math.cast(t, name, memory)

    def store_vector(self, array: ir.Array, at: Rep, value: str, n: int, mask: str | None) -> None:
        dtype = memory_dtype(array.dtype)
        pointer, typ = self.pointer(array, at.name), vector_type(dtype, n)
        if mask is None:
            self.write(f"store {typ} {value}, ptr {pointer}, align {dtype.nbytes}")
            return
        wide = f"<{n} x {scalar_type(dtype)}>"
        if n == 1:
            value = self.line(f"insertelement {wide} poison, {typ} {value}, i64 0")
        if n > 1 and not dtype.is_float and dtype.nbytes < 8 and "avx512f" in self.target.features:
            mask = self.unknown_mask(mask, n)
        name = f"llvm.masked.store.v{n}{self.suffix(dtype)}.p0"
        self.declare(name, f"declare void @{name}({wide}, ptr, i32, <{n} x i1>)")
        arguments = f"{wide} {value}, ptr {pointer}, i32 {dtype.nbytes}, {self.as_mask(mask, n)}"
        self.write(f"call void @{name}({arguments})")

    def unknown_mask(self, mask: str, n: int) -> str:
        """The mask by way of a register, so that LLVM never knows it. To store the first lane alone, of a vector whose elements
        were cut to fewer bits, LLVM 22 stores a whole element from before the cut with AVX-512: 4 bytes for an i8."""
        bits = self.line(f"bitcast <{n} x i1> {mask} to i{n}")
        wide = bits if n == 64 else self.line(f"zext i{n} {bits} to i64")
        held = self.line(f'call i64 asm "", "=r,0"(i64 {wide})')
        back = held if n == 64 else self.line(f"trunc i64 {held} to i{n}")
        return self.line(f"bitcast i{n} {back} to <{n} x i1>")

    def may_stream(self, array: ir.Array, at: Rep, n: int) -> bool:
        """Whether whole cache lines are written, where the array starts at one."""
        nbytes, line = memory_dtype(array.dtype).nbytes, self.target.stream_nbytes
        return line > 0 and self.mask is None and n * nbytes % line == 0 and at.multiple * nbytes % line == 0

    def store_streamed(self, array: ir.Array, at: Rep, value: str, n: int) -> None:
        """Around the caches if the array starts at a cache line, which a caller's need not; pieces of lines take twice as long as
        ordinary stores. What streams orders its stores by a fence before it ends (`fences`)."""
        dtype, line = memory_dtype(array.dtype), self.target.stream_nbytes
        pointer, typ = self.pointer(array, at.name), vector_type(dtype, n)
        start = self.line(f"ptrtoint ptr {array_name(array.name)} to i64")
        aligned = self.line(f"icmp eq i64 {self.line(f'and i64 {start}, {line - 1}')}, 0")
        around, through, done = self.label("around"), self.label("through"), self.label("done")
        self.write(f"br i1 {aligned}, label %{around}, label %{through}")
        self.open(around)
        self.write(f"store {typ} {value}, ptr {pointer}, align {line}, !nontemporal !0")
        self.write(f"br label %{done}")
        self.open(through)
        self.write(f"store {typ} {value}, ptr {pointer}, align {dtype.nbytes}")
        self.write(f"br label %{done}")
        self.open(done)
        self.fences = True

    def scatter(self, array: ir.Array, at: Rep, value: str) -> None:
        n, dtype = self.lanes, memory_dtype(array.dtype)
        typ = vector_type(dtype, n)
        name = f"llvm.masked.scatter.v{n}{self.suffix(dtype)}.v{n}p0"
        self.declare(name, f"declare void @{name}({typ}, <{n} x ptr>, i32, <{n} x i1>)")
        pointers = self.pointers(array, at)
        arguments = f"{typ} {value}, <{n} x ptr> {pointers}, i32 {dtype.nbytes}"
        self.write(f"call void @{name}({arguments}, {self.mask_type()} {self.all_lanes()})")
