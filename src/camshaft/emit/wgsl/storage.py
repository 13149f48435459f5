"""Arrays in WGSL: declarations, and functions for elements that are packed in words or divided over several bindings.

An array of a native type in one binding is indexed directly. Other arrays have the functions read_NAME and write_NAME.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from camshaft.emit.wgsl.layout import WgslTarget, piece_nbytes, pieces
from camshaft.lang import ir

# 16-bit and 8-bit elements: (the value from a word's bits at `shift`, the element's bits from a value)
_PACKED: dict[str, tuple[str, str]] = {
    "f16": ("unpack2x16float(extractBits(word, shift, 16u)).x", "f16_bits(value)"),
    "bf16": ("bitcast<f32>(extractBits(word, shift, 16u) << 16u)", "bf16_bits(value)"),
    "i8": ("extractBits(bitcast<i32>(word), shift, 8u)", "(bitcast<u32>(value) & 0xffu)"),
    "u8": ("extractBits(word, shift, 8u)", "(value & 0xffu)"),
    "i16": ("extractBits(bitcast<i32>(word), shift, 16u)", "(bitcast<u32>(value) & 0xffffu)"),
    "u16": ("extractBits(word, shift, 16u)", "(value & 0xffffu)"),
    "bool": ("(extractBits(word, shift, 8u) != 0u)", "select(0u, 1u, value)"),
}


@dataclass(frozen=True)
class WgslScratch:
    """Scratch of a workgroup or a thread. Its elements are native values, or atomics if the kernel has atomics on it."""

    array: ir.Array
    name: str
    value: str
    atomic: bool

    @property
    def holds_bits(self) -> bool:
        """Whether its elements are the bits of f32: WGSL has atomics of integers only."""
        return self.atomic and self.value == "f32"

    @property
    def type(self) -> str:
        word = "u32" if self.holds_bits else self.value
        return f"array<{f'atomic<{word}>' if self.atomic else word}, {prod(self.array.shape)}>"

    def element(self, at: str) -> str:
        """The value of an element."""
        if not self.atomic:
            return f"{self.name}[{at}]"
        loaded = f"atomicLoad(&{self.name}[{at}])"
        return f"bitcast<f32>({loaded})" if self.holds_bits else loaded

    def stored_element(self, at: str, value: str) -> str:
        """A statement that stores an element."""
        if not self.atomic:
            return f"{self.name}[{at}] = {value};"
        return f"atomicStore(&{self.name}[{at}], {f'bitcast<u32>({value})' if self.holds_bits else value});"

    def choose(self, index: str, use: Callable[[str], str]) -> list[str]:
        """The statement that `use` makes for the element `index`."""
        return [f"    {use(f'{self.name}[{index}]')}"]


@dataclass(frozen=True)
class WgslArray:
    """An array parameter. `name`: in the text; `value`: its elements as values; `start`: the word with the first element."""

    array: ir.Array
    name: str
    value: str
    start: str
    stored: bool
    atomic: bool
    target: WgslTarget

    @property
    def has_f16(self) -> bool:
        """Whether the elements have WGSL's type f16."""
        return self.array.dtype.name == "f16" and "shader-f16" in self.target.features

    @property
    def is_packed(self) -> bool:
        return self.array.dtype.name in _PACKED and not self.has_f16

    @property
    def is_atomic(self) -> bool:
        """Whether its words are atomics: threads write parts of one word, or the kernel has atomics on it."""
        return self.atomic or (self.stored and self.is_packed)

    @property
    def holds_bits(self) -> bool:
        """Whether its elements are the bits of f32: WGSL has atomics of integers only."""
        return self.atomic and self.value == "f32"

    @property
    def read_only(self) -> bool:
        return self.array.name in self.target.read_only and not self.stored and not self.atomic

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        return pieces(prod(self.array.shape) * self.array.dtype.nbytes, self.target)

    @property
    def names(self) -> list[str]:
        """The names of its bindings."""
        return [self.name] if len(self.pieces) == 1 else [f"{self.name}_{i}" for i in range(len(self.pieces))]

    @property
    def is_direct(self) -> bool:
        """Whether name[start + i] is element i."""
        return len(self.pieces) == 1 and not self.is_packed

    def declarations(self, first_binding: int) -> list[str]:
        """The bindings' variables."""
        word = "f16" if self.has_f16 else "u32" if self.is_packed or self.holds_bits else self.value
        element = f"atomic<{word}>" if self.is_atomic else word
        access = "read" if self.read_only else "read_write"
        return [
            f"@group(0) @binding({first_binding + i}) var<storage, {access}> {name}: array<{element}>;"
            for i, name in enumerate(self.names)
        ]

    def element(self, variable: str) -> str:
        """The value of a native element in `variable`."""
        if self.is_atomic:
            return f"bitcast<f32>(atomicLoad(&{variable}))" if self.holds_bits else f"atomicLoad(&{variable})"
        return f"f32({variable})" if self.has_f16 else variable

    def stored_element(self, variable: str, value: str) -> str:
        """A statement that stores a native element in `variable`."""
        if self.is_atomic:
            return f"atomicStore(&{variable}, {f'bitcast<u32>({value})' if self.holds_bits else value});"
        return f"{variable} = f16({value});" if self.has_f16 else f"{variable} = {value};"

    # --- functions ---------------------------------------------------------------------------------------------------
    def read_function(self) -> str:
        """read_NAME(i): element i as a value."""
        lines = [f"fn read_{self.name}(i: i32) -> {self.value} {{", f"    let at = u32(i + {self.start});"]
        if self.is_packed:
            per = 4 // self.array.dtype.nbytes
            lines += [f"    let shift = (at & {per - 1}u) * {self.array.dtype.bits}u;"]
            lines += self._word(f"at >> {per.bit_length() - 1}u")
            lines += [f"    return {_PACKED[self.array.dtype.name][0]};"]
        else:
            lines += self.choose("at", lambda variable: f"return {self.element(variable)};")
        return "\n".join([*lines, "}"])

    def _word(self, index: str) -> list[str]:
        lines = ["    var word: u32;"] if len(self.pieces) > 1 else []
        first = "word" if lines else "let word"
        return lines + self.choose(index, lambda variable: f"{first} = {self.element(variable)};")

    def write_function(self) -> str:
        """write_NAME(i, value)."""
        lines = [
            f"fn write_{self.name}(i: i32, value: {self.value}) {{",
            f"    let at = u32(i + {self.start});",
        ]
        if not self.is_packed:
            return "\n".join([*lines, *self.choose("at", lambda variable: self.stored_element(variable, "value")), "}"])
        bits = self.array.dtype.bits
        per, mask = 32 // bits, f"0x{(1 << bits) - 1:x}u"
        lines += [
            f"    let shift = (at & {per - 1}u) * {bits}u;",
            f"    let bits = {_PACKED[self.array.dtype.name][1]} << shift;",
        ]
        # other threads own the word's other elements
        lines += self.choose(
            f"at >> {per.bit_length() - 1}u",
            lambda variable: f"atomicAnd(&{variable}, ~({mask} << shift)); atomicOr(&{variable}, bits);",
        )
        return "\n".join([*lines, "}"])

    def choose(self, index: str, use: Callable[[str], str]) -> list[str]:
        """Statements on the element or word `index`: a switch over the bindings if there are several."""
        if len(self.pieces) == 1:
            return [f"    {use(f'{self.name}[{index}]')}"]
        count = piece_nbytes(self.target) // (2 if self.has_f16 else 4)
        shift, mask = count.bit_length() - 1, count - 1
        lines = [f"    let index = {index};", f"    switch (index >> {shift}u) {{"]
        for i, name in enumerate(self.names):
            label = f"case {i}u" if i < len(self.names) - 1 else "default"
            lines.append(f"        {label}: {{ {use(f'{name}[index & {mask}u]')} }}")
        return [*lines, "    }"]

    @property
    def helper(self) -> str | None:
        """The helper function that its writes call."""
        return f"{self.array.dtype.name}_bits" if self.is_packed and self.array.dtype.is_float else None
