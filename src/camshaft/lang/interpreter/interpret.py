"""Run Kernel IR in NumPy with every access checked: the reference meaning of kernels, and the race detector.

A uniform value is a NumPy scalar, a varying one an array of `lanes` elements, an explicit vector an array of its width. Memory
and its checks are in memory.py, values in values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.errors import VerifyError
from camshaft.lang import ir
from camshaft.lang.expand.tiles import expand_tiles
from camshaft.lang.interpreter.checks import Undefined, undefined_of
from camshaft.lang.interpreter.memory import Counts, Memory, bind
from camshaft.lang.interpreter.values import ValueMachine
from camshaft.lang.uniformity import varying


def interpret(
    kernel: ir.KernelIR,
    arrays: Sequence[np.ndarray],
    scalars: Sequence[int] = (),
    *,
    lanes: int,
    programs: range | Sequence[int] | None = None,
    shuffle_seed: int | None = None,
    subgroup_lanes: int | None = None,
) -> Counts:
    """Run programs of the kernel's grid (all, or those in `programs`) on C-contiguous `arrays`, which change in place.

    `shuffle_seed` shuffles the order of programs. `subgroup_lanes` is the result of k.subgroup_lanes (None: all lanes). Returns
    the counts of elements loaded and stored. Raises VerifyError with the kernel's line for: an index out of bounds, use of
    scratch that was never written, a race (between programs on an array, between lanes of one store, between lanes on an array
    or scratch without a barrier), a division by zero, a shift count not below the width; and for an array that does not fit.
    """
    subgroup = min(subgroup_lanes or lanes, lanes)
    if lanes < 1 or lanes & (lanes - 1):
        raise VerifyError(f"kernel {kernel.name}: {lanes} lanes; wanted a power of two")
    if len(scalars) != len(kernel.scalars):
        raise VerifyError(f"kernel {kernel.name}: {len(scalars)} scalars; wanted {', '.join(kernel.scalars)}")
    kernel, counts = expand_tiles(kernel, lanes), Counts()
    machine = _Machine(kernel, lanes, bind(kernel, arrays, counts), [np.int64(s) for s in scalars], subgroup)
    with np.errstate(all="ignore"):
        for program in program_order(grid_sizes(kernel, scalars), programs, shuffle_seed):
            machine.program(program)
            counts.programs += 1
    return counts


def grid_sizes(kernel: ir.KernelIR, scalars: Sequence[int]) -> tuple[int, ...]:
    """Return the number of programs along each axis for these run-time scalars."""
    named = dict(zip(kernel.scalars, scalars, strict=True))
    return tuple(d.size if d.scalar is None else -(-int(named[d.scalar]) // d.divisor) for d in kernel.grid)


def program_order(
    sizes: tuple[int, ...], programs: Iterable[int] | None, seed: int | None
) -> Iterable[tuple[int, ...]]:
    """Return the grid indices of the programs (all, or those listed), shuffled if `seed` is given."""
    total = int(np.prod(sizes))
    chosen = np.arange(total) if programs is None else np.array(list(programs), dtype=np.int64)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < total):
        raise VerifyError(f"programs {chosen.min()}..{chosen.max()} of a grid of {total}")
    if seed is not None:
        np.random.default_rng(seed).shuffle(chosen)
    return (tuple(int(i) for i in np.unravel_index(linear, sizes)) for linear in chosen)


class _Machine(ValueMachine):
    """Runs the statements of one program at a time."""

    def __init__(
        self, kernel: ir.KernelIR, lanes: int, memories: dict[ir.Array, Memory], scalars: list[np.int64], subgroup: int
    ) -> None:
        super().__init__(kernel, lanes, memories, scalars, subgroup)
        self.varying, self.varying_vars = varying(kernel)

    def program(self, index: tuple[int, ...]) -> None:
        """Run one program."""
        self.env, self.vars, self.undefined, self.mask = {}, {}, {}, None
        self.index = index
        for memory in self.memories.values():
            memory.start_program(index)
        self.block(self.kernel.body)

    def block(self, block: ir.Block) -> None:
        env, value_of, instruction = self.env, self.structural, self.instruction
        for item in block.statements:
            if isinstance(item, ir.Value):
                special = value_of.get(item.op)
                env[item] = instruction(item) if special is None else special(item)
                if self.undefined:
                    self.spread_undefined(item)
            else:
                _STATEMENTS[type(item)](self, item)

    # --- variables -----------------------------------------------------------------------------------------------
    def broadcast(self, var: ir.Var, value: Any) -> Any:
        width = var.width or (self.lanes if var in self.varying_vars else 0)
        return np.broadcast_to(value, (width,)) if width and np.ndim(value) == 0 else value

    def var_new(self, item: ir.VarNew) -> None:
        self.vars[item.var] = self.broadcast(item.var, self.env[item.var.init])
        self.set_undefined(item.var, self.undefined.get(item.var.init))

    def var_set(self, item: ir.VarSet) -> None:
        new = self.broadcast(item.var, self.env[item.value])
        if self.mask is not None and item.var in self.varying_vars:
            new = np.where(self.mask, new, self.vars[item.var])
        self.vars[item.var] = new
        if self.undefined:
            self.set_undefined(item.var, self.undefined_in_var(item))

    def undefined_in_var(self, item: ir.VarSet) -> Undefined | None:
        """Return which elements of a variable are undefined after an assignment; masked lanes keep their old state."""
        new, old = self.undefined.get(item.value), self.undefined.get(item.var)
        if self.mask is None or item.var not in self.varying_vars or (new is None and old is None):
            return new
        parts = [np.False_ if h is None else h.where for h in (new, old)]
        return undefined_of(np.where(self.mask, *parts), (new or old or Undefined(False, "")).origin)

    # --- memory --------------------------------------------------------------------------------------------------
    def store(self, item: ir.Store) -> None:
        memory, value = self.memories[item.array], self.env[item.value]
        self.whole((*item.indices, *((item.count,) if item.count is not None else ())), item.line)
        undefined = self.undefined.get(item.value)
        indices = [self.env[i] for i in item.indices]
        if item.value.width:
            count = item.value.width if item.count is None else int(self.env[item.count])
            memory.store_vector(item.line, indices, value, min(count, item.value.width), undefined)
        else:
            memory.store(item.line, indices, value, self.mask, self.lanes, undefined)

    def prefetch(self, item: ir.Prefetch) -> None:
        """Do nothing: a prefetch reads nothing, so there is nothing to check."""

    def barrier(self, item: ir.Barrier) -> None:
        for memory in self.memories.values():
            memory.barrier()

    # --- flow ----------------------------------------------------------------------------------------------------
    def lanes_loop(self, item: ir.Lanes) -> None:
        self.whole((item.start, item.stop), item.line)
        start, stop, outer = int(self.env[item.start]), int(self.env[item.stop]), self.mask
        for first in range(start, stop, self.lanes):
            if stop - first < self.lanes:
                ragged = self.iota < stop - first
                self.mask = ragged if outer is None else outer & ragged
            self.env[item.index] = np.int64(first) + self.iota
            self.block(item.body)
        self.mask = outer

    def range_loop(self, item: ir.Range) -> None:
        self.whole((item.start, item.stop), item.line)
        for i in range(int(self.env[item.start]), int(self.env[item.stop]), item.step):
            self.env[item.index] = np.int64(i)
            self.block(item.body)

    def when(self, item: ir.When) -> None:
        self.whole((item.condition,), item.line)
        condition, outer = self.env[item.condition], self.mask
        if np.ndim(condition) == 0:
            if condition:
                self.block(item.body)
            return
        inner = condition if outer is None else outer & condition
        if inner.any():
            self.mask = inner
            self.block(item.body)
            self.mask = outer


_STATEMENTS: dict[type, Callable[[_Machine, Any], None]] = {
    ir.VarNew: _Machine.var_new,
    ir.VarSet: _Machine.var_set,
    ir.Store: _Machine.store,
    ir.Lanes: _Machine.lanes_loop,
    ir.Range: _Machine.range_loop,
    ir.When: _Machine.when,
    ir.Barrier: _Machine.barrier,
    ir.Prefetch: _Machine.prefetch,
}
