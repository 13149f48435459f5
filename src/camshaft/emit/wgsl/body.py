"""WgslEmitter: the body of a kernel in WGSL, from SIMT form: literals, conversions, memory, collectives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from camshaft.dtypes import DType, boolean, f32, i64, u32
from camshaft.emit.c_family.emitter import CFamilyEmitter, Dialect
from camshaft.emit.c_family.text import ATOM, LOOSE, Text, add, call, fill
from camshaft.emit.wgsl import lanes as atomics
from camshaft.emit.wgsl import lanes as wgsl_lanes
from camshaft.emit.wgsl.functions import FUNCTIONS, RESERVED
from camshaft.emit.wgsl.layout import SPECIAL_WORDS, WgslTarget
from camshaft.emit.wgsl.storage import WgslArray, WgslScratch
from camshaft.emit.wgsl.uniform import Doubt, below_half
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import COMBINERS, identity
from camshaft.lang.simt.form import SimtKernel
from camshaft.lang.storage import ELEMENTS

WGSL = Dialect(
    column="wgsl",
    constant="let {name} = {value};",
    variable="var {name}: {type} = {value};",
    loop="for (var {name} = {start}; {name} < {stop}; {name} += {step}) {{",
    barrier=("workgroupBarrier();", "storageBarrier();"),
    reserved=RESERVED,
    functions=FUNCTIONS,
)
# Dtypes that others stand for in names of helpers.
_HELD_AS = {"i64": "i32", "f16": "f32", "bf16": "f32"}
# Integers narrower than a word: a value of theirs is a word that was cut to their bits.
_CUT = {"i8": "extractBits({0}, 0u, 8u)", "i16": "extractBits({0}, 0u, 16u)", "u8": "{0} & 255u", "u16": "{0} & 65535u"}

# The ends of i64 (what accumulators of indexes start at) are those of i32 here.
_EXTREMES = {-(1 << 63): -(1 << 31), (1 << 63) - 1: (1 << 31) - 1}


class WgslEmitter(CFamilyEmitter):
    """`storage` has each array parameter as the text sees it; `exchange` the arrays through which lanes meet, with their
    sizes, by type."""

    dialect = WGSL

    def __init__(self, kernel: SimtKernel, target: WgslTarget) -> None:
        super().__init__(kernel, (*kernel.shared, *kernel.private))
        self.simt, self.target = kernel, target
        stored = {item.array for item in ir.walk(kernel.body) if isinstance(item, ir.Store)}
        atomic = {item.attr[0] for item in ir.walk(kernel.body) if isinstance(item, ir.Value) and item.op == "atomic"}
        self.starts = {a: self.names.new(f"{self.array_names[a]}_start") for a in kernel.arrays}
        self.storage = {a: self._storage(a, i, a in stored, a in atomic) for i, a in enumerate(kernel.arrays)}
        self.scratch = {a: self._scratch(a, a in atomic) for a in (*kernel.shared, *kernel.private)}
        self.one_subgroup = "subgroups" in target.features and 1 < kernel.lanes <= target.subgroup_size
        read_only = frozenset(a for a, s in self.storage.items() if s.read_only)
        self.doubt = Doubt(kernel.body, read_only, self.one_subgroup)
        self.exchange: dict[str, tuple[str, int]] = {}
        self.collectives: dict[str, str] = {}
        self.accessors: dict[str, str] = {}

    def all_functions(self) -> list[str]:
        """The text of every function that the body calls."""
        return [*self.helper_texts(), *self.accessors.values(), *self.collectives.values()]

    def _storage(self, array: ir.Array, index: int, stored: bool, atomic: bool) -> WgslArray:
        cell = ELEMENTS["wgsl"][array.dtype.name]
        if isinstance(cell, Absent):
            raise self.fail(0, f"{array.name}: {cell.reason}")
        start = fixed_word(len(SPECIAL_WORDS) + len(self.simt.scalars) + index)
        name, value = self.array_names[array], self.type_name(ir.arithmetic_dtype(array.dtype))
        return WgslArray(array, name, value, start, stored, atomic, self.target)

    def _scratch(self, array: ir.Array, atomic: bool) -> WgslScratch:
        value = self.type_name(ir.arithmetic_dtype(array.dtype))
        return WgslScratch(array, self.array_names[array], value, atomic)

    # --- literals and conversions ------------------------------------------------------------------------------------
    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        if dtype.kind == "b":
            return Text("true" if value else "false")
        if dtype.is_integer:
            limit = i64 if dtype.kind == "i" else dtype
            number = _EXTREMES.get(int(value), int(value))
            if limit is i64 and not -(1 << 31) <= number < 1 << 31:
                raise self.fail(0, f"the number {number} passes the 32 bits of WGSL's integers")
            if dtype.kind == "u":
                return Text(f"{number}u" if number < 1 << 16 else f"0x{number:x}u")
            return Text(str(number), ATOM if number >= 0 else LOOSE)
        exact = np.float32(value)
        if np.isnan(exact):
            return call(self.use("not_a_number"))
        if np.isinf(exact):
            plus = call(self.use("infinity"))
            return plus if exact > 0 else fill("-{0}", (plus,))
        # the shortest spelling of the greatest f32 is above it, which a compiler may refuse
        text = str(exact) if abs(exact) < 3.4e38 else repr(float(exact))
        return Text(text, LOOSE if text.startswith("-") else ATOM)

    def helper_name(self, name: str, value: ir.Value) -> str:
        if name == "dot4":
            return "dot4_packed_i32" if "packed-dot" in self.target.features else "dot4_i32"
        source = value.args[1 if name == "select" else 0].dtype.name
        held = _HELD_AS.get(source, source)
        return f"cast_{held}_{_HELD_AS.get(value.dtype.name, value.dtype.name)}" if name == "cast" else f"{name}_{held}"

    def lowered(self, op: str, value: ir.Value, operands: Sequence[Text]) -> Text:
        text = super().lowered(op, value, operands)
        return Text(re.sub(r"\bu32\((\d+)\)", r"\1u", text.code), text.level)

    def cast(self, value: ir.Value, operand: Text) -> Text:
        source, to = value.args[0].dtype, value.dtype
        if to.kind == "b":
            zero = self.literal(0, f32 if source.is_float else source)
            unequal = "!({0} == {1})" if source.is_float else "{0} != {1}"
            return operand if source.kind == "b" else fill(unequal, (operand, zero))
        if (source, to) == (u32, i64) and not below_half(value.args[0]):
            raise self.fail(
                value.line, "a u32 that may be 2^31 or more becomes an index, which WGSL holds in an i32; mask it"
            )
        if source.is_float and to.is_integer:
            return call(self.use(self.helper_name("cast", value)), operand)
        held = self.type_name(to)
        moved = operand if self.type_name(source) == held else fill(f"{held}({{0}})", (operand,))
        return self.cut(moved, source, to)

    def cut(self, value: Text, source: DType, to: DType) -> Text:
        """A value of the type that holds `to`, made one that `to` has: rounded to 16 bits, or cut to its bits."""
        if source == to or source.kind == "b":
            return value
        if to.name in ("f16", "bf16"):
            return call(self.use(f"cast_f32_{to.name}"), value)
        return fill(_CUT[to.name], (value,)) if to.name in _CUT else value

    # --- memory ------------------------------------------------------------------------------------------------------
    def read(self, array: ir.Array, at: Text, value: ir.Value) -> Text:
        if array in self.scratch:
            return Text(self.scratch[array].element(at.code))
        storage = self.storage[array]
        if storage.is_direct:
            place = add(Text(self.starts[array]), at)
            return Text(storage.element(f"{storage.name}[{place.code}]"))
        return call(self.accessor(f"read_{storage.name}", storage.read_function, storage), at)

    def write(self, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
        if array in self.scratch:
            held = self.cut(value, ir.arithmetic_dtype(array.dtype), array.dtype)
            self.write_line(self.scratch[array].stored_element(at.code, held.code), item.line)
            return
        storage = self.storage[array]
        if storage.is_direct:
            place = add(Text(self.starts[array]), at)
            self.write_line(storage.stored_element(f"{storage.name}[{place.code}]", value.code), item.line)
        else:
            name = self.accessor(f"write_{storage.name}", storage.write_function, storage)
            self.write_line(f"{call(name, at, value).code};", item.line)

    def accessor(self, name: str, function: Callable[[], str], storage: WgslArray) -> str:
        """Notes a function of an array's elements."""
        if name not in self.accessors:
            self.accessors[name] = function()
            if name.startswith("write_") and storage.helper is not None:
                self.use(storage.helper)
        return name

    def atomic(self, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
        array, kind = value.attr
        name, held = f"atomic_{kind}_{self.array_names[array]}", self.type_name(value.dtype)
        place: WgslArray | WgslScratch = self.storage[array] if array in self.storage else self.scratch[array]
        index = f"i + {place.start}" if isinstance(place, WgslArray) else "i"
        self.accessors[name] = atomics.function(name, ATOMICS[kind], array.dtype.kind, held, index, place.choose)
        return call(name, at, *operands)

    # --- flow that threads meet in -----------------------------------------------------------------------------------
    def bound(self, item: ir.Range | ir.Lanes, value: ir.Value) -> Text:
        text = super().bound(item, value)
        if not isinstance(item, ir.Range) or not self.doubt.wants_proof(item, value):
            return text
        name = self.names.new("start" if value is item.start else "stop")
        same = self.broadcast(text, value.dtype, 0)
        self.write_line(self.dialect.constant.format(name=name, type="", value=same.code), item.line)
        return Text(name)

    def condition(self, item: ir.When) -> Text:
        text = super().condition(item)
        return self.broadcast(text, boolean, 0) if self.doubt.wants_proof(item, item.condition) else text

    # --- collectives -------------------------------------------------------------------------------------------------
    def meet(self, value: ir.Value, name: str, text: Callable[[str, str], str]) -> Text:
        """Calls a function of emit/wgsl/lanes.py on the value's operands; `text` makes it of its name and type."""
        operands, held = self.operands(value.args), self.type_name(value.dtype)
        self.flush()
        full = f"{name}_{held}"
        self.collectives[full] = text(full, held)
        return call(full, *operands, Text("lane"))

    def through(self, dtype: DType, n: int) -> str:
        """The workgroup array, of at least n elements, by which lanes exchange values of a dtype."""
        held = self.type_name(dtype)
        if held not in self.exchange:
            self.exchange[held] = (self.names.new(f"exchange_{held}", everywhere=True), n)
        name, size = self.exchange[held]
        self.exchange[held] = (name, max(size, n))
        return name

    def combined(self, kind: str, value: ir.Value, a: str, b: str) -> str:
        """The text of a combiner."""
        pair = ir.Value(COMBINERS[kind], value.dtype, (value, value), line=value.line)
        return self.lowered(pair.op, pair, (Text(a), Text(b))).code

    def value_reduce(self, value: ir.Value) -> Text:
        """Lanes 0..n-1 by halving, the first half with the second; each thread gets the result."""
        kind, n = value.attr
        lanes = self.simt.lanes
        if self.one_subgroup:
            both = self.combined(kind, value, "total", "theirs")
            return self.meet(value, f"reduce_{kind}_{n}", lambda f, t: wgsl_lanes.subgroup_reduce(f, t, n, lanes, both))
        array = self.through(value.dtype, lanes)
        both = self.combined(kind, value, f"{array}[lane]", f"{array}[lane + half]")
        return self.meet(value, f"reduce_{kind}_{n}", lambda f, t: wgsl_lanes.reduce(f, t, array, n, both))

    def value_broadcast(self, value: ir.Value) -> Text:
        """Lane i's value for each thread."""
        return self.broadcast(self.operand(value.args[0]), value.dtype, value.attr)

    def broadcast(self, value: Text, dtype: DType, lane: int) -> Text:
        """One lane's value of an expression, for all."""
        self.flush()
        name = f"broadcast_{self.type_name(dtype)}"
        self.collectives[name] = wgsl_lanes.broadcast(name, self.type_name(dtype), self.through(dtype, 1))
        return call(name, value, Text(str(lane)), Text("lane"))

    def value_shuffle(self, value: ir.Value) -> Text:
        """The value of the lane that each thread names."""
        array = self.through(value.dtype, self.simt.lanes)
        return self.meet(value, "shuffle", lambda f, t: wgsl_lanes.shuffle(f, t, array))

    def value_scan(self, value: ir.Value) -> Text:
        """Each lane's value with those of the lanes below it."""
        kind, exclusive = value.attr
        start = self.literal(identity(kind, value.dtype.numpy), value.dtype).code if exclusive else None
        both = self.combined(kind, value, "below", "total")
        name = f"scan_{kind}_exclusive" if exclusive else f"scan_{kind}"
        array, lanes = self.through(value.dtype, self.simt.lanes), self.simt.lanes
        return self.meet(value, name, lambda f, t: wgsl_lanes.scan(f, t, array, lanes, both, start))


def fixed_word(index: int) -> str:
    """A word of binding 1."""
    return f"fixed[{index // 4}].{'xyzw'[index % 4]}"
