"""Kernel IR as text, one value or statement a line, for people: what CAMSHAFT_DUMP writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from camshaft.lang import ir


def listing(kernel: ir.KernelIR) -> str:
    """The kernel: its arrays, scalars and grid, then its body; values are numbered, and every line ends with its source line."""
    lister = _Lister()
    lines = [f"kernel {kernel.name}  # {kernel.source_file}"]
    for array in (*kernel.arrays, *kernel.scratch):
        word = "scratch" if array.scratch else "out" if array.writable else "in"
        lines.append(f"  {word} {array.name}: {array.dtype}{list(array.shape)}")
    lines += [f"  scalar {name}" for name in kernel.scalars]
    lines += [f"  grid {axis}: {_grid(dim)}" for axis, dim in enumerate(kernel.grid)]
    return "\n".join([*lines, *lister.block(kernel.body, 1)]) + "\n"


def _grid(dim: ir.GridDim) -> str:
    return str(dim.size) if dim.scalar is None else f"ceil({dim.scalar} / {dim.divisor})"


class _Lister:
    """Names of values, variables and tiles, given as they appear."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._held: list[object] = []  # so that no id is used twice

    def name(self, thing: object, letter: str = "v") -> str:
        if id(thing) not in self._names:
            self._names[id(thing)] = f"{letter}{len(self._names)}"
            self._held.append(thing)
        return self._names[id(thing)]

    def block(self, block: ir.Block, depth: int) -> Iterator[str]:
        pad = "  " * depth
        for item in block.statements:
            text = self.value(item) if isinstance(item, ir.Value) else self.statement(item)
            yield f"{pad}{text}  # line {item.line}"
            body = getattr(item, "body", None)
            if body is not None:
                yield from self.block(body, depth + 1)

    def value(self, v: ir.Value) -> str:
        width = f"x{v.width}" if v.width else ""
        args = [self.name(a) for a in v.args] + ([] if v.attr is None else [self.attribute(v.attr)])
        return f"{self.name(v)}: {v.dtype}{width} = {v.op}({', '.join(args)})"

    def attribute(self, attr: Any) -> str:
        if isinstance(attr, (tuple, list)):
            return "(" + ", ".join(self.attribute(a) for a in attr) + ")"
        if isinstance(attr, ir.Array):
            return attr.name
        if isinstance(attr, (ir.Var, ir.Tile)):
            return self.name(attr, "m")
        return self.name(attr) if isinstance(attr, ir.Value) else str(attr)

    def statement(self, s: ir.Statement) -> str:
        return _STATEMENTS[type(s)](self, s)

    def at(self, array: ir.Array, indices: tuple[ir.Value, ...]) -> str:
        return f"{array.name}[{', '.join(self.name(i) for i in indices)}]"

    def maybe(self, word: str, value: ir.Value | None) -> str:
        return "" if value is None else f" {word} {self.name(value)}"


def _copy(t: _Lister, s: Any) -> str:
    ends = t.maybe("rows", s.rows) + t.maybe("columns", s.columns)
    return f"copy {s.destination.name} = {t.at(s.source, s.indices)}{ends}"


def _tile_new(t: _Lister, s: Any) -> str:
    words = f" of {s.tile.dtype} by words" if s.tile.is_words else ""
    return f"tile {t.name(s.tile, 'm')} = 0 [{s.tile.rows}, {s.tile.columns}]{words}"


def _tile_store(t: _Lister, s: Any) -> str:
    return f"{t.at(s.array, s.indices)} = {t.name(s.tile, 'm')}{t.maybe('rows', s.rows)}{t.maybe('columns', s.columns)}"


def _mma(t: _Lister, s: Any) -> str:
    sides = f"{t.at(s.a, s.a_at)}, {t.at(s.b, s.b_at)}"
    return f"mma {t.name(s.tile, 'm')} += {sides} depth {s.depth}{' transposed' if s.transposed else ''}"


_STATEMENTS: dict[type[ir.Statement], Callable[[_Lister, Any], str]] = {
    ir.VarNew: lambda t, s: f"var {t.name(s.var, 'm')} = {t.name(s.var.init)}",
    ir.VarSet: lambda t, s: f"{t.name(s.var, 'm')} = {t.name(s.value)}",
    ir.Store: lambda t, s: f"{t.at(s.array, s.indices)} = {t.name(s.value)}{t.maybe('count', s.count)}",
    ir.Lanes: lambda t, s: f"lanes {t.name(s.index)} in {t.name(s.start)}..{t.name(s.stop)}:",
    ir.Range: lambda t, s: f"range {t.name(s.index)} in {t.name(s.start)}..{t.name(s.stop)} step {s.step}:",
    ir.When: lambda t, s: f"when {t.name(s.condition)}:",
    ir.Barrier: lambda t, s: "barrier",
    ir.Prefetch: lambda t, s: f"prefetch {t.at(s.array, s.indices)}",
    ir.TileNew: _tile_new,
    ir.TileMma: _mma,
    ir.TileScale: lambda t, s: f"{t.name(s.tile, 'm')} *= {t.name(s.factor)}",
    ir.TileStore: _tile_store,
    ir.AsyncCopy: _copy,
    ir.AsyncWait: lambda t, s: "wait for copies",
}
