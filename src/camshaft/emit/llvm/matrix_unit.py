"""Tiles on the matrix units of CPUs: AMX's 16 x 16 tiles and NEON's 2 x 2 products.

LLVM configures AMX's tiles: it takes their shapes from the calls, and keeps vectors that are only cast to tiles and back in tile
registers (its pass X86LowerAMXType). Both units multiply a word of a row by a word of a column: four bytes (a's are signed) or
two bf16. NEON takes two words at a time, so its product is 2 x 8 bytes by 8 x 2.
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
from camshaft.emit.tiles import products_by_tile
from camshaft.lang import ir, tile_ir

# Products of more words than this become a loop.
MOST_UNROLLED = 64
Slots = list[list[str]]


@dataclass(frozen=True)
class Unit:
    """A matrix unit: the features it needs by a tile's dtype, its piece (rows, columns, words), and `typ`, the type of its sums.

    `needed(down, across, shapes)`: registers for so many pieces and shapes of operands. `zero`: a piece of zeros. `step`:
    multiply all pieces, `words` deep, from word p on. `take`: load the tile's rows from a pointer; `put`: store them there.
    """

    features: dict[str, frozenset[str]]
    piece: tuple[int, int, int]
    registers: int
    needed: Callable[[int, int, int], int]
    typ: str
    zero: Callable[[Context, tile_ir.Tile], str]
    step: Callable[[Context, tile_ir.TileMma, Slots, Rep, int], None]
    take: Callable[[Context, tile_ir.TileNew, Slots, str], None]
    put: Callable[[Context, tile_ir.TileStore, Slots, str], None]

    def grid(self, tile: tile_ir.Tile) -> tuple[int, int]:
        """The number of pieces down and across."""
        return -(-tile.rows // self.piece[0]), -(-tile.columns // self.piece[1])

    def takes(self, tile: tile_ir.Tile) -> bool:
        """Whether the tile divides into equal pieces."""
        sides = zip((tile.rows, tile.columns), self.piece, strict=False)
        return all(side <= most or side % most == 0 for side, most in sides)

    def registers_for(self, tile: tile_ir.Tile, products: list[tile_ir.TileMma]) -> int:
        """Registers for a tile's sums and operands. An AMX register has one shape in the whole kernel."""
        deep = self.piece[2]
        shapes = {min(deep, item.depth - p) for item in products for p in range(0, item.depth, deep)}
        return self.needed(*self.grid(tile), len(shapes))

    def is_whole(self, tile: tile_ir.Tile, products: list[tile_ir.TileMma]) -> bool:
        """Whether all pieces and operands have the unit's shape, so that any register may hold any of them."""
        rows, columns, deep = self.piece
        return tile.rows >= rows and tile.columns >= columns and all(item.depth % deep == 0 for item in products)

    def typed(self, tile: tile_ir.Tile) -> str:
        """LLVM's type of a piece."""
        return self.typ.format("i32" if tile.dtype == i32 else "float")


def unit_of(target: CpuTarget, tile: tile_ir.Tile) -> Unit | None:
    """The target's unit for a tile's words, or None."""
    units = (u for u in UNITS if u.features[tile.dtype.name] <= target.features and u.takes(tile))
    return next(units, None) if tile.is_words else None


def native_tiles(kernel: ir.KernelIR, target: CpuTarget) -> frozenset[tile_ir.Tile]:
    """The kernel's tiles that become matrix instructions: in order, while they fit the unit's registers."""
    # LLVM ends the process if it runs out of AMX registers
    needed: dict[tile_ir.Tile, int] = {}
    whole: set[tile_ir.Tile] = set()
    lives = _lives(kernel.body)
    for tile, products in products_by_tile(kernel).items():
        unit = unit_of(target, tile)
        if unit is None:
            continue
        if unit.is_whole(tile, products):
            whole.add(tile)
        beside = sum(n for other, n in needed.items() if not whole >= {tile, other} or _meet(lives[tile], lives[other]))
        if beside + (more := unit.registers_for(tile, products)) <= unit.registers:
            needed[tile] = more
    return frozenset(needed)


def _lives(body: ir.Block) -> dict[tile_ir.Tile, list[int]]:
    """The numbers of the first and the last statement during which each tile is kept: to the end of the loops in its block that
    use it."""
    lives: dict[tile_ir.Tile, list[int]] = {}
    number = 0

    def visit(block: ir.Block) -> set[tile_ir.Tile]:
        nonlocal number
        found: set[tile_ir.Tile] = set()
        for item in block.statements:
            number += 1
            inner = getattr(item, "body", None)
            used = visit(inner) if inner is not None else {item.tile} if hasattr(item, "tile") else set()
            for tile in used:
                lives.setdefault(tile, [number, number])[1] = number
            found |= used
        return {tile for tile in found if tile.block is not block}

    visit(body)
    return lives


def _meet(a: list[int], b: list[int]) -> bool:
    """Whether two ranges of numbers have one in common."""
    return a[0] <= b[1] and b[0] <= a[1]


# --- statements ------------------------------------------------------------------------------------------------------


def new(ctx: Context, item: tile_ir.TileNew) -> None:
    """Make a variable per piece and set it to zero, or to what the tile starts with."""
    unit = _unit(ctx, item.tile)
    (down, across), typ = unit.grid(item.tile), unit.typed(item.tile)
    ctx.tiles[item.tile] = slots = [[ctx.slot("tile", typ, ", align 64") for _ in range(across)] for _ in range(down)]
    if item.array is not None:
        start = pointer(ctx, item.array, index.linear(ctx, item.array, item.indices).name)
        unit.take(ctx, item, slots, start)
        return
    # A zero of its own for each: copies of one would go through memory.
    for _, _, slot in _pieces(slots):
        ctx.write(f"store {typ} {unit.zero(ctx, item.tile)}, ptr {slot}")


def mma(ctx: Context, item: tile_ir.TileMma) -> None:
    """Multiply: unrolled if it is not deep, else a loop of whole steps and the remainder."""
    unit, slots = _unit(ctx, item.tile), ctx.tiles[item.tile]
    deep, whole = unit.piece[2], 0
    if item.depth > MOST_UNROLLED:
        whole = item.depth // deep * deep
        counted_loop(ctx, "0", str(whole), deep, lambda p: unit.step(ctx, item, slots, Rep(p, multiple=deep), deep))
    for p in range(whole, item.depth, deep):
        unit.step(ctx, item, slots, integer(p), min(deep, item.depth - p))


def store(ctx: Context, item: tile_ir.TileStore) -> None:
    base = index.linear(ctx, item.array, item.indices)
    _unit(ctx, item.tile).put(ctx, item, ctx.tiles[item.tile], pointer(ctx, item.array, base.name))


def _unit(ctx: Context, tile: tile_ir.Tile) -> Unit:
    found = unit_of(ctx.target, tile)
    assert found is not None
    return found


def _start(ctx: Context, array: ir.Array, at: tuple[ir.Value, ...], more: Rep, step: int) -> str:
    """The address `more` times `step` elements after array[at]."""
    start = pointer(ctx, array, index.linear(ctx, array, at).name)
    return _words_after(ctx, start, ctx.line(f"mul i64 {more.name}, {step}"))


def _words_after(ctx: Context, pointer: str, words: int | str) -> str:
    """The address `words` words of 4 bytes after a pointer."""
    return pointer if words == 0 else ctx.line(f"getelementptr inbounds i32, ptr {pointer}, i64 {words}")


# --- AMX -------------------------------------------------------------------------------------------------------------
def _amx_sides(tile: tile_ir.Tile) -> tuple[int, int]:
    """Rows, and bytes of a row, of every piece of a tile."""
    return min(tile.rows, 16), 4 * min(tile.columns, 16)


def _i16(*numbers: int) -> list[tuple[str, str]]:
    """Arguments of an AMX call: rows, bytes of a row."""
    return [("i16", str(n)) for n in numbers]


def _amx_vector(tile: tile_ir.Tile) -> tuple[str, str]:
    """LLVM's type of a tile's elements, and the suffix of its casts."""
    return ("<256 x i32>", "v256i32") if tile.dtype == i32 else ("<256 x float>", "v256f32")


def _as_vector(ctx: Context, tile: tile_ir.Tile, amx: str) -> str:
    typ, suffix = _amx_vector(tile)
    return ctx.call(f"llvm.x86.cast.tile.to.vector.{suffix}", typ, ("x86_amx", amx))


def _as_tile(ctx: Context, tile: tile_ir.Tile, slot: str) -> str:
    typ, suffix = _amx_vector(tile)
    vector = ctx.line(f"load {typ}, ptr {slot}")
    return ctx.call(f"llvm.x86.cast.vector.to.tile.{suffix}", "x86_amx", (typ, vector))


def _amx_zero(ctx: Context, tile: tile_ir.Tile) -> str:
    return _as_vector(ctx, tile, ctx.call("llvm.x86.tilezero.internal", "x86_amx", *_i16(*_amx_sides(tile))))


def _amx_load(ctx: Context, rows: int, nbytes: int, pointer: str, stride: int) -> str:
    memory = ("ptr", pointer), ("i64", str(4 * stride))
    return ctx.call("llvm.x86.tileloadd64.internal", "x86_amx", *_i16(rows, nbytes), *memory)


def _amx_step(ctx: Context, item: tile_ir.TileMma, slots: Slots, p: Rep, words: int) -> None:
    """Load each operand's tiles once and multiply all pairs."""
    tile, (rows, nbytes) = item.tile, _amx_sides(item.tile)
    a_stride, b_stride = item.a.strides[-2], item.b.strides[-2]
    a_start, b_start = _start(ctx, item.a, item.a_at, p, 1), _start(ctx, item.b, item.b_at, p, b_stride)
    left = [
        _amx_load(ctx, rows, 4 * words, _words_after(ctx, a_start, i * rows * a_stride), a_stride)
        for i in range(len(slots))
    ]
    right = [
        _amx_load(ctx, words, nbytes, _words_after(ctx, b_start, j * nbytes // 4), b_stride)
        for j in range(len(slots[0]))
    ]
    name = f"llvm.x86.{'tdpbsud' if tile.dtype == i32 else 'tdpbf16ps'}.internal"
    for i, j, slot in _pieces(slots):
        operands = [("x86_amx", x) for x in (_as_tile(ctx, tile, slot), left[i], right[j])]
        sums = ctx.call(name, "x86_amx", *_i16(rows, nbytes, 4 * words), *operands)
        ctx.write(f"store {_amx_vector(tile)[0]} {_as_vector(ctx, tile, sums)}, ptr {slot}")


def _pieces(slots: Slots) -> Iterator[tuple[int, int, str]]:
    return ((i, j, slot) for i, line in enumerate(slots) for j, slot in enumerate(line))


def _amx_take(ctx: Context, item: tile_ir.TileNew, slots: Slots, start: str) -> None:
    assert item.array is not None
    (rows, nbytes), stride = _amx_sides(item.tile), item.array.strides[-2]
    for i, j, slot in _pieces(slots):
        sums = _amx_load(ctx, rows, nbytes, _words_after(ctx, start, i * rows * stride + j * nbytes // 4), stride)
        ctx.write(f"store {_amx_vector(item.tile)[0]} {_as_vector(ctx, item.tile, sums)}, ptr {slot}")


def _amx_put(ctx: Context, item: tile_ir.TileStore, slots: Slots, start: str) -> None:
    (rows, nbytes), stride = _amx_sides(item.tile), item.array.strides[-2]
    for i, j, slot in _pieces(slots):
        memory = ("ptr", _words_after(ctx, start, i * rows * stride + j * nbytes // 4)), ("i64", str(4 * stride))
        amx = ("x86_amx", _as_tile(ctx, item.tile, slot))
        ctx.call("llvm.x86.tilestored64.internal", "void", *_i16(rows, nbytes), *memory, amx)


# --- NEON ------------------------------------------------------------------------------------------------------------


def _neon_step(ctx: Context, item: tile_ir.TileMma, slots: Slots, p: Rep, words: int) -> None:
    """Two words deep: pairs of rows, of 8 bytes each, by pairs of columns, whose words are zipped together."""
    tile = item.tile
    octets, sums = ("<16 x i8>", "<4 x i32>") if tile.dtype == i32 else ("<8 x bfloat>", "<4 x float>")
    name = "llvm.aarch64.neon.usmmla.v4i32.v16i8" if tile.dtype == i32 else "llvm.aarch64.neon.bfmmla"
    a_start, b_start = _start(ctx, item.a, item.a_at, p, 1), _start(ctx, item.b, item.b_at, p, item.b.strides[-2])
    left = [_pair_of_rows(ctx, a_start, 2 * i, item.a.strides[-2], octets) for i in range(len(slots))]
    right = [
        q
        for j in range(0, len(slots[0]), 2)
        for q in _pairs_of_columns(ctx, b_start, 2 * j, item.b.strides[-2], octets)
    ]
    for i, j, slot in _pieces(slots):
        before = ctx.line(f"load {sums}, ptr {slot}")
        after = ctx.call(name, sums, (sums, before), (octets, right[j]), (octets, left[i]))
        ctx.write(f"store {sums} {after}, ptr {slot}")


def _pair_of_rows(ctx: Context, start: str, row: int, stride: int, typ: str) -> str:
    pair = "poison"
    for n in range(2):
        words = ctx.line(f"load i64, ptr {_words_after(ctx, start, (row + n) * stride)}, align 4")
        pair = ctx.line(f"insertelement <2 x i64> {pair}, i64 {words}, i64 {n}")
    return ctx.line(f"bitcast <2 x i64> {pair} to {typ}")


def _pairs_of_columns(ctx: Context, start: str, column: int, stride: int, typ: str) -> list[str]:
    rows = [ctx.line(f"load <4 x i32>, ptr {_words_after(ctx, start, n * stride + column)}, align 4") for n in range(2)]
    return [
        ctx.line(f"bitcast <4 x i32> {ctx.shuffled('<4 x i32>', rows[0], order, rows[1])} to {typ}")
        for order in ((0, 4, 1, 5), (2, 6, 3, 7))
    ]


def _neon_take(ctx: Context, item: tile_ir.TileNew, slots: Slots, start: str) -> None:
    """Load pairs of pieces, as _neon_put stores them: two rows of columns are zipped as an operand's are."""
    assert item.array is not None
    typ, stride = ("<4 x i32>" if item.tile.dtype == i32 else "<4 x float>"), item.array.strides[-2]
    for i, line in enumerate(slots):
        for j in range(0, len(line), 2):
            pair = _pairs_of_columns(ctx, _words_after(ctx, start, 2 * i * stride), 2 * j, stride, typ)
            for slot, piece in zip(line[j : j + 2], pair, strict=True):
                ctx.write(f"store {typ} {piece}, ptr {slot}")


def _neon_put(ctx: Context, item: tile_ir.TileStore, slots: Slots, start: str) -> None:
    """Store pairs of pieces. A piece has its sums by column and row; of two pieces, the even sums are one row, the odd ones the
    next."""
    typ = "<4 x i32>" if item.tile.dtype == i32 else "<4 x float>"
    for i, line in enumerate(slots):
        for j in range(0, len(line), 2):
            pair = [ctx.line(f"load {typ}, ptr {slot}") for slot in line[j : j + 2]]
            for n in range(2):
                row = ctx.shuffled(typ, pair[0], (n, n + 2, n + 4, n + 6), pair[1])
                at = _words_after(ctx, start, (2 * i + n) * item.array.strides[-2] + 2 * j)
                ctx.write(f"store {typ} {row}, ptr {at}, align 4")


# AMX has 8 tiles, for sums and operands. NEON has 32 vectors, of which 20 may be sums; its operands are not counted.
UNITS = (
    Unit(
        {"i32": frozenset({"amx-tile", "amx-int8"}), "f32": frozenset({"amx-tile", "amx-bf16"})},
        (16, 16, 16),
        8,
        lambda down, across, shapes: down * across + (down + across) * shapes,
        "<256 x {}>",
        _amx_zero,
        _amx_step,
        _amx_take,
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
        _neon_take,
        _neon_put,
    ),
)
