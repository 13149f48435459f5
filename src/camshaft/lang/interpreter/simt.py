"""Interpret SIMT form: the threads of a workgroup, barrier by barrier, in shuffled order.

The threads are assigned to teams at random. A team runs alone, vectorized, to its next barrier or collective; when all teams
have arrived, they continue in another order. A missing barrier therefore shows in the results and as a reported race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import VerifyError
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.interpreter.interpret import grid_sizes, program_order
from camshaft.lang.interpreter.memory import Counts, Memory, bind
from camshaft.lang.interpreter.values import ValueMachine, halve, scan
from camshaft.lang.simt.form import SimtKernel

# What a team stops at: a barrier, or a collective with its operands.
Stop: TypeAlias = tuple[ir.Value | ir.Statement, tuple[Any, ...]]
MOST_TEAMS = 4
_COLLECTIVES: dict[str, Callable[[ir.Value, list[Any]], Any]] = {
    "reduce": lambda v, args: np.broadcast_to(halve(args[0][: v.attr[1]], v.attr[0]), args[0].shape),
    "broadcast": lambda v, args: np.broadcast_to(args[0][v.attr], args[0].shape),
    "scan": lambda v, args: scan(args[0], *v.attr),
    "shuffle": lambda v, args: args[0][args[1]],
}
_GARBAGE = 0xA7


def interpret_simt(
    kernel: SimtKernel,
    arrays: Sequence[np.ndarray],
    scalars: Sequence[int] = (),
    *,
    programs: range | Sequence[int] | None = None,
    seed: int = 0,
) -> None:
    """Run programs of the grid (all, unless listed) on C-contiguous `arrays`, in place, in a random order from `seed`.

    Raises VerifyError with the line for: an index out of bounds, a race between threads without a barrier between or between
    programs, a barrier or a collective that not all threads reach.
    """
    if any(isinstance(item, tile_ir.TILE_STATEMENTS) for item in traversal.walk(kernel.body)):
        raise VerifyError(
            f"kernel {kernel.name}: a SIMT form that keeps its tiles is for an emitter, not to be interpreted"
        )
    named = kernel.name, kernel.arrays, kernel.scalars, kernel.grid, kernel.shared, kernel.body, kernel.source_file
    plain = ir.KernelIR(*named)
    memories = bind(plain, arrays, Counts())
    group = _Workgroup(plain, kernel, memories, [np.int64(s) for s in scalars], np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        for program in program_order(grid_sizes(plain, scalars), programs, seed):
            group.program(program)


class _Workgroup:
    """Runs the programs in sequence: assigns threads to teams and runs the teams from stop to stop."""

    def __init__(
        self,
        plain: ir.KernelIR,
        kernel: SimtKernel,
        memories: dict[ir.Array, Memory],
        scalars: list[np.int64],
        random: np.random.Generator,
    ) -> None:
        self.plain, self.kernel, self.memories, self.scalars, self.random = plain, kernel, memories, scalars, random

    def program(self, index: tuple[int, ...]) -> None:
        for memory in self.memories.values():
            memory.start_program(index)
            if memory.array.scratch:
                memory.data.view(np.uint8)[:] = _GARBAGE
        teams = [_Team(self, np.sort(threads), index) for threads in self.deal()]
        runs = [team.block(self.kernel.body) for team in teams]
        answers: list[Any] = [None] * len(teams)
        while True:
            stops: list[Stop | None] = [None] * len(teams)
            for i in self.random.permutation(len(teams)):
                stops[i] = _advance(runs[i], answers[i])
            if all(stop is None for stop in stops):
                return
            answers = self.meet(teams, stops)

    def deal(self) -> list[Any]:
        n = self.kernel.lanes
        count = int(self.random.integers(1, min(n, MOST_TEAMS) + 1))
        return np.array_split(self.random.permutation(n), max(count, min(n, 2)))

    def meet(self, teams: list[_Team], stops: list[Stop | None]) -> list[Any]:
        """Return the result that each stopped team continues with. VerifyError unless all stopped at the same statement."""
        first = stops[0]
        if first is None or any(stop is None or stop[0] is not first[0] for stop in stops):
            line = next(stop[0].line for stop in stops if stop is not None)
            raise self.fail(line, "a barrier or a collective that not all threads reach")
        item = first[0]
        if not isinstance(item, ir.Value):
            for memory in self.memories.values():
                memory.barrier()
            return [None] * len(teams)
        whole = [self.gathered(teams, stops, i) for i in range(len(item.args))]
        if item.op == "shuffle" and not ((whole[1] >= 0) & (whole[1] < self.kernel.lanes)).all():
            raise self.fail(item.line, f"a shuffle from a lane outside 0..{self.kernel.lanes}")
        result = _COLLECTIVES[item.op](item, whole)
        return [result[team.threads] for team in teams]

    def gathered(self, teams: list[_Team], stops: list[Stop | None], operand: int) -> Any:
        parts = [(team.threads, stop[1][operand]) for team, stop in zip(teams, stops, strict=True) if stop is not None]
        whole = np.zeros(self.kernel.lanes, np.asarray(parts[0][1]).dtype)
        for threads, part in parts:
            whole[threads] = part
        return whole

    def fail(self, line: int, message: str) -> VerifyError:
        return VerifyError(f"kernel {self.kernel.name}, line {line}: {message}")


def _advance(run: Iterator[Stop], answer: Any) -> Stop | None:
    """Run a team to its next stop; None at its end. `answer` is the result of its last collective."""
    try:
        return next(run) if answer is None else run.send(answer)  # type: ignore[attr-defined]
    except StopIteration:
        return None


class _Team(ValueMachine):
    """Some threads of a workgroup, run as vectors with one element per thread in `threads`."""

    def __init__(self, group: _Workgroup, threads: Any, index: tuple[int, ...]) -> None:
        super().__init__(group.plain, len(threads), group.memories, group.scalars)
        self.threads, self.iota, self.index, self.group = threads, threads.astype(np.int64), index, group
        self.own = {a: np.zeros((len(threads), prod(a.shape)), a.dtype.numpy) for a in group.kernel.private}
        self.structural["load"], self.structural["atomic"] = self.read, self.change

    def block(self, block: ir.Block) -> Iterator[Stop]:
        """Run a block as a generator: yield at each barrier and collective, and receive the collective's result."""
        for item in block.statements:
            if isinstance(item, ir.Value):
                if item.op in _COLLECTIVES:
                    self.all_here(item.line)
                    self.env[item] = yield item, tuple(self.env[a] for a in item.args)
                else:
                    special = self.structural.get(item.op)
                    self.env[item] = self.instruction(item) if special is None else special(item)
            elif isinstance(item, ir.Barrier):
                self.all_here(item.line)
                yield item, ()
            elif isinstance(item, ir.Range):
                yield from self.loop(item)
            elif isinstance(item, ir.When):
                yield from self.branch(item)
            else:
                _STATEMENTS[type(item)](self, item)

    def all_here(self, line: int) -> None:
        if self.mask is not None and not self.mask.all():
            raise self.fail(line, "a barrier or a collective that not all threads reach")

    # --- flow ----------------------------------------------------------------------------------------------------
    def loop(self, item: ir.Range) -> Iterator[Stop]:
        outer, stop = self.mask, self.env[item.stop]
        index = self.each_lane(item.start)
        while True:
            active = index < stop if outer is None else outer & (index < stop)
            if not active.any():
                break
            self.mask, self.env[item.index] = active, index
            yield from self.block(item.body)
            index = index + item.step
        self.mask = outer

    def branch(self, item: ir.When) -> Iterator[Stop]:
        condition = self.each_lane(item.condition)
        outer, inner = self.mask, condition if self.mask is None else self.mask & condition
        if inner.any():
            self.mask = inner
            yield from self.block(item.body)
            self.mask = outer

    # --- variables and memory --------------------------------------------------------------------------------------
    def var_new(self, item: ir.VarNew) -> None:
        self.vars[item.var] = self.each_lane(item.var.init)

    def var_set(self, item: ir.VarSet) -> None:
        new, old = self.env[item.value], self.vars[item.var]
        self.vars[item.var] = self.spread(new if self.mask is None else np.where(self.mask, new, old))

    def places(self, array: ir.Array, indices: Sequence[ir.Value], line: int, active: Any) -> Any:
        """Return the flat element of each active thread, bounds-checked."""
        memory = self.memories.get(array) or Memory(self.kernel, array, self.own[array][0], Counts(), False)
        spread = [self.each_lane(i) for i in indices]
        return memory.place(line, spread, active)

    def read(self, value: ir.Value) -> Any:
        array, active = value.attr[0], self.active()
        flat = self.places(array, value.args, value.line, active)
        result = np.zeros(self.lanes, array.dtype.numpy)
        if array in self.own:
            result[active] = self.own[array][active, flat]
        else:
            memory = self.memories[array]
            memory.note_read(value.line, flat, self.threads[active])
            result[active] = memory.data[flat]
        return result.astype(value.dtype.numpy)

    def store(self, item: ir.Store) -> None:
        array, active = item.array, self.active()
        flat = self.places(array, item.indices, item.line, active)
        value = self.each_lane(item.value)[active].astype(array.dtype.numpy)
        if array in self.own:
            self.own[array][active, flat] = value
            return
        memory = self.memories[array]
        memory.one_lane_each(item.line, flat, self.threads[active])
        memory.note_write(item.line, flat, self.threads[active], None)
        memory.data[flat] = value

    def change(self, value: ir.Value) -> Any:
        """Run an atomic thread by thread in a shuffled order."""
        args = [self.each_lane(v) for v in value.args]
        old = np.zeros(self.lanes, value.attr[0].dtype.numpy)
        for i in self.group.random.permutation(self.active()):
            old[i] = self.atomic_of(value, [a[i] for a in args], int(self.threads[i]))
        return old


_STATEMENTS: dict[type, Callable[[_Team, Any], None]] = {
    ir.VarNew: _Team.var_new,
    ir.VarSet: _Team.var_set,
    ir.Store: _Team.store,
}
