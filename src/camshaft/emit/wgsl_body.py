"""WgslEmitter: the body of a kernel in WGSL, from SIMT form: literals, conversions, memory, collectives. Used by emit/wgsl.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from camshaft.dtypes import DType, f32, i64
from camshaft.emit.c_family import CFamilyEmitter, Dialect
from camshaft.emit.c_family_text import ATOM, LOOSE, Text, add, call, fill
from camshaft.emit.wgsl_functions import FUNCTIONS, RESERVED
from camshaft.emit.wgsl_module import SPECIAL_WORDS, WgslTarget
from camshaft.emit.wgsl_storage import WgslArray
from camshaft.lang import ir
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import COMBINERS
from camshaft.lang.simt import SimtKernel
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
_COLLECTIVES = frozenset({"reduce", "broadcast"})


class WgslEmitter(CFamilyEmitter):
    """`storage` has each array parameter as the text sees it; `exchange` the arrays through which lanes meet, by type."""

    dialect = WGSL

    def __init__(self, kernel: SimtKernel, target: WgslTarget) -> None:
        super().__init__(kernel, (*kernel.shared, *kernel.private))
        self.simt, self.target = kernel, target
        stored = {item.array for item in ir.walk(kernel.body) if isinstance(item, ir.Store)}
        self.starts = {a: self.names.new(f"{self.array_names[a]}_start") for a in kernel.arrays}
        self.storage = {a: self._storage(a, i, a in stored) for i, a in enumerate(kernel.arrays)}
        self.exchange: dict[str, str] = {}
        self.collectives: dict[str, str] = {}
        self.accessors: dict[str, str] = {}

    def _storage(self, array: ir.Array, index: int, stored: bool) -> WgslArray:
        cell = ELEMENTS["wgsl"][array.dtype.name]
        if isinstance(cell, Absent):
            raise self.fail(0, f"{array.name}: {cell.reason}")
        start = fixed_word(len(SPECIAL_WORDS) + len(self.simt.scalars) + index)
        name, value = self.array_names[array], self.type_name(ir.arithmetic_dtype(array.dtype))
        return WgslArray(array, name, value, start, stored, False, self.target)

    # --- literals and conversions ------------------------------------------------------------------------------------
    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        if dtype.kind == "b":
            return Text("true" if value else "false")
        if dtype.is_integer:
            limit = i64 if dtype.kind == "i" else dtype
            number = int(value)
            if limit is i64 and not -(1 << 31) <= number < 1 << 31:
                raise self.fail(0, f"the number {number} passes the 32 bits of WGSL's integers")
            suffix = "u" if dtype.kind == "u" else ""
            return Text(f"{number}{suffix}", ATOM if number >= 0 else LOOSE)
        exact = np.float32(value)
        if np.isnan(exact):
            return call(self.use("not_a_number"))
        if np.isinf(exact):
            plus = call(self.use("infinity"))
            return plus if exact > 0 else fill("-{0}", (plus,))
        text = str(exact)
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
        if array not in self.storage:
            return Text(f"{self.array_names[array]}[{at.code}]")
        storage = self.storage[array]
        if storage.is_direct:
            place = add(Text(self.starts[array]), at)
            return Text(storage.element(f"{storage.name}[{place.code}]"))
        return call(self.accessor(f"read_{storage.name}", storage.read_function, storage), at)

    def write(self, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
        if array not in self.storage:
            held = self.cut(value, ir.arithmetic_dtype(array.dtype), array.dtype)
            self.write_line(f"{self.array_names[array]}[{at.code}] = {held.code};", item.line)
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
            for helper in storage.helpers():
                self.use(helper)
        return name

    # --- collectives -------------------------------------------------------------------------------------------------
    def _is_inline(self, value: ir.Value, text: Text) -> bool:
        return value.op not in _COLLECTIVES and super()._is_inline(value, text)

    def through(self, dtype: DType) -> str:
        """The workgroup array by which lanes exchange values of a dtype."""
        held = self.type_name(dtype)
        if held not in self.exchange:
            self.exchange[held] = self.names.new(f"exchange_{held}", everywhere=True)
        return self.exchange[held]

    def value_reduce(self, value: ir.Value) -> Text:
        """Lanes 0..n-1 by halving, the first half with the second; each thread gets the result."""
        kind, n = value.attr
        held, array, operand = self.type_name(value.dtype), self.through(value.dtype), self.operand(value.args[0])
        self.flush()
        name = f"reduce_{kind}_{held}_{n}"
        pair = ir.Value(COMBINERS[kind], value.dtype, (value, value), line=value.line)
        both = self.lowered(pair.op, pair, (Text(f"{array}[lane]"), Text(f"{array}[lane + half]")))
        self.collectives[name] = f"""fn {name}(x: {held}, lane: i32) -> {held} {{
    {array}[lane] = x;
    for (var half = {n // 2}; half > 0; half /= 2) {{
        workgroupBarrier();
        if (lane < half) {{ {array}[lane] = {both.code}; }}
    }}
    return workgroupUniformLoad(&{array}[0]);
}}"""
        return call(name, operand, Text("lane"))

    def value_broadcast(self, value: ir.Value) -> Text:
        """Lane i's value for each thread."""
        held, array, operand = self.type_name(value.dtype), self.through(value.dtype), self.operand(value.args[0])
        self.flush()
        name = f"broadcast_{held}"
        self.collectives[name] = f"""fn {name}(x: {held}, from_lane: i32, lane: i32) -> {held} {{
    if (lane == from_lane) {{ {array}[0] = x; }}
    return workgroupUniformLoad(&{array}[0]);
}}"""
        return call(name, operand, Text(str(value.attr)), Text("lane"))


def fixed_word(index: int) -> str:
    """A word of binding 1."""
    return f"fixed[{index // 4}].{'xyzw'[index % 4]}"
