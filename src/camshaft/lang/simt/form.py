"""SIMT form: Kernel IR in which every value is a scalar of one thread.

A program becomes a workgroup of `lanes` threads. A lanes loop becomes a range from start + lane in steps of `lanes`. Element e
of an explicit vector of n is in every thread with lane & (n - 1) = e. All threads compute uniform values; the first one stores
them. This pass inserts the barriers that order uniform and vector accesses (lang/simt/barriers.py); the kernel itself states
the barriers between lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

from camshaft.dtypes import boolean, i64
from camshaft.errors import KernelError
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.expand.tiles import expand_tiles
from camshaft.lang.simt.barriers import Access, Accesses, accesses_of
from camshaft.lang.simt.values import ValueLowering

# Scratch of at most this many elements that is accessed only uniformly becomes thread-private, which saves barriers.
MOST_PRIVATE = 64


@dataclass(frozen=True)
class SimtKernel:
    """A kernel in SIMT form. `shared` arrays belong to the workgroup, `private` ones to a thread.

    Values are rows of the instruction table, const, program, scalar, index, lane, load, var_get, atomic, and the collectives,
    which occur in uniform flow only: reduce (attr (kind, n): lanes 0..n-1, the first half with the second until one is left,
    for all), broadcast (attr i: lane i's value for all), scan (attr (kind, exclusive)) and shuffle (args value, lane). Each
    thread that reaches an `atomic` (attr (array, kind), args the operands, then the indices: lang/atomics.py) executes it.
    Statements are VarNew, VarSet, Store, Range (bounds may vary), When and Barrier.
    """

    name: str
    arrays: tuple[ir.Array, ...]
    scalars: tuple[str, ...]
    grid: tuple[ir.GridDim, ...]
    lanes: int
    shared: tuple[ir.Array, ...]
    private: tuple[ir.Array, ...]
    body: ir.Block
    source_file: str


# Which tiles of a kernel an emitter lowers itself at a number of lanes.
TileChoice: TypeAlias = Callable[[ir.KernelIR, int], frozenset[tile_ir.Tile]]


def no_tiles(kernel: ir.KernelIR, lanes: int) -> frozenset[tile_ir.Tile]:
    """Keep no tile: all are expanded to ordinary instructions."""
    return frozenset()


def to_simt(
    kernel: ir.KernelIR,
    lanes: int,
    subgroup: int = 32,
    keep_tiles: TileChoice = no_tiles,
    keep_copies: bool = False,
) -> SimtKernel:
    """Return the SIMT form of a verified kernel.

    The workgroup has as many threads as the widest explicit vector has elements, or `lanes` if the kernel has none. KernelError
    if that is not a power of two.

    `subgroup`: the number of threads that exchange values directly, at most the workgroup. Tiles in `keep_tiles`, and with
    `keep_copies` asynchronous copies, stay for an emitter that lowers them itself; others are expanded.
    """
    widths = [item.width for item in traversal.walk(kernel.body) if isinstance(item, ir.Value) and item.width]
    lanes = max(widths) if widths else lanes
    if lanes & (lanes - 1):
        raise KernelError(
            f"kernel {kernel.name}: a workgroup of {lanes} threads; wanted a power of two, as reductions halve"
        )
    kernel = expand_tiles(kernel, lanes, threads=True, keep=keep_tiles(kernel, lanes), keep_copies=keep_copies)
    lowering = _Lowering(kernel, lanes, subgroup)
    lowering.block(kernel.body, lowering.out)
    shared = tuple(a for a in kernel.scratch if a not in lowering.private)
    private = tuple(a for a in kernel.scratch if a in lowering.private)
    named = kernel.name, kernel.arrays, kernel.scalars, kernel.grid
    return SimtKernel(*named, lowering.lanes, shared, private, lowering.out, kernel.source_file)


class _Lowering(ValueLowering):
    """Rebuilds the body. `flow_varies` is set inside lanes loops and varying masks."""

    def __init__(self, kernel: ir.KernelIR, lanes: int, subgroup: int) -> None:
        super().__init__(kernel, lanes, subgroup)
        self.private = _private_scratch(kernel, self.varying)
        self.accesses = Accesses(frozenset(self.private))

    def block(self, old: ir.Block, new: ir.Block) -> None:
        def build() -> None:
            for item in old.statements:
                if not self.flow_varies:
                    self.order(item)
                if isinstance(item, ir.Value):
                    self.values[item] = self.value(item)
                else:
                    _STATEMENTS[type(item)](self, item)

        self.inside(new, build)

    def order(self, item: ir.Value | ir.Statement) -> None:
        """Insert a barrier before an item whose accesses conflict with earlier ones of other threads."""
        for access in accesses_of(item, self.varying):
            if self.accesses.conflicts(access):
                self.here.statements.append(ir.Barrier(item.line))
                self.accesses.clear()
                break
        if not isinstance(item, (ir.Range, ir.When)) or self.is_varying_when(item):
            self.accesses.add(accesses_of(item, self.varying))

    def is_varying_when(self, item: ir.Value | ir.Statement) -> bool:
        return isinstance(item, ir.When) and item.condition in self.varying

    # --- statements ------------------------------------------------------------------------------------------------
    def var_new(self, item: ir.VarNew) -> None:
        var = ir.Var(item.var.dtype, 0, self.values[item.var.init], item.var.identity, self.here, item.line)
        self.vars[item.var] = var
        self.here.statements.append(ir.VarNew(item.line, var))

    def var_set(self, item: ir.VarSet) -> None:
        self.here.statements.append(ir.VarSet(item.line, self.vars[item.var], self.values[item.value]))

    def store(self, item: ir.Store) -> None:
        indices, value, line = self.mapped(item.indices), self.values[item.value], item.line
        guard: ir.Value | None = None
        if item.value.width:
            element = self.element(item.value.width, line)
            indices = self.shifted(indices, element, line)
            if item.value.width < self.lanes:
                guard = self.below(self.add("lane", i64, line=line), self.const(item.value.width, line), line)
            if item.count is not None:
                counted = self.below(element, self.values[item.count], line)
                guard = counted if guard is None else self.add("and", boolean, (guard, counted), line=line)
        elif not self.flow_varies and item.array not in self.private and not self.varying.intersection(item.indices):
            guard = self.add("equal", boolean, (self.add("lane", i64, line=line), self.const(0, line)), line=line)
        store = ir.Store(line, item.array, indices, value, item.scattered)
        if guard is None:
            self.here.statements.append(store)
        else:
            self.when_(guard, line, lambda: self.here.statements.append(store))

    def loop(self, item: ir.Lanes | ir.Range) -> None:
        start, line = self.values[item.start], item.line
        step = item.step if isinstance(item, ir.Range) else self.lanes
        if isinstance(item, ir.Lanes):
            start = self.add("add", i64, (start, self.add("lane", i64, line=line)), line=line)
        body = ir.Block(self.here)
        index = ir.Value("index", i64, (), 0, "range", body, line)
        self.values[item.index] = index
        self.here.statements.append(ir.Range(line, index, start, self.values[item.stop], step, body))
        self.flow(item, body, isinstance(item, ir.Lanes))

    def when(self, item: ir.When) -> None:
        statement = ir.When(item.line, self.values[item.condition], ir.Block(self.here))
        self.here.statements.append(statement)
        self.flow(item, statement.body, self.is_varying_when(item))

    def flow(self, item: ir.Lanes | ir.Range | ir.When, body: ir.Block, varies: bool) -> None:
        """Lower a nested block. Earlier accesses may still be pending after it, and those of one loop iteration in the next."""
        outer, self.flow_varies = self.flow_varies, self.flow_varies or varies
        before = self.accesses.copy()
        if isinstance(item, ir.Range) and not self.flow_varies:
            self.accesses.add(accesses_of(item, self.varying))
        self.block(item.body, body)
        self.accesses.join(before)
        self.flow_varies = outer

    def barrier(self, item: ir.Barrier) -> None:
        self.here.statements.append(ir.Barrier(item.line))
        self.accesses.clear()

    def prefetch(self, item: ir.Prefetch) -> None:
        """A hint that no SIMT target takes."""

    def tile(self, item: ir.Statement) -> None:
        """Copy a tile statement that the emitter lowers itself, with mapped operands."""
        changed: dict[str, Any] = {
            name: self.renamed(getattr(item, name)) for name in _TILE_OPERANDS if hasattr(item, name)
        }
        self.here.statements.append(replace(item, **changed))
        if isinstance(item, tile_ir.AsyncWait):
            self.accesses.clear()

    def renamed(self, old: tuple[ir.Value, ...] | ir.Value | None) -> tuple[ir.Value, ...] | ir.Value | None:
        if old is None:
            return None
        return self.mapped(old) if isinstance(old, tuple) else self.values[old]


def _private_scratch(kernel: ir.KernelIR, varies: frozenset[ir.Value]) -> set[ir.Array]:
    """Return small scratch arrays that are accessed only uniformly, in uniform control flow."""
    private = {a for a in kernel.scratch if prod(a.shape) <= MOST_PRIVATE}
    for access in _all_accesses(kernel.body, varies, False):
        if access.kind != "uniform":
            private.discard(access.array)
    return private


def _all_accesses(block: ir.Block, varies: frozenset[ir.Value], masked: bool) -> list[Access]:
    found: list[Access] = []
    for item in block.statements:
        body = getattr(item, "body", None)
        if body is None:
            direct = accesses_of(item, varies)
            found += [Access(a.array, a.is_store, "lanes") for a in direct if a.is_store] if masked else direct
            continue
        inner = isinstance(item, ir.Lanes) or (isinstance(item, ir.When) and item.condition in varies)
        found += _all_accesses(body, varies, masked or inner)
    return found


_TILE_OPERANDS = ("a_at", "b_at", "factor", "indices", "rows", "columns")
_STATEMENTS: dict[type, Callable[[_Lowering, Any], None]] = {
    ir.VarNew: _Lowering.var_new,
    ir.VarSet: _Lowering.var_set,
    ir.Store: _Lowering.store,
    ir.Lanes: _Lowering.loop,
    ir.Range: _Lowering.loop,
    ir.When: _Lowering.when,
    ir.Barrier: _Lowering.barrier,
    ir.Prefetch: _Lowering.prefetch,
    **dict.fromkeys(tile_ir.TILE_STATEMENTS, _Lowering.tile),
}
