"""Tiles on the matrix units of CPUs: AMX's 16 x 16 tiles and NEON's 2 x 2 products.

Both units multiply a word of a row by a word of a column: four bytes (a's are signed) or two bf16.
"""

from __future__ import annotations

from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.control import counted_loop
from camshaft.emit.llvm.matrix_units.amx import AMX
from camshaft.emit.llvm.matrix_units.neon import NEON
from camshaft.emit.llvm.matrix_units.unit import Slots, Unit, pieces, words_after
from camshaft.emit.llvm.memory import pointer
from camshaft.emit.llvm.values import Rep, integer
from camshaft.emit.target import CpuTarget
from camshaft.emit.tiles import products_by_tile
from camshaft.lang import ir, tile_ir

UNITS = (AMX, NEON)
# Products of more words than this become a loop.
MOST_UNROLLED = 64


def unit_of(target: CpuTarget, tile: tile_ir.Tile) -> Unit | None:
    """The target's unit for a tile's words, or None."""
    units = (u for u in UNITS if u.features[tile.dtype.name] <= target.features and u.takes(tile))
    return next(units, None) if tile.is_words else None


def native_tiles(kernel: ir.KernelIR, target: CpuTarget) -> frozenset[tile_ir.Tile]:
    """The kernel's tiles that become matrix instructions: in order, while they fit the unit's registers."""
    # LLVM crashes if a tile is live while another one that is not native is computed, and a third takes its registers
    found = _fitting(kernel, target, _lives(kernel.body))
    return found if found >= products_by_tile(kernel).keys() else _fitting(kernel, target, None)


def _fitting(
    kernel: ir.KernelIR, target: CpuTarget, lives: dict[tile_ir.Tile, list[int]] | None
) -> frozenset[tile_ir.Tile]:
    """The tiles that fit, by their lives: those that do not meet share registers, without `lives` none do."""
    # LLVM ends the process if it runs out of AMX registers
    needed: dict[tile_ir.Tile, int] = {}
    whole: set[tile_ir.Tile] = set()
    for tile, products in products_by_tile(kernel).items():
        unit = unit_of(target, tile)
        if unit is None:
            continue
        if unit.is_whole(tile, products):
            whole.add(tile)
        beside = sum(
            n
            for other, n in needed.items()
            if lives is None or not whole >= {tile, other} or _meet(lives[tile], lives[other])
        )
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


def new(ctx: Context, item: tile_ir.TileNew) -> None:
    """Make a variable per piece and set it to zero, or to what the tile starts with."""
    unit = _unit(ctx, item.tile)
    (down, across), typ = unit.grid(item.tile), unit.typed(item.tile)
    ctx.tiles[item.tile] = slots = [[ctx.slot("tile", typ, ", align 64") for _ in range(across)] for _ in range(down)]
    _set(ctx, unit, item, slots, _start(ctx, item))


def _start(ctx: Context, item: tile_ir.TileNew | tile_ir.TileStore) -> str:
    """The address of a tile's first element in memory; empty for a tile that starts as zeros."""
    return "" if item.array is None else pointer(ctx, item.array, index.linear(ctx, item.array, item.indices).name)


def _set(ctx: Context, unit: Unit, item: tile_ir.TileNew, slots: Slots, start: str) -> None:
    if item.array is not None:
        unit.take(ctx, item, slots, start)
        return
    # A zero of its own for each: copies of one would go through memory.
    for _, _, slot in pieces(slots):
        ctx.write(f"store {unit.typed(item.tile)} {unit.zero(ctx, item.tile)}, ptr {slot}")


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
    unit, slots, start, then = _unit(ctx, item.tile), ctx.tiles[item.tile], _start(ctx, item), item.then
    if then is None:
        unit.put(ctx, item, slots, start)
        return
    other = _start(ctx, then)
    for i, line in enumerate(slots):
        for j in range(0, len(line), unit.together):
            few = [line[j : j + unit.together]]
            unit.put(ctx, item, few, _piece_of(ctx, unit, item, start, i, j))
            _set(ctx, unit, then, few, _piece_of(ctx, unit, then, other, i, j))


def _piece_of(ctx: Context, unit: Unit, item: tile_ir.TileNew | tile_ir.TileStore, start: str, i: int, j: int) -> str:
    """The address of piece i, j of a tile that starts there."""
    if item.array is None:
        return start
    rows, columns, _ = unit.piece
    return words_after(ctx, start, i * rows * item.array.strides[-2] + j * columns)


def _unit(ctx: Context, tile: tile_ir.Tile) -> Unit:
    found = unit_of(ctx.target, tile)
    assert found is not None
    return found
