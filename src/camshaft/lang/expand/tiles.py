"""Expand tiles and asynchronous copies into ordinary instructions, for targets without matrix units.

The expansion depends on the lane count: a lane keeps its accumulators in variables if there are few, else in scratch. A tracer
that writes into the rebuilt blocks records the replacement instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from camshaft.dtypes import i32
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.expand.tile_lanes import TileLanes
from camshaft.lang.tracing.recorder import Number
from camshaft.lang.tracing.tracer import Array, Variable

# Maximum accumulators per lane that become variables: more would spill.
MOST_REGISTERS = 64
# A tile's accumulators: element i * lanes + lane in variable i of that lane, or a matrix of scratch.
Accumulators: TypeAlias = "list[Variable] | Array"


def expand_tiles(
    kernel: ir.KernelIR,
    lanes: int,
    *,
    threads: bool = False,
    keep: frozenset[tile_ir.Tile] = frozenset(),
    keep_copies: bool = False,
) -> ir.KernelIR:
    """Return the kernel without tile statements and asynchronous copies, for `lanes` lanes, or the same object if it has none.

    With `threads`, lanes load single elements and each lane owns a block of a tile; else lanes form vectors along a row. The
    statements of tiles in `keep`, and with `keep_copies` the copies, stay unchanged.
    """
    if not any(isinstance(item, tile_ir.TILE_STATEMENTS) for item in traversal.walk(kernel.body)):
        return kernel
    expander = _Expander(kernel, lanes, threads, keep, keep_copies)
    with ir.recording(expander):
        expander.rebuild(kernel.body, expander.body)
    return replace(kernel, body=expander.body, scratch=tuple(expander.scratches))


class _Expander(TileLanes):
    """Copies blocks and replaces tile statements by their expansion."""

    def __init__(
        self, kernel: ir.KernelIR, lanes: int, threads: bool, keep: frozenset[tile_ir.Tile], keep_copies: bool
    ) -> None:
        super().__init__(kernel, lanes, threads)
        self.keep, self.keep_copies = keep, keep_copies
        self.scratches = list(kernel.scratch)
        self.accumulators: dict[tile_ir.Tile, Accumulators] = {}

    def rebuild(self, old: ir.Block, new: ir.Block) -> None:
        outer, self.block = self.block, new
        for item in old.statements:
            self.at_line = item.line
            if isinstance(item, (ir.Lanes, ir.Range, ir.When)):
                copied = replace(item, body=ir.Block(new))
                new.statements.append(copied)
                self.rebuild(item.body, copied.body)
            elif isinstance(item, tile_ir.TILE_STATEMENTS) and not self.stays(item):
                _EXPANSIONS[type(item)](self, item)
            else:
                new.statements.append(item)
        self.block = outer

    def stays(self, item: ir.Statement) -> bool:
        tile = getattr(item, "tile", None)
        return self.keep_copies if tile is None else tile in self.keep

    # --- accumulators ----------------------------------------------------------------------------------------------
    def new(self, item: tile_ir.TileNew) -> None:
        tile = item.tile
        count = max(tile.rows * tile.columns // self.width, 1)
        is_few, sums = count <= MOST_REGISTERS, self.accumulators
        few = [self.var(0, tile.dtype) for _ in range(count if is_few else 0)]
        sums[tile] = few if is_few else self.scratch(tile.dtype, tile.rows, tile.columns)
        if item.array is not None or not is_few:
            self.set_again(item, sums[tile])

    def set_again(self, item: tile_ir.TileNew, sums: Accumulators) -> None:
        """Set the accumulators to what the tile starts with."""
        if isinstance(sums, list):
            for i, total in enumerate(sums):
                place = self.place(item.tile, i)
                self.guarded([self.in_tile(item.tile, place[0])], partial(self.take, item, total, *place))
            return
        for row in self.range(item.tile.rows):
            for column in self.lanes(item.tile.columns):
                sums[row, column] = self.start(item, row, column)

    def start(self, item: tile_ir.TileNew, row: Number, column: Number) -> ir.Value:
        """Return the element that an accumulator starts with."""
        if item.array is None:
            return self.const(0, item.tile.dtype)
        return self.gather(Array(item.array), *_shifted(item.indices, row, column))

    def take(self, item: tile_ir.TileNew, total: Variable, row: Number, column: Number) -> None:
        total.set(self.start(item, row, column))

    # --- products --------------------------------------------------------------------------------------------------
    def mma(self, item: tile_ir.TileMma) -> None:
        sums = self.accumulators[item.tile]
        for p in self.range(item.depth):
            if isinstance(sums, list):
                self.step_in_registers(item, sums, p)
            else:
                self.step_in_scratch(item, sums, p)

    def step_in_registers(self, item: tile_ir.TileMma, sums: list[Variable], p: ir.Value) -> None:
        read: dict[tuple[str, int], ir.Value] = {}
        for i, total in enumerate(sums):
            row, column = self.place(item.tile, i)
            inside = self.in_tile(item.tile, row)
            if inside is not None:
                row = self.select(inside, row, 0)
            left, right = self.shared_by(item.tile, i)
            if ("a", left) not in read:
                read["a", left] = self.a_element(item, row, p)
            if ("b", right) not in read:
                read["b", right] = self.b_element(item, p, column)
            total.set(self.multiplied(item, read["a", left], read["b", right], total.value))

    def step_in_scratch(self, item: tile_ir.TileMma, sums: Array, p: ir.Value) -> None:
        for row in self.range(item.tile.rows):
            a = self.a_element(item, row, p)
            for column in self.lanes(item.tile.columns):
                b = self.b_element(item, p, column)
                sums[row, column] = self.multiplied(item, a, b, sums[row, column])

    def multiplied(self, item: tile_ir.TileMma, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """total + a * b; in a word tile the dot product of bytes or of pairs of bf16."""
        if not item.tile.is_words:
            return self.fma(a, b, total)
        return self.dot4(total, b, a) if item.tile.dtype == i32 else self.dot2(total, a, b)

    def a_element(self, item: tile_ir.TileMma, row: Number, p: ir.Value) -> ir.Value:
        return self.gather(Array(item.a), *_shifted(item.a_at, row, p))

    def b_element(self, item: tile_ir.TileMma, p: Number, column: Number) -> ir.Value:
        if item.transposed:
            p, column = column, p
        elif (width := item.b_columns()) < item.tile.columns:
            p, column = p + column // width * item.depth, column % width
        return self.gather(Array(item.b), *_shifted(item.b_at, p, column))

    def scale(self, item: tile_ir.TileScale) -> None:
        sums = self.accumulators[item.tile]
        if isinstance(sums, list):
            for total in sums:
                total.set(total.value * item.factor)
            return
        for row in self.range(item.tile.rows):
            for column in self.lanes(item.tile.columns):
                sums[row, column] = sums[row, column] * item.factor

    def put(self, item: tile_ir.TileStore) -> None:
        sums, tile = self.accumulators[item.tile], item.tile
        if isinstance(sums, list):
            for i, total in enumerate(sums):
                row, column = self.place(tile, i)
                self.put_one(item, row, column, total.value, self.in_tile(tile, row))
        else:
            for r in self.range(tile.rows):
                for c in self.lanes(tile.columns):
                    self.put_one(item, r, c, sums[r, c], None)
        if item.then is not None:
            self.set_again(item.then, sums)

    def put_one(
        self, item: tile_ir.TileStore, row: Number, column: Number, value: ir.Value, inside: ir.Value | None
    ) -> None:
        self.guarded(
            [inside, _below(row, item.rows), _below(column, item.columns)],
            lambda: self.scatter(Array(item.array), value, *_shifted(item.indices, row, column)),
        )

    def guarded(self, conditions: list[ir.Value | None], write: Callable[[], None]) -> None:
        """Run `write` under the conjunction of the conditions that are not None."""
        known = [c for c in conditions if c is not None]
        if not known:
            write()
            return
        together = known[0]
        for condition in known[1:]:
            together = together & condition
        with self.when(together):
            write()

    # --- copies ----------------------------------------------------------------------------------------------------
    def copy(self, item: tile_ir.AsyncCopy) -> None:
        columns = item.destination.shape[-1]
        rows = item.destination.shape[0] if len(item.destination.shape) == 2 else 1
        for element in self.lanes(rows * columns):
            row, column = element // columns, element % columns
            self.copy_one(item, row if rows > 1 else 0, column)

    def copy_one(self, item: tile_ir.AsyncCopy, row: Number, column: ir.Value) -> None:
        to = (row, column)[-len(item.destination.shape) :]
        value = self.var(0, ir.arithmetic_dtype(item.destination.dtype))
        at = _shifted(item.indices, row, column) if len(to) == 2 else (*item.indices[:-1], item.indices[-1] + column)
        self.guarded(
            [_below(row, item.rows), _below(column, item.columns)],
            lambda: value.set(self.gather(Array(item.source), *at)),
        )
        self.scatter(Array(item.destination), value.value, *to)

    def wait(self, item: tile_ir.AsyncWait) -> None:
        self.barrier()


def _shifted(at: tuple[ir.Value, ...], row: Number, column: Number) -> tuple[Number, ...]:
    return (*at[:-2], at[-2] + row, at[-1] + column)


def _below(number: Number, limit: ir.Value | None) -> ir.Value | None:
    """number < limit, or None where there is no limit."""
    return None if limit is None else limit > number


_EXPANSIONS: dict[type, Callable[[_Expander, Any], None]] = {
    tile_ir.TileNew: _Expander.new,
    tile_ir.TileMma: _Expander.mma,
    tile_ir.TileScale: _Expander.scale,
    tile_ir.TileStore: _Expander.put,
    tile_ir.AsyncCopy: _Expander.copy,
    tile_ir.AsyncWait: _Expander.wait,
}
