"""Scans along rows by pairs of neighbours, without transposing: 29 operations for the sums of 64 elements.

In EACH registers of elements, each second lane is folded with the one before it. Of these pairs, shuffles within 128 bits pack
the first and the second of every EACH neighbours into a register each. The fold of those two is the register of totals, and the
steps over it follow. What is before each pair, shuffled back, is folded with the registers. Loads, steps and results of three
groups are interleaved, of several rows if these are whole groups: one group after the other takes a quarter longer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from camshaft.dtypes import DType, f32, i64
from camshaft.lang import ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.scan.quads import EACH, QuadScan


@dataclass(frozen=True)
class Group:
    """`near`: EACH registers of elements, each second one folded with the one before. `first`: the first pair of every EACH
    neighbours; `totals`: the fold of all EACH."""

    near: Sequence[ir.Value]
    first: ir.Value
    totals: ir.Value

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """All of them; `_groups` is the inverse of two groups'."""
        return (*self.near, self.first, self.totals)


@dataclass(frozen=True)
class PairScan(QuadScan):
    """As a QuadScan. `lanes`: those of a register. A check is a variable that tells whether to scan again."""

    @property
    def group(self) -> int:
        return EACH * self.lanes

    @property
    @abstractmethod
    def identity(self) -> float | int:
        """What leaves a fold of lanes as it is."""

    @property
    @abstractmethod
    def start(self) -> ir.Value:
        """The carry before a row."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """The dtype of lanes."""

    @abstractmethod
    def note(self, noted: Variable, carry: ir.Value) -> None:
        """Makes `noted`, which began with `start`, a carry that fails if this one does."""

    @abstractmethod
    def fails(self, check: Variable, carry: ir.Value) -> ir.Value:
        """Whether a check failed, or the carry is one with which it would."""

    def zeros(self) -> Variable:
        """A variable of zeros, such as a new check."""
        return self.k.var(self.k.lane().to(self.dtype) * 0)

    def spoils(self, check: Variable, total: ir.Value) -> ir.Value:
        """Whether a part's total must be made once more."""
        return self.fails(check, total)

    @abstractmethod
    def pairs(self, at: ir.Value, stop: ir.Operand | None, check: Variable) -> ir.Value:
        """The elements of a register, each second one folded with the one before it in the order of the scan."""

    @abstractmethod
    def fold(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The fold of lanes."""

    @abstractmethod
    def put(self, at: ir.Value, stop: ir.Operand | None, group: Group, before: ir.Value, check: Variable) -> None:
        """Stores a group, given what is before each EACH neighbours."""

    @abstractmethod
    def advance(self, carry: Variable, last: ir.Value) -> None:
        """Folds the carry with a group's last result."""

    def part(self, first: ir.Operand, stop: ir.Operand, total: Variable | None = None) -> None:
        start, check = self.carry.value, self.zeros()
        self._scanned(first, stop, Results(self, (self.carry,) if total is None else (self.carry, total), check))
        self._again(self.fails(check, self.carry.value), first, stop, self.carry, start, writes=True)
        if total is not None:
            self._again(self.spoils(check, total.value), first, stop, total, self.start, writes=False)

    def rows(self, first: ir.Value, stop: ir.Value, dim: ir.Operand) -> None:
        """Scans the rows of `dim` elements from `first` to `stop`, which lie in a row of x; `dim` is a multiple of a group."""
        k, check = self.k, self.zeros()
        starts = _Starts(k.number(dim, i64) // self.group, k.var(0, i64), k.var(self.start))
        self._scanned(first * dim, stop * dim, Results(self, (self.carry,), check, starts))
        self.note(starts.noted, self.carry.value)
        with k.when(self.fails(check, starts.noted.value)):
            for row in k.range(first, stop):
                self.carry.set(self.start)
                at, end, check = row * dim, row * dim + dim, self.zeros()
                self.one_by_one(at, end, Results(self, (self.carry,), check))
                self._again(self.fails(check, self.carry.value), at, end, self.carry, self.start, writes=True)

    def total(self, first: ir.Value, stop: ir.Value) -> ir.Value:
        total, check = self.k.var(self.start), self.zeros()
        self.folded(first, stop, total, check)
        self._again(self.spoils(check, total.value), first, stop, total, self.start, writes=False)
        return total.value

    def folded(self, first: ir.Operand, stop: ir.Operand, carry: Variable, check: Variable) -> None:
        """Folds a carry with the columns, without results."""
        for at, end in self._groups(first, stop):
            self.advance(carry, self.last(self._finished(self._begun(self._loaded_group(at, end, check))).totals))

    def _scanned(self, first: ir.Operand, stop: ir.Operand, out: Results) -> None:
        """Whole groups, if there are two or more, and the others."""
        k = self.k
        whole = k.number((stop - first) // self.group, i64)
        several = k.select(whole >= 2, whole, 0)
        rest = first + several * self.group
        for ends in (True, False) if self.reverse else (False, True):
            if not ends:
                with k.when(several >= 2):
                    self._three_at_once(first, several, out)
                continue
            self.one_by_one(rest, stop, out)

    def one_by_one(self, first: ir.Operand, stop: ir.Operand, out: Results) -> None:
        """Groups, of which the last one may be partial."""
        count = (stop - first + (self.group - 1)) // self.group
        for j in self.k.range(count):
            at = first + ((count - 1 - j) if self.reverse else j) * self.group
            out.put(at, stop, self._finished(self._begun(self._loaded_group(at, stop, out.check))))

    def _three_at_once(self, first: ir.Operand, whole: ir.Value, out: Results) -> None:
        """`whole` groups, two or more: results of one, later steps of the next, loads and first steps of that after it."""
        k, size = self.k, self.group
        start, turn = k.number(first, i64), size
        if self.reverse:
            start, turn = start + (whole - 1) * size, -size
        held = [self.zeros() for _ in range(2 * (EACH + 2))]
        one, two = (self._begun(self._loaded_group(start + i * turn, None, out.check)) for i in range(2))
        _set(held, (*self._finished(one).values, *two.values))
        for j in k.range(whole - 2):
            coming = self._loaded_group(start + (j + 2) * turn, None, out.check)
            now, then = _groups(held)
            then, coming = self._finished(then), self._begun(coming)
            out.put(start + j * turn, None, now)
            _set(held, (*then.values, *coming.values))
        now, then = _groups(held)
        for i, group in ((2, now), (1, self._finished(then))):
            out.put(start + (whole - i) * turn, None, group)

    def _again(
        self, fails: ir.Value, first: ir.Operand, stop: ir.Operand, carry: Variable, start: ir.Operand, writes: bool
    ) -> None:
        """Folds `start` with the columns once more, if a check fails."""
        with self.k.when(fails):
            carry.set(start)
            self._in_order(first, stop, (carry,), writes)

    def _loaded_group(self, at: ir.Value, stop: ir.Operand | None, check: Variable) -> Group:
        near = [self.pairs(at + i * self.lanes, stop, check) for i in range(EACH)]
        a, b = (self.packed(near[i], near[i + 1], 0 if self.reverse else 1, 2) for i in (0, 2))
        first, second = (self.packed(a, b, at, 2) for at in ((1, 0) if self.reverse else (0, 1)))
        return Group(near, first, self.fold(first, second))

    def packed(self, a: ir.Value, b: ir.Value, first: int, step: int) -> ir.Value:
        """Lanes `first` and `first + step` of every block of a, then those of b."""
        lane = self.k.lane()
        at = lane // EACH * EACH + (lane & 1) * step + first
        return self._kept(self.k.select(lane % EACH < 2, self.k.shuffle(a, at), self.k.shuffle(b, at)))

    def spread(self, before: ir.Value, first: ir.Value, number: int) -> ir.Value:
        """What is before each pair of register `number`: before EACH neighbours, and with their first pair."""
        below, above = (first, before) if self.reverse else (before, first)
        return self.packed(below, above, number, 0)

    def _kept(self, moved: ir.Value) -> ir.Value:
        """Not merged with other shuffles into more."""
        k = self.k
        return k.bitcast(k.rounded(k.bitcast(moved, f32)), moved.dtype)

    def _begun(self, group: Group) -> Group:
        """With the first steps over the totals."""
        return replace(group, totals=self._steps(group.totals, EACH))

    def _finished(self, group: Group) -> Group:
        """Of a group with the first steps: the fold before each EACH in its totals, in place of the first's that of all."""
        k, n = self.k, self._number()
        folds = self._steps(group.totals, self.folds, EACH)
        turned = k.shuffle(folds, self._place((n + (1 if self.reverse else self.folds - 1)) % self.folds))
        return replace(group, totals=self._kept(turned))

    def before(self, turned: ir.Value) -> ir.Value:
        """The fold before each EACH neighbours, of a finished group's totals."""
        number = self._number()
        return self.k.select(number < self.folds - 1 if self.reverse else number >= 1, turned, self.identity)

    def last(self, turned: ir.Value) -> ir.Value:
        return self.k.broadcast(turned, self.lanes - 1 if self.reverse else 0)

    def _place(self, number: ir.Value) -> ir.Value:
        blocks = self.lanes // EACH
        return number % blocks * EACH + number // blocks

    def _number(self) -> ir.Value:
        lane = self.k.lane()
        return lane % EACH * (self.lanes // EACH) + lane // EACH


@dataclass(frozen=True)
class _Starts:
    """Rows of `groups` that follow each other; `past`: how many groups of a row there were; `noted`: what rows ended with."""

    groups: ir.Value
    past: Variable
    noted: Variable


@dataclass(frozen=True)
class Results:
    """Stores groups and folds each of `carries` with them, of which the first counts."""

    scan: PairScan
    carries: tuple[Variable, ...]
    check: Variable
    starts: _Starts | None = None

    def put(self, at: ir.Value, stop: ir.Operand | None, group: Group) -> None:
        scan, k, carry = self.scan, self.scan.k, self.carries[0]
        if self.starts is not None:
            past = self.starts.past
            scan.note(self.starts.noted, carry.value)
            carry.set(k.select(past.value < 1, scan.start, carry.value))
            past.set(k.select(past.value + 1 < self.starts.groups, past.value + 1, 0))
        value, last = carry.value.to(scan.dtype), scan.last(group.totals)
        for each in self.carries:
            scan.advance(each, last)
        scan.put(at, stop, group, scan.fold(scan.before(group.totals), value), self.check)


def _groups(held: Sequence[Variable]) -> list[Group]:
    values = [each.value for each in held]
    return [Group(values[i : i + EACH], *values[i + EACH : i + EACH + 2]) for i in (0, EACH + 2)]


def _set(held: Sequence[Variable], values: Sequence[ir.Value]) -> None:
    for variable, value in zip(held, values, strict=True):
        variable.set(value)
