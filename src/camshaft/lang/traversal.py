"""Walks over Kernel IR: all statements, what they read, which arrays they change."""

from __future__ import annotations

from collections.abc import Iterator

from camshaft.lang.ir import Array, Block, Lanes, Prefetch, Range, Statement, Store, Value, VarNew, VarSet, When
from camshaft.lang.operators import recorder as recorder
from camshaft.lang.operators import recording as recording
from camshaft.lang.tile_ir import AsyncCopy, TileMma, TileNew, TileScale, TileStore


def walk(block: Block) -> Iterator[Value | Statement]:
    """Yield every value and statement in program order; a nested block follows its statement."""
    # Not recursive: each item would pass through a generator per block around it.
    left = [iter(block.statements)]
    while left:
        for item in left[-1]:
            yield item
            body = getattr(item, "body", None)
            if body is not None:
                left.append(iter(body.statements))
                break
        else:
            left.pop()


def changed_arrays(block: Block) -> frozenset[Array]:
    """Return the arrays that stores, copies or atomics write."""
    changed = {item.array for item in walk(block) if isinstance(item, (Store, TileStore))}
    changed |= {item.destination for item in walk(block) if isinstance(item, AsyncCopy)}
    atomics = {item.attr[0] for item in walk(block) if isinstance(item, Value) and item.op == "atomic"}
    return frozenset(changed | atomics)


def operands(item: Value | Statement) -> tuple[Value, ...]:
    """Return the values that an instruction or a statement reads."""
    if isinstance(item, Value):
        return item.args
    if isinstance(item, VarNew):
        return (item.var.init,)
    if isinstance(item, VarSet):
        return (item.value,)
    if isinstance(item, Store):
        return (*item.indices, item.value, *((item.count,) if item.count is not None else ()))
    if isinstance(item, (Prefetch, TileNew)):
        return item.indices
    if isinstance(item, (Lanes, Range)):
        return (item.start, item.stop)
    if isinstance(item, When):
        return (item.condition,)
    if isinstance(item, TileMma):
        return (*item.a_at, *item.b_at)
    if isinstance(item, TileScale):
        return (item.factor,)
    if isinstance(item, (TileStore, AsyncCopy)):
        then = () if isinstance(item, AsyncCopy) or item.then is None else item.then.indices
        return (*item.indices, *(v for v in (item.rows, item.columns) if v is not None), *then)
    return ()
