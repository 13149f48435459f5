"""Scans of a row: in groups of elements, by steps that combine element i with i - 1, i - 2, i - 4 and so on.

A group has as many elements as 512 bits have accumulators. BLOCK groups follow each other, then comes the carry of all blocks
before. The lanes are the elements of a group; for targets of one lane the same steps are written out, so results are the same
bits for any lane count. But where elements are half as wide as their sum and registers have 512 bits, a group has SHARE times as
many: a lane first adds SHARE elements in order, and the steps add up the lanes' sums. quads.py sums floats on CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from camshaft.dtypes import DTYPES, DType, i32, u32, u64
from camshaft.lang import Array, Tracer, ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.kernels.bits import ordered
from camshaft.ops.reduce.frame import combine, narrowed, start_of

# Groups of a block, where no lane shares: the chain of carries takes one addition for each block.
BLOCK = 4
# Elements that a lane adds in order: 1.4 operations for each of 32 bits summed in 64, 1.8 by steps alone.
SHARE = 4
ORDERED = ("max", "min")
# The elements of a group, one value per lane or all of its values: each with the fold of the lanes before it, where lanes share.
Group: TypeAlias = list[tuple[ir.Value, ir.Value | None]]


def width_of(dtype: DType) -> int:
    """Elements of a group, by the accumulator's dtype."""
    return 512 // dtype.bits


def share_of(kind: str, given: DType, dtype: DType, lanes: int) -> int:
    """Elements that a lane adds in order, of a CPU with registers of `lanes` f32: SHARE where they move between lanes at half
    the accumulator's width. With AVX2, whose moves take more operations, sums were half as fast so."""
    return SHARE if kind == "sum" and given.bits * 2 <= dtype.bits and lanes == 16 else 1


def wide(k: Tracer, value: ir.Value, dtype: DType, kind: str) -> ir.Value:
    """A loaded element in the accumulator's dtype; integers wrap."""
    if value.dtype.is_float and not dtype.is_float:
        return _key(k, value, dtype, kind)
    if dtype in (u32, u64) and value.dtype.kind == "i":
        return k.bitcast(value.to(DTYPES[f"i{dtype.bits}"]), dtype)
    return value.to(dtype)


def stored(k: Tracer, value: ir.Value, dtype: DType) -> ir.Value:
    """An accumulator's value in the result's dtype."""
    if dtype.is_float and not value.dtype.is_float:
        most = np.iinfo(value.dtype.numpy).max
        return k.bitcast(value ^ ((value >> (value.dtype.bits - 1)) & most), ir.arithmetic_dtype(dtype))
    return k.bitcast(value, i32) if value.dtype == u32 and dtype == i32 else narrowed(k, value, dtype)


def _key(k: Tracer, value: ir.Value, dtype: DType, kind: str) -> ir.Value:
    """A float's integer in the order of floats, with every NaN above them, or below for a minimum: most CPUs compare integers
    in one instruction, and floats in several where NaN counts."""
    most, exponent = int(np.iinfo(dtype.numpy).max), {32: 8, 64: 11}[dtype.bits]
    infinity = ((1 << exponent) - 1) << (dtype.bits - 1 - exponent)
    quiet = infinity | infinity >> 1 & ~infinity
    nan = quiet if kind == "max" else ~quiet
    return k.select((k.bitcast(value, dtype) & most) > infinity, k.const(nan, dtype), ordered(k, value, dtype))


@dataclass(frozen=True)
class RowScan:
    """Scans row `row` of x into `out` from a carry. `lanes`: as many as a group has elements, or 1 for steps that are written
    out. `share`: elements that a lane adds in order, as of `share_of`. `streams`: whether results are too many to stay in a
    cache."""

    k: Tracer
    x: Array
    out: Array
    row: ir.Value
    carry: Variable
    kind: str
    reverse: bool
    lanes: int
    share: int
    streams: bool = False

    @property
    def offsets(self) -> list[ir.Operand]:
        """Where the values of a group are, from its first column."""
        return [self.k.lane()] if self.lanes > 1 else list(range(self.width))

    @property
    def folds(self) -> int:
        """Folds of a group that the steps combine."""
        return width_of(self.carry.ir.dtype)

    @property
    def width(self) -> int:
        """Elements of a group."""
        return self.folds * self.share

    def _blocks(self, first: ir.Operand, stop: ir.Operand) -> Iterator[tuple[list[ir.Value], ir.Operand | None]]:
        """The first columns of the groups of each block, in the order of the scan, and None, or `stop` where it ends within
        the group: whole blocks, then a group each, of which only the last may be partial, of a reversed scan too."""
        k, n_groups = self.k, BLOCK // self.share
        size = self.width * n_groups
        blocks = (stop - first) // size
        groups_at = first + blocks * size
        groups = (stop - groups_at) // self.width
        kinds = [
            (first, blocks, n_groups, None),
            *([(groups_at, groups, 1, None)] if n_groups > 1 else []),
            (groups_at + groups * self.width, None, 1, stop),
        ]
        for start, count, n, end in kinds[::-1] if self.reverse else kinds:
            if count is None:
                for at in k.range(start, stop, self.width):
                    yield [at], end
                continue
            for j in k.range(count):
                at = start + ((count - 1 - j) if self.reverse else j) * (self.width * n)
                yield [at + i * self.width for i in (range(n)[::-1] if self.reverse else range(n))], end

    def part(self, first: ir.Operand, stop: ir.Operand, total: Variable | None = None) -> None:
        """Scans the columns from `first` to `stop`; adds their fold to `total`."""
        for starts, end in self._blocks(first, stop):
            groups = self._scanned(starts, end)
            before, last = self.carry.value, self._last(groups[-1])
            for each in (self.carry, total):
                if each is not None:
                    each.set(combine(self.k, self.kind, each.value, last))
            self._store(starts, groups, before, end)

    def total(self, first: ir.Value, stop: ir.Value) -> ir.Value:
        """The fold of the columns from `first` to `stop`, in the order of `part`."""
        k, dtype = self.k, self.carry.ir.dtype
        total = k.var(start_of(self.kind, dtype), dtype)
        for starts, end in self._blocks(first, stop):
            total.set(combine(k, self.kind, total.value, self._last(self._scanned(starts, end)[-1])))
        return total.value

    def _scanned(self, starts: list[ir.Value], stop: ir.Operand | None) -> list[Group]:
        """The folds of a block up to each element. Elements from `stop` on (None: there are none) do not count."""
        found = [self._prefixes(self._loaded(start, stop)) for start in starts]
        for i in range(1, len(found)):
            last = self._last(found[i - 1])
            found[i] = [(self._after(last, *pair), None) for pair in found[i]]
        return found

    def _after(self, before: ir.Value | None, value: ir.Value, near: ir.Value | None) -> ir.Value:
        """A value after what is before its group, and after the fold of the lanes before."""
        for fold in (near, before) if before is None or near is None else (combine(self.k, self.kind, before, near),):
            value = value if fold is None else combine(self.k, self.kind, fold, value)
        return value

    def _last(self, group: Group) -> ir.Value:
        """The fold of a whole group, of its prefixes."""
        last = 0 if self.reverse else self.width - 1
        return (
            self._after(None, *group[last]) if self.lanes == 1 else self.k.broadcast(self._after(None, *group[0]), last)
        )

    def _store(self, starts: list[ir.Value], groups: list[Group], before: ir.Value, stop: ir.Operand | None) -> None:
        """Stores the folds of a block and of all before it."""
        k = self.k
        for first, group in zip(starts, groups, strict=True):
            for i, pair in zip(self.offsets, group, strict=True):
                result = self._in_row(stored(k, self._after(before, *pair), self.out.dtype))
                if stop is None:
                    k.store(self.out, (self.row, first + i), result, streamed=self.streams)
                    continue
                with k.when(first + i < stop):
                    self.out[self.row, first + i] = result

    def _loaded(self, first: ir.Value, stop: ir.Operand | None) -> list[ir.Value]:
        k, dtype = self.k, self.carry.ir.dtype
        group = []
        for i in self.offsets:
            if stop is None:
                group.append(wide(k, self._by_lane(self.x[self.row, first + i]), dtype, self.kind))
                continue
            value = k.var(start_of(self.kind, dtype), dtype)
            with k.when(first + i < stop):
                value.set(wide(k, self.x[self.row, first + i], dtype, self.kind))
            group.append(self._by_lane(value.value))
        return group

    def _by_lane(self, value: ir.Value) -> ir.Value:
        """The elements of a row, `share` of them in the lanes i, i + folds and so on."""
        if self.share == 1:
            return value
        lane = self.k.lane()
        return self.k.shuffle(value, lane % self.folds * self.share + lane // self.folds)

    def _in_row(self, value: ir.Value) -> ir.Value:
        """The inverse of `_by_lane`."""
        if self.share == 1:
            return value
        lane = self.k.lane()
        return self.k.shuffle(value, lane % self.share * self.folds + lane // self.share)

    def _prefixes(self, values: list[ir.Value]) -> Group:
        """Element i combined with all before it in the group, or after it if `reverse`."""
        return [self._of_lanes(values[0])] if self.lanes > 1 else [(value, None) for value in self._of_list(values)]

    def _of_lanes(self, value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        k, n = self.k, self.folds
        lane, turns = k.lane(), range(1, self.share)
        for turn in [self.share - 1 - i for i in turns] if self.reverse else turns:
            before = k.shuffle(value, (lane + (n if self.reverse else -n)) % self.width)
            value = k.select(lane // n == turn, combine(k, self.kind, before, value), value)
        folds = value
        if self.share > 1:
            folds = self._near(k.shuffle(value, lane % n + (0 if self.reverse else self.width - n)), 1)
        for step in (1 << i for i in range(n.bit_length() - 1)):
            folds = combine(k, self.kind, self._near(folds, step), folds)
        return (folds, None) if self.share == 1 else (value, folds)

    def _near(self, value: ir.Value, step: int) -> ir.Value:
        """The value `step` folds before, or after if `reverse`; where there is none, what leaves a fold as it is."""
        k, lane = self.k, self.k.lane()
        at = lane % self.folds
        has = at < self.folds - step if self.reverse else at >= step
        near = k.shuffle(value, k.select(has, lane + (step if self.reverse else -step), lane))
        if self.kind in ORDERED:
            return near
        return k.select(has, near, k.const(-0.0 if value.dtype.is_float else 0, value.dtype))

    def _of_list(self, values: list[ir.Value]) -> list[ir.Value]:
        """As `_of_lanes`, written out."""
        values = values[::-1] if self.reverse else values
        for step in (1 << i for i in range(self.folds.bit_length() - 1)):
            values = [combine(self.k, self.kind, values[i - step], v) if i >= step else v for i, v in enumerate(values)]
        return values[::-1] if self.reverse else values
