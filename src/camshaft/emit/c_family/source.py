"""Names, lines and the formula that emitted text takes from a kernel's Python source."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from camshaft.lang import ir, traversal


@dataclass(frozen=True)
class SourceNames:
    """Names by line of a source file. `assigned`: (first line of the assignment, names assigned to); `loops`: a `for`'s name."""

    assigned: dict[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    loops: dict[int, str] = field(default_factory=dict)


@functools.cache
def source_names(path: str) -> SourceNames:
    """The names in a Python file; none if it cannot be read (a kernel typed at a prompt)."""
    text = "".join(linecache.getlines(path))
    names = SourceNames()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _note(names, node, node.targets[0])
        elif isinstance(node, ast.AnnAssign):
            _note(names, node, node.target)
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            names.loops[node.lineno] = node.target.id
    return names


def _note(names: SourceNames, node: ast.Assign | ast.AnnAssign, target: ast.expr) -> None:
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    if all(isinstance(part, ast.Name) for part in parts):
        assigned = tuple(part.id for part in parts if isinstance(part, ast.Name))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            names.assigned[line] = (node.lineno, assigned)


def source_line(path: str, line: int) -> str:
    """Return a source line that is safe in a comment: ASCII, without a final backslash, which would join the next line in C."""
    text = linecache.getline(path, line).strip().rstrip("\\").rstrip()
    return text.encode("ascii", "replace").decode()


@functools.cache
def formula(path: str, name: str) -> tuple[str, ...]:
    """Return the comments at the start of a kernel function, which give its formula."""
    lines = linecache.getlines(path)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            texts = [lines[i].strip() for i in range(_signature_end(node), node.body[0].lineno - 1)]
            return tuple(t.lstrip("# ").encode("ascii", "replace").decode() for t in texts if t.startswith("#"))
    return ()


def _signature_end(node: ast.FunctionDef) -> int:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return max([node.lineno, *(a.end_lineno or 0 for a in every)])


def names_of(body: ir.Block, path: str) -> dict[ir.Value | ir.Var, str]:
    """Map values and variables to their names in the source where these are unambiguous. Several may share a name."""
    names, found = source_names(path), dict[ir.Value | ir.Var, str]()
    for block in _blocks(body):
        for group, targets in _groups(block, names):
            _name_group(group, targets, found)
        for item in block.statements:
            if isinstance(item, (ir.Range, ir.Lanes)) and item.line in names.loops:
                found[item.index] = names.loops[item.line]
    return found


def name_of_array(array: ir.Array, path: str) -> str:
    """Return the source's name of scratch if the assignment has one target, else the array's own name."""
    _, targets = source_names(path).assigned.get(array.line, (0, ())) if array.scratch else (0, ())
    return targets[0] if len(targets) == 1 else array.name


def _blocks(block: ir.Block) -> Iterator[ir.Block]:
    yield block
    for item in block.statements:
        inner = getattr(item, "body", None)
        if inner is not None:
            yield from _blocks(inner)


def _groups(block: ir.Block, names: SourceNames) -> Iterator[tuple[list[ir.Value | ir.VarNew], tuple[str, ...]]]:
    """Group consecutive items that one assignment made."""
    group: list[ir.Value | ir.VarNew] = []
    current: tuple[int, tuple[str, ...]] | None = None
    for item in block.statements:
        assigned = names.assigned.get(item.line)
        if assigned != current:
            if current is not None:
                yield group, current[1]
            group, current = [], assigned
        if isinstance(item, (ir.Value, ir.VarNew)):
            group.append(item)
    if current is not None:
        yield group, current[1]


def _name_group(
    group: Sequence[ir.Value | ir.VarNew], targets: tuple[str, ...], found: dict[ir.Value | ir.Var, str]
) -> None:
    """Name, in order, the variables of an assignment and its values that it does not use itself."""
    used = {arg for item in group for arg in traversal.operands(item)}
    made = [item for item in group if isinstance(item, ir.VarNew) or item not in used]
    variables = [item for item in made if isinstance(item, ir.VarNew)]
    if variables and len(made) != len(targets):
        made = list(variables)
    keys = [item.var if isinstance(item, ir.VarNew) else item for item in made]
    if len(targets) == 1:
        found.update(dict.fromkeys(keys, targets[0]))
    elif len(targets) == len(keys):
        found.update(zip(keys, targets, strict=True))


class Names:
    """Allocates names, unique in their scope and not reserved by the dialect."""

    def __init__(self, reserved: frozenset[str]) -> None:
        self.reserved = set(reserved)
        self.taken: list[str] = []

    def new(self, name: str, *, everywhere: bool = False) -> str:
        """Return `name`, with a number appended if it is taken. `everywhere`: reserve it in the whole text."""
        plain = name.strip("_") or "v"
        plain = plain if plain.isascii() else "v"
        name, count = plain, 0
        while name in self.taken or name in self.reserved:
            count += 1
            name = f"{plain}_{count}"
        if everywhere:
            self.reserved.add(name)
        else:
            self.taken.append(name)
        return name

    def close(self, opened: int) -> None:
        """Release the names of a scope that was opened when `opened` names were taken."""
        del self.taken[opened:]
