"""Find which memory accesses of a kernel need a barrier between them when its program is spread over threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from camshaft.lang import ir, tile_ir


@dataclass(frozen=True)
class Access:
    """A load or a store.

    `kind`: 'uniform' (the same in all threads), 'vector N' (elements of an explicit vector), 'atomic' or 'lanes'.
    """

    array: ir.Array
    is_store: bool
    kind: str


def accesses_of(item: ir.Value | ir.Statement, varying: frozenset[ir.Value]) -> list[Access]:
    """Return the accesses of an instruction or statement, including its nested blocks."""
    if isinstance(item, ir.Value):
        if item.op == "atomic":  # a uniform atomic runs in the first thread only
            return [Access(item.attr[0], True, "lanes" if item in varying else "atomic")]
        if item.op != "load":
            return []
        return [Access(item.attr[0], False, _kind(item.width, item.args, varying))]
    if isinstance(item, ir.Store):
        return [Access(item.array, True, _kind(item.value.width, item.indices, varying))]
    if isinstance(item, tile_ir.TileNew):
        return [] if item.array is None else [Access(item.array, False, "lanes")]
    if isinstance(item, tile_ir.TileMma):
        return [Access(item.a, False, "lanes"), Access(item.b, False, "lanes")]
    if isinstance(item, tile_ir.TileStore):
        then = [] if item.then is None else accesses_of(item.then, varying)
        return [Access(item.array, True, "lanes"), *then]
    if isinstance(item, tile_ir.AsyncCopy):
        return [Access(item.source, False, "lanes"), Access(item.destination, True, "lanes")]
    body = getattr(item, "body", None)
    return [] if body is None else [a for inner in body.statements for a in accesses_of(inner, varying)]


def _kind(width: int, indices: tuple[ir.Value, ...], varying: frozenset[ir.Value]) -> str:
    if width:
        return f"vector {width}"
    return "lanes" if varying.intersection(indices) else "uniform"


@dataclass
class Accesses:
    """The accesses since the last barrier. Arrays that are `private` to a thread, or never written, need no ordering."""

    private: frozenset[ir.Array]
    pending: set[Access] = field(default_factory=set)

    def conflicts(self, access: Access) -> bool:
        """Return whether an access needs a barrier after an earlier one of another thread.

        The kernel itself orders two 'lanes' accesses. Two stores of one kind write each element from the same thread.
        """
        return any(_conflict(access, earlier) for earlier in self.pending if earlier.array is access.array)

    def add(self, accesses: Iterable[Access]) -> None:
        self.pending.update(a for a in accesses if a.array.writable and a.array not in self.private)

    def join(self, other: Accesses) -> None:
        """Merge the accesses of another control-flow path."""
        self.pending |= other.pending

    def copy(self) -> Accesses:
        return Accesses(self.private, set(self.pending))

    def clear(self) -> None:
        self.pending.clear()


def _conflict(a: Access, b: Access) -> bool:
    if not (a.is_store or b.is_store) or a.kind == b.kind == "lanes":
        return False
    return not (a.is_store and b.is_store and a.kind == b.kind)
