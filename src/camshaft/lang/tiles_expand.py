"""Tiles and asynchronous copies in ordinary words: what they mean, and what targets without them run. After lang/verify.py.

The expansion depends on the lane count: a lane holds its accumulators in variables where there are few of them, else they lie in
scratch. Spelled in the language's own words by a tracer that writes into the rebuilt blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from camshaft.dtypes import f32
from camshaft.lang import ir
from camshaft.lang.recorder import Number
from camshaft.lang.tracer import Array, Tracer, Variable

# Accumulators of a lane that are variables: more would leave the registers.
MOST_REGISTERS = 64
# A tile's accumulators: element i * lanes + lane in variable i of that lane, or a matrix of scratch.
Held: TypeAlias = "list[Variable] | Array"


def expand_tiles(kernel: ir.KernelIR, lanes: int) -> ir.KernelIR:
    """The kernel without tile statements and asynchronous copies, for `lanes` lanes; itself where it has none."""
    if not any(isinstance(item, ir.TILE_STATEMENTS) for item in ir.walk(kernel.body)):
        return kernel
    expander = _Expander(kernel, lanes)
    ir.recorders.append(expander)
    try:
        expander.rebuild(kernel.body, expander.body)
    finally:
        ir.recorders.pop()
    return replace(kernel, body=expander.body, scratch=tuple(expander.scratches))


class _Expander(Tracer):
    """Copies blocks; in place of a tile statement it records what that means."""

    def __init__(self, kernel: ir.KernelIR, lanes: int) -> None:
        super().__init__(kernel.name, kernel.source_file)
        self.width = lanes
        self.scratches = list(kernel.scratch)
        self.held: dict[ir.Tile, Held] = {}
        self.at_line = 0

    def line(self) -> int:
        return self.at_line

    def check_open(self, value: ir.Value) -> None:
        """The verifier has seen the kernel: its values are used where they were."""

    def rebuild(self, old: ir.Block, new: ir.Block) -> None:
        outer, self.block = self.block, new
        for item in old.statements:
            self.at_line = item.line
            if isinstance(item, (ir.Lanes, ir.Range, ir.When)):
                copied = replace(item, body=ir.Block(new))
                new.statements.append(copied)
                self.rebuild(item.body, copied.body)
            elif isinstance(item, ir.TILE_STATEMENTS):
                _EXPANSIONS[type(item)](self, item)
            else:
                new.statements.append(item)
        self.block = outer

    # --- where an accumulator is -----------------------------------------------------------------------------------
    def new(self, item: ir.TileNew) -> None:
        tile = item.tile
        count = max(tile.rows * tile.columns // self.width, 1)
        if count <= MOST_REGISTERS:
            self.held[tile] = [self.var(0.0) for _ in range(count)]
            return
        self.held[tile] = total = self.scratch(f32, tile.rows, tile.columns)
        for row in self.range(tile.rows):
            for column in self.lanes(tile.columns):
                total[row, column] = 0.0

    def place(self, tile: ir.Tile, i: int) -> tuple[Number, Number]:
        """Row and column of the lanes' accumulator i: the row a number where all lanes have it."""
        first, columns = i * self.width, tile.columns
        if columns % self.width == 0:
            return first // columns, self.lane() + first % columns
        element = self.lane() + first
        return element // columns, element % columns

    def in_tile(self, tile: ir.Tile, row: Number) -> ir.Value | None:
        """Whether the lane has this accumulator; None where all have."""
        if self.width <= tile.rows * tile.columns:
            return None
        assert isinstance(row, ir.Value)
        return row < tile.rows

    # --- words -----------------------------------------------------------------------------------------------------
    def mma(self, item: ir.TileMma) -> None:
        held = self.held[item.tile]
        for p in self.range(item.depth):
            if isinstance(held, list):
                self.step_in_registers(item, held, p)
            else:
                self.step_in_scratch(item, held, p)

    def step_in_registers(self, item: ir.TileMma, held: list[Variable], p: ir.Value) -> None:
        loaded: dict[Number, ir.Value] = {}  # a uniform row's element of a, and a column block's of b, are read once
        for i, total in enumerate(held):
            row, column = self.place(item.tile, i)
            inside = self.in_tile(item.tile, row)
            if inside is not None:
                row = self.select(inside, row, 0)
            key = -1 - i * self.width % item.tile.columns
            a = loaded[row] if isinstance(row, int) and row in loaded else self.a_element(item, row, p)
            b = loaded[key] if isinstance(row, int) and key in loaded else self.b_element(item, p, column)
            if isinstance(row, int):
                loaded[row], loaded[key] = a, b
            total.set(self.fma(a, b, total.value))

    def step_in_scratch(self, item: ir.TileMma, held: Array, p: ir.Value) -> None:
        for row in self.range(item.tile.rows):
            a = self.a_element(item, row, p)
            for column in self.lanes(item.tile.columns):
                held[row, column] = self.fma(a, self.b_element(item, p, column), held[row, column])

    def a_element(self, item: ir.TileMma, row: Number, p: ir.Value) -> ir.Value:
        return self.gather(Array(item.a), *_shifted(item.a_at, row, p))

    def b_element(self, item: ir.TileMma, p: ir.Value, column: Number) -> ir.Value:
        last = (column, p) if item.transposed else (p, column)
        return self.gather(Array(item.b), *_shifted(item.b_at, *last))

    def scale(self, item: ir.TileScale) -> None:
        held = self.held[item.tile]
        if isinstance(held, list):
            for total in held:
                total.set(total.value * item.factor)
            return
        for row in self.range(item.tile.rows):
            for column in self.lanes(item.tile.columns):
                held[row, column] = held[row, column] * item.factor

    def put(self, item: ir.TileStore) -> None:
        held, tile = self.held[item.tile], item.tile
        if isinstance(held, list):
            for i, total in enumerate(held):
                row, column = self.place(tile, i)
                self.put_one(item, row, column, total.value, self.in_tile(tile, row))
            return
        for r in self.range(tile.rows):
            for c in self.lanes(tile.columns):
                self.put_one(item, r, c, held[r, c], None)

    def put_one(
        self, item: ir.TileStore, row: Number, column: Number, value: ir.Value, inside: ir.Value | None
    ) -> None:
        self.guarded(
            [inside, _below(row, item.rows), _below(column, item.columns)],
            lambda: self.scatter(Array(item.array), value, *_shifted(item.indices, row, column)),
        )

    def guarded(self, conditions: list[ir.Value | None], write: Callable[[], None]) -> None:
        """Runs `write` under all conditions that there are."""
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
    def copy(self, item: ir.AsyncCopy) -> None:
        columns = item.destination.shape[-1]
        rows = item.destination.shape[0] if len(item.destination.shape) == 2 else 1
        for element in self.lanes(rows * columns):
            row, column = element // columns, element % columns
            self.copy_one(item, row if rows > 1 else 0, column)

    def copy_one(self, item: ir.AsyncCopy, row: Number, column: ir.Value) -> None:
        to = (row, column)[-len(item.destination.shape) :]
        value = self.var(0, ir.arithmetic_dtype(item.destination.dtype))
        at = _shifted(item.indices, row, column) if len(to) == 2 else (*item.indices[:-1], item.indices[-1] + column)
        self.guarded(
            [_below(row, item.rows), _below(column, item.columns)],
            lambda: value.set(self.gather(Array(item.source), *at)),
        )
        self.scatter(Array(item.destination), value.value, *to)

    def wait(self, item: ir.AsyncWait) -> None:
        self.barrier()


def _shifted(at: tuple[ir.Value, ...], row: Number, column: Number) -> tuple[Number, ...]:
    return (*at[:-2], at[-2] + row, at[-1] + column)


def _below(number: Number, limit: ir.Value | None) -> ir.Value | None:
    """number < limit, or None where there is no limit."""
    return None if limit is None else limit > number


_EXPANSIONS: dict[type, Callable[[_Expander, Any], None]] = {
    ir.TileNew: _Expander.new,
    ir.TileMma: _Expander.mma,
    ir.TileScale: _Expander.scale,
    ir.TileStore: _Expander.put,
    ir.AsyncCopy: _Expander.copy,
    ir.AsyncWait: _Expander.wait,
}
