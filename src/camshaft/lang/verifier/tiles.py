"""Verifier rules for tile statements and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dtypes import f32, i64
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.verifier.scope import Scope, wanted_index

# Columns of a piece of an operand are a multiple of the columns that a matrix unit loads at once.
PIECE = 16


def tile_rule(scope: Scope, made: set[tile_ir.Tile], item: ir.Statement) -> None:
    """Raise VerifyError if a tile statement breaks a rule. `made`: the tiles declared in open blocks."""
    if scope.in_lanes or scope.masked:
        raise scope.fail(item.line, f"{type(item).__name__} where not all lanes arrive")
    if any(value in scope.varying for value in traversal.operands(item)):
        raise scope.fail(item.line, f"{type(item).__name__} with an operand that varies by lane")
    tile = getattr(item, "tile", None)
    if tile is not None and tile not in made:
        raise scope.fail(item.line, "a tile is used outside the block that made it")
    rule = _RULES.get(type(item))
    if rule is not None:
        rule(scope, item)


def _new(scope: Scope, item: tile_ir.TileNew) -> None:
    if item.array is None:
        return
    wanted_index(scope, item.array, item.indices, item.line)
    if not item.tile.is_words or item.array.dtype != item.tile.dtype:
        raise scope.fail(item.line, f"a tile started from {item.array.name} of {item.array.dtype}")
    _fits(scope, item.array, item.indices, (item.tile.rows, item.tile.columns), item.line)


def _mma(scope: Scope, item: tile_ir.TileMma) -> None:
    tile = item.tile
    if (width := item.b_columns()) < tile.columns and (tile.columns % width or width % PIECE):
        raise scope.fail(item.line, f"mma of {tile.columns} columns by {item.b.name}, which is {item.b.shape}")
    for array, at, size in ((item.a, item.a_at, (tile.rows, item.depth)), (item.b, item.b_at, item.b_size())):
        wanted_index(scope, array, at, item.line)
        if array.dtype.name not in (("u32",) if tile.is_words else ("f16", "bf16", "f32")):
            raise scope.fail(item.line, f"mma of {array.name} of {array.dtype}")
        _fits(scope, array, at, size, item.line)


def _fits(scope: Scope, array: ir.Array, at: tuple[ir.Value, ...], size: tuple[int, int], line: int) -> None:
    """Raise VerifyError if a matrix is known to extend past its array."""
    for start, wanted, there in zip(at[-2:], size, array.shape[-2:], strict=True):
        if wanted + (start.attr if start.op == "const" else 0) > there:
            raise scope.fail(line, f"{size[0]} x {size[1]} of {array.name}, which is {array.shape}")


def _scale(scope: Scope, item: tile_ir.TileScale) -> None:
    if item.factor.dtype != f32 or item.factor.width or item.tile.is_words:
        raise scope.fail(item.line, f"a tile scaled by {item.factor!r}: wanted one f32")


def _store(scope: Scope, item: tile_ir.TileStore) -> None:
    wanted_index(scope, item.array, item.indices, item.line)
    dtypes = (item.tile.dtype.name,) if item.tile.is_words else ("f16", "bf16", "f32")
    if not item.array.writable or item.array.dtype.name not in dtypes:
        raise scope.fail(item.line, f"a tile stored to {item.array.name} of {item.array.dtype}")
    _limits(scope, item)
    if item.then is not None:
        if not item.tile.is_words or item.then.tile is not item.tile:
            raise scope.fail(item.line, "a tile that is not of words, or another one, is set after a store")
        _new(scope, item.then)


def _copy(scope: Scope, item: tile_ir.AsyncCopy) -> None:
    wanted_index(scope, item.source, item.indices, item.line)
    to, come = item.destination, item.source
    if to not in scope.arrays or not to.scratch or to.dtype != come.dtype or len(to.shape) > min(2, len(come.shape)):
        raise scope.fail(item.line, f"a copy of {come.name} to {to.name}")
    _limits(scope, item)


def _limits(scope: Scope, item: tile_ir.TileStore | tile_ir.AsyncCopy) -> None:
    for limit in (item.rows, item.columns):
        if limit is not None and (limit.dtype != i64 or limit.width):
            raise scope.fail(item.line, f"a limit of {limit!r}: wanted i64")


_RULES: dict[type, Callable[[Scope, Any], None]] = {
    tile_ir.TileNew: _new,
    tile_ir.TileMma: _mma,
    tile_ir.TileScale: _scale,
    tile_ir.TileStore: _store,
    tile_ir.AsyncCopy: _copy,
}
