"""Packed weights in a kernel: the codes, scales and minima of a block or an element. Their layout is packing.py's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS, PackedFormat
from camshaft.ops.quantized.packed.packing import ROWS, SUPER, packed_format

Index: TypeAlias = Value | int
Load: TypeAlias = Callable[..., Value]
# For more tokens than that codes are prefetched into the second cache, as the core reads too little ahead while it multiplies.
# Q8_0, 2048 x 2048, on a Zen 4 core, by prefetches into the first and the second cache: 1, 2, 4 and 8 tokens take 149, 152, 250
# and 416 us, and 142, 227, 214 and 209.
NEAR_TOKENS = 2


def weight_operands(node: ops.NodeSpec, index: int = 1) -> tuple[ops.Operand, ...]:
    """Returns the operands of input `index`: codes, scales, and the scales' steps or the minima. For a format with neither,
    the third is the scales again, which kernels do not read."""
    form = packed_format(node.inputs[index])
    extra = "steps" if form.is_nested else "minima" if form.has_minima else "scales"
    return ops.read(index, "codes"), ops.read(index, "scales"), ops.read(index, extra)


@dataclass(frozen=True)
class Packed:
    """A kernel's weights: `codes`, `scales` and `extra` (minima, or the steps of nested scales) of a block format. `loaded`: the
    steps of the super-block that a loop is in."""

    k: Tracer
    codes: Array
    scales: Array
    extra: Array
    form: PackedFormat
    loaded: tuple[Value, Value | None] | None = None

    def within(self, load: Load, s: Value) -> Packed:
        """The weights for the blocks of super-block s, whose steps are loaded once."""
        return replace(self, loaded=self.steps(load, s))

    def code_words(self, load: Load, b: Value) -> list[Value]:
        """The block's 8 words of codes, each 4 consecutive k, a byte each; `load(array, *at)` reads array[tile, *at, row]."""
        words = _words(lambda i: load(self.codes, b, i), self.form.bits)
        table = self.form.table
        return words if table is None else [self.k.byte_lookup(word, table) for word in words]

    def prefetch(self, tile: Value, b: Value, words: int, tokens: int = 1) -> None:
        """Prefetches a block's codes, `words` words (of 16 rows) ahead, to multiply `tokens` tokens at a time. The scales'
        stream does not need it."""
        later = b + words // self.form.bits
        for w in range(self.form.bits):
            self.k.prefetch(self.codes, tile, later, w, 0, near=tokens <= NEAR_TOKENS)

    def scale(self, load: Load, b: Value, g: Index) -> tuple[Value, Value | None]:
        """Returns the scale and, if stored, the minimum of group g; `load` as above."""
        form = self.form
        if form.is_exponent:
            return self._power_of_two(load(self.scales, b, g)), None
        if form.is_e4m3:
            return self._half_e4m3(load(self.scales, b, g)), None
        if not form.is_nested:
            return load(self.scales, b, g), load(self.extra, b, g) if form.has_minima else None
        step, low = self.loaded or self.steps(load, b // SUPER)
        scale, minimum = self.whole_scale(load, b, g)
        return scale.to(f32) * step, None if minimum is None or low is None else minimum.to(f32) * low

    def steps(self, load: Load, s: Value) -> tuple[Value, Value | None]:
        """Returns the steps of a super-block's nested scales, and of its minima if it has any."""
        found = [load(self.extra, s, i) for i in range(2 if self.form.has_minima else 1)]
        found = found if self.form.unit == 1.0 else [step * self.form.unit for step in found]
        return found[0], found[1] if self.form.has_minima else None

    def whole_scale(self, load: Load, b: Value, g: Index) -> tuple[Value, Value | None]:
        """Returns the nested scale and, if stored, the minimum of group g, as i32."""
        form = self.form
        if form.is_joint:
            both = load(self.scales, b, g).to(i32)
            return both & 15, both >> 4
        if form.has_minima:
            return load(self.scales, b, 2 * g).to(i32), load(self.scales, b, 2 * g + 1).to(i32)
        return load(self.scales, b, g).to(i32), None

    def _power_of_two(self, e: Value) -> Value:
        """Returns 2^(e - 128) as f32: from its exponent bits, or below 2^-126 from one fraction bit."""
        exponent = e.to(u32)
        small = self.k.minimum(exponent, 1) * 0x00200000 + 0x00200000
        return self.k.bitcast(self.k.select(exponent < 2, small, (exponent - 1) << 23), f32)

    def _half_e4m3(self, scale: Value) -> Value:
        """Returns half the value of an E4M3 byte without a sign: 2^(e - 8) (1 + f / 8), or f 2^-10 where e is 0."""
        byte = scale.to(u32)
        normal = self.k.bitcast((byte << 20) + (119 << 23), f32)
        return self.k.select(byte < 8, (byte & 7).to(i32).to(f32) * 2.0**-10, normal)

    def scale_at(self, row: Value, b: Value, g: Index) -> tuple[Value, Value | None]:
        """Scale and minimum of group g of one row, where row and block may vary by lane."""

        def load(array: Array, *at: Index) -> Value:
            return self.k.gather(array, row // ROWS, *at, row % ROWS)

        return self.scale(load, b, g)

    def code_at(self, row: Value, b: Value, j: Index) -> Value:
        """The code, i32, of k = 32 b + j in a row; all may vary by lane."""

        def field(i: Index, shift: Index, mask: int) -> Value:
            word = self.k.gather(self.codes, row // ROWS, b, i, row % ROWS).to(i32)
            return (word >> (shift if isinstance(shift, int) else shift.to(i32))) & mask

        w, byte = j // 4, j % 4 * 8
        if self.form.bits == 8:
            return field(w, byte, 255)
        code = self._bits_at(field, w, byte)
        if self.form.table is None:
            return code
        return self.k.byte_lookup(code.to(u32), self.form.table).to(i32) & 255

    def _bits_at(self, field: Callable[[Index, Index, int], Value], w: Index, byte: Index) -> Value:
        """The code, or a table's index, in byte `byte` / 8 of code word w, from its bits' `field(word, shift, mask)`."""
        bits = self.form.bits
        first, code = (4, field(w % 4, byte + w // 4 * 4, 15)) if bits >= 4 else (2, field(w // 4, byte + w % 4 * 2, 3))
        if bits - first == 1:
            return code | (field(first, byte + w, 1) << first)
        if bits - first == 2:
            return code | (field(first + w // 4, byte + w % 4 * 2, 3) << first)
        return code


def packed(k: Tracer, codes: Array, scales: Array, extra: Array, block: str) -> Packed:
    """The packed weights of a block format by its name."""
    return Packed(k, codes, scales, extra, PACKED_FORMATS[block])


def _words(word: Callable[[int], Value], bits: int) -> list[Value]:
    if bits == 8:
        return [word(w) for w in range(8)]
    if bits >= 4:
        low = [word(w) for w in range(4)]
        codes, first = [p & 0x0F0F0F0F for p in low] + [(p >> 4) & 0x0F0F0F0F for p in low], 4
    else:
        pairs = [word(w) for w in range(2)]
        codes, first = [moved(pairs[w // 4], w % 4 * 2, 0, 0x03030303) for w in range(8)], 2
    if bits - first == 1:
        plane = word(first)
        return [code | moved(plane, w, first, 0x01010101) for w, code in enumerate(codes)]
    if bits - first == 2:
        planes = [word(first), word(first + 1)]
        return [code | moved(planes[w // 4], w % 4 * 2, first, 0x03030303) for w, code in enumerate(codes)]
    return codes


def moved(word: Value, source: int, target: int, mask: int) -> Value:
    """Moves the bits `mask` << source of every byte to bit `target`, with one shift and one mask."""
    shifted = word >> (source - target) if source > target else word << (target - source) if target > source else word
    return shifted & (mask << target)
