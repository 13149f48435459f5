"""Tiles on the matrix units of CPUs: AMX's 16 x 16 tiles and NEON's 2 x 2 products.

LLVM configures AMX's tiles itself: it takes their shapes from the calls, and keeps vectors that are only cast to tiles and back
in tile registers (the pass X86LowerAMXType of its code generation). Both units multiply a word of a row
with a word of a column, four bytes (a's signed) or two bf16. NEON takes two words a time, so a product is 2 x 8 bytes by 8 x 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from camshaft.dtypes import i32
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.control import counted_loop
from camshaft.emit.llvm.memory import pointer
from camshaft.emit.llvm.values import Rep, integer
from camshaft.emit.target import CpuTarget
from camshaft.emit.tile_spread import products_by_tile
from camshaft.lang import ir

# Words of a deeper product are a loop.
MOST_UNROLLED = 64
Slots = list[list[str]]


@dataclass(frozen=True)
class Unit:
    """A matrix unit: the features it needs by a tile's dtype, its piece (rows, columns, words) and `typ` of a piece's sums.

    `zero`: a piece of zeros; `step`: all pieces `words` deep from word p on; `put`: the tile's rows to memory at a pointer.
    """

    features: dict[str, frozenset[str]]
    piece: tuple[int, int, int]
    registers: int
    needed: Callable[[int, int, int], int]
    typ: str
    zero: Callable[[Context, ir.Tile], str]
    step: Callable[[Context, ir.TileMma, Slots, Rep, int], None]
    put: Callable[[Context, ir.TileStore, Slots, str], None]

    def grid(self, tile: ir.Tile) -> tuple[int, int]:
        """Pieces down and across."""
        return -(-tile.rows // self.piece[0]), -(-tile.columns // self.piece[1])

    def takes(self, tile: ir.Tile) -> bool:
        """Whether it cuts into equal pieces."""
        sides = zip((tile.rows, tile.columns), self.piece, strict=False)
        return all(side <= most or side % most == 0 for side, most in sides)

    def wanted(self, tile: ir.Tile, products: list[ir.TileMma]) -> int:
        """Registers for a tile's sums and its operands, which of AMX's have one shape each in all of a kernel."""
        deep = self.piece[2]
        shapes = {min(deep, item.depth - p) for item in products for p in range(0, item.depth, deep)}
        return self.needed(*self.grid(tile), len(shapes))

    def typed(self, tile: ir.Tile) -> str:
        """LLVM's type of a piece."""
        return self.typ.format("i32" if tile.dtype == i32 else "float")


def unit_of(target: CpuTarget, tile: ir.Tile) -> Unit | None:
    """The target's unit for a tile's words, or None."""
    if not tile.is_words:
        return None
    there = (u for u in UNITS if u.features[tile.dtype.name] <= target.features)
    return next((u for u in there if u.takes(tile)), None)


def native_tiles(kernel: ir.KernelIR, target: CpuTarget) -> frozenset[ir.Tile]:
    """The kernel's tiles that become matrix instructions: one after the other as long as all fit the unit's registers.

    LLVM ends the process where AMX's do not suffice.
    """
    found, taken = set(), 0
    for tile, products in products_by_tile(kernel).items():
        unit = unit_of(target, tile)
        if unit is not None and taken + unit.wanted(tile, products) <= unit.registers:
            taken += unit.wanted(tile, products)
            found.add(tile)
    return frozenset(found)


# --- statements ------------------------------------------------------------------------------------------------------


def new(ctx: Context, item: ir.TileNew) -> None:
    """A variable a piece, zero."""
    unit = _unit(ctx, item.tile)
    (down, across), typ = unit.grid(item.tile), unit.typed(item.tile)
    ctx.tiles[item.tile] = slots = [[ctx.slot("tile", typ, ", align 64") for _ in range(across)] for _ in range(down)]
    zero = unit.zero(ctx, item.tile)
    for _, _, slot in _places(slots):
        ctx.write(f"store {typ} {zero}, ptr {slot}")


def mma(ctx: Context, item: ir.TileMma) -> None:
    """Unrolled where it is not deep; else a loop of whole steps, and what is left."""
    unit, slots = _unit(ctx, item.tile), ctx.tiles[item.tile]
    deep, whole = unit.piece[2], 0
    if item.depth > MOST_UNROLLED:
        whole = item.depth // deep * deep
        counted_loop(ctx, "0", str(whole), deep, lambda p: unit.step(ctx, item, slots, Rep(p, multiple=deep), deep))
    for p in range(whole, item.depth, deep):
        unit.step(ctx, item, slots, integer(p), min(deep, item.depth - p))


def store(ctx: Context, item: ir.TileStore) -> None:
    base = index.linear(ctx, item.array, item.indices)
    _unit(ctx, item.tile).put(ctx, item, ctx.tiles[item.tile], pointer(ctx, item.array, base.name))


def _unit(ctx: Context, tile: ir.Tile) -> Unit:
    found = unit_of(ctx.target, tile)
    assert found is not None
    return found


def _start(ctx: Context, array: ir.Array, at: tuple[ir.Value, ...], more: Rep, step: int) -> str:
    """The address of array[at], `more` times `step` elements on."""
    start = pointer(ctx, array, index.linear(ctx, array, at).name)
    return _on(ctx, start, ctx.line(f"mul i64 {more.name}, {step}"))


def _on(ctx: Context, pointer: str, words: int | str) -> str:
    """The address so many words of 4 bytes on."""
    return pointer if words == 0 else ctx.line(f"getelementptr inbounds i32, ptr {pointer}, i64 {words}")


# --- AMX -------------------------------------------------------------------------------------------------------------
def _amx_sides(tile: ir.Tile) -> tuple[int, int]:
    """Rows and bytes of a row of each piece: all pieces of a tile are alike."""
    return min(tile.rows, 16), 4 * min(tile.columns, 16)


def _amx_tile(ctx: Context, call: str, *types: str) -> str:
    """A call that gives a tile: `NAME(arguments)`."""
    name = f"llvm.x86.{call.split('(')[0]}"
    ctx.declare(name, f"declare x86_amx @{name}({', '.join(types)})")
    return ctx.line(f"call x86_amx @llvm.x86.{call}")


def _amx_vector(tile: ir.Tile) -> tuple[str, str]:
    """LLVM's type of a tile's elements, and the suffix of its casts."""
    return ("<256 x i32>", "v256i32") if tile.dtype == i32 else ("<256 x float>", "v256f32")


def _as_vector(ctx: Context, tile: ir.Tile, amx: str) -> str:
    typ, suffix = _amx_vector(tile)
    name = f"llvm.x86.cast.tile.to.vector.{suffix}"
    ctx.declare(name, f"declare {typ} @{name}(x86_amx)")
    return ctx.line(f"call {typ} @{name}(x86_amx {amx})")


def _as_tile(ctx: Context, tile: ir.Tile, slot: str) -> str:
    typ, suffix = _amx_vector(tile)
    vector = ctx.line(f"load {typ}, ptr {slot}")
    return _amx_tile(ctx, f"cast.vector.to.tile.{suffix}({typ} {vector})", typ)


def _amx_zero(ctx: Context, tile: ir.Tile) -> str:
    rows, nbytes = _amx_sides(tile)
    return _as_vector(ctx, tile, _amx_tile(ctx, f"tilezero.internal(i16 {rows}, i16 {nbytes})", "i16", "i16"))


def _amx_load(ctx: Context, rows: int, nbytes: int, pointer: str, stride: int) -> str:
    given = f"i16 {rows}, i16 {nbytes}, ptr {pointer}, i64 {4 * stride}"
    return _amx_tile(ctx, f"tileloadd64.internal({given})", "i16", "i16", "ptr", "i64")


def _amx_step(ctx: Context, item: ir.TileMma, slots: Slots, p: Rep, words: int) -> None:
    """Loads each operand's tiles once, and multiplies all pairs."""
    tile, (rows, nbytes) = item.tile, _amx_sides(item.tile)
    a_stride, b_stride = item.a.strides[-2], item.b.strides[-2]
    a_start, b_start = _start(ctx, item.a, item.a_at, p, 1), _start(ctx, item.b, item.b_at, p, b_stride)
    left = [
        _amx_load(ctx, rows, 4 * words, _on(ctx, a_start, i * rows * a_stride), a_stride) for i in range(len(slots))
    ]
    right = [_amx_load(ctx, words, nbytes, _on(ctx, b_start, j * nbytes // 4), b_stride) for j in range(len(slots[0]))]
    name = "tdpbsud" if tile.dtype == i32 else "tdpbf16ps"
    for i, j, slot in _places(slots):
        given = f"i16 {rows}, i16 {nbytes}, i16 {4 * words}, x86_amx {_as_tile(ctx, tile, slot)}"
        call = f"{name}.internal({given}, x86_amx {left[i]}, x86_amx {right[j]})"
        done = _as_vector(ctx, tile, _amx_tile(ctx, call, *["i16"] * 3, *["x86_amx"] * 3))
        ctx.write(f"store {_amx_vector(tile)[0]} {done}, ptr {slot}")


def _places(slots: Slots) -> Iterator[tuple[int, int, str]]:
    return ((i, j, slot) for i, line in enumerate(slots) for j, slot in enumerate(line))


def _amx_put(ctx: Context, item: ir.TileStore, slots: Slots, start: str) -> None:
    (rows, nbytes), stride = _amx_sides(item.tile), item.array.strides[-2]
    name = "llvm.x86.tilestored64.internal"
    ctx.declare(name, f"declare void @{name}(i16, i16, ptr, i64, x86_amx)")
    for i, j, slot in _places(slots):
        at = _on(ctx, start, i * rows * stride + j * nbytes // 4)
        amx = _as_tile(ctx, item.tile, slot)
        ctx.write(f"call void @{name}(i16 {rows}, i16 {nbytes}, ptr {at}, i64 {4 * stride}, x86_amx {amx})")


# --- NEON ------------------------------------------------------------------------------------------------------------


def _neon_step(ctx: Context, item: ir.TileMma, slots: Slots, p: Rep, words: int) -> None:
    """Two words deep: pairs of rows, of 8 bytes each, by pairs of columns, whose words are zipped together."""
    tile = item.tile
    octets, sums = ("<16 x i8>", "<4 x i32>") if tile.dtype == i32 else ("<8 x bfloat>", "<4 x float>")
    name = "llvm.aarch64.neon.usmmla.v4i32.v16i8" if tile.dtype == i32 else "llvm.aarch64.neon.bfmmla"
    ctx.declare(name, f"declare {sums} @{name}({sums}, {octets}, {octets})")
    a_start, b_start = _start(ctx, item.a, item.a_at, p, 1), _start(ctx, item.b, item.b_at, p, item.b.strides[-2])
    left = [_pair_of_rows(ctx, a_start, 2 * i, item.a.strides[-2], octets) for i in range(len(slots))]
    right = [
        q
        for j in range(0, len(slots[0]), 2)
        for q in _pairs_of_columns(ctx, b_start, 2 * j, item.b.strides[-2], octets)
    ]
    for i, j, slot in _places(slots):
        before = ctx.line(f"load {sums}, ptr {slot}")
        done = ctx.line(f"call {sums} @{name}({sums} {before}, {octets} {right[j]}, {octets} {left[i]})")
        ctx.write(f"store {sums} {done}, ptr {slot}")


def _pair_of_rows(ctx: Context, start: str, row: int, stride: int, typ: str) -> str:
    pair = "poison"
    for n in range(2):
        words = ctx.line(f"load i64, ptr {_on(ctx, start, (row + n) * stride)}, align 4")
        pair = ctx.line(f"insertelement <2 x i64> {pair}, i64 {words}, i64 {n}")
    return ctx.line(f"bitcast <2 x i64> {pair} to {typ}")


def _pairs_of_columns(ctx: Context, start: str, column: int, stride: int, typ: str) -> list[str]:
    rows = [ctx.line(f"load <4 x i32>, ptr {_on(ctx, start, n * stride + column)}, align 4") for n in range(2)]
    return [
        ctx.line(f"bitcast <4 x i32> {_shuffled(ctx, '<4 x i32>', rows, order)} to {typ}")
        for order in ((0, 4, 1, 5), (2, 6, 3, 7))
    ]


def _shuffled(ctx: Context, typ: str, pair: list[str], order: tuple[int, ...]) -> str:
    indices = ", ".join(f"i32 {i}" for i in order)
    return ctx.line(f"shufflevector {typ} {pair[0]}, {typ} {pair[1]}, <4 x i32> <{indices}>")


def _neon_put(ctx: Context, item: ir.TileStore, slots: Slots, start: str) -> None:
    """A piece holds (column, row): of two of them the even sums are one row's, the odd ones the next one's."""
    typ = "<4 x i32>" if item.tile.dtype == i32 else "<4 x float>"
    for i, line in enumerate(slots):
        for j in range(0, len(line), 2):
            pair = [ctx.line(f"load {typ}, ptr {slot}") for slot in line[j : j + 2]]
            for n in range(2):
                row = _shuffled(ctx, typ, pair, (n, n + 2, n + 4, n + 6))
                at = _on(ctx, start, (2 * i + n) * item.array.strides[-2] + 2 * j)
                ctx.write(f"store {typ} {row}, ptr {at}, align 4")


# Of AMX's 8 tiles, those of the operands are live beside the sums; of NEON's 32 vectors, 20 are for sums, and sums alone counted.
UNITS = (
    Unit(
        {"i32": frozenset({"amx-tile", "amx-int8"}), "f32": frozenset({"amx-tile", "amx-bf16"})},
        (16, 16, 16),
        8,
        lambda down, across, shapes: down * across + (down + across) * shapes,
        "<256 x {}>",
        _amx_zero,
        _amx_step,
        _amx_put,
    ),
    Unit(
        {"i32": frozenset({"neon", "i8mm"}), "f32": frozenset({"neon", "bf16"})},
        (2, 2, 2),
        20,
        lambda down, across, shapes: down * across,
        "<4 x {}>",
        lambda ctx, tile: "zeroinitializer",
        _neon_step,
        _neon_put,
    ),
)
