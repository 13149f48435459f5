"""Trees of arguments and results: dicts, tuples, lists, named tuples and dataclasses, taken apart and put together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from camshaft.graph.tensor import Tensor

# The children of a container with how each is reached, and what puts others in their places.
_Parts: TypeAlias = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]


def leaves(tree: Any) -> tuple[list[Any], Hashable]:
    """The leaves in order, and the rest: equal for trees that differ in their leaves alone."""
    found: list[Any] = []
    return found, _collect(tree, found)


def _collect(tree: Any, found: list[Any]) -> Hashable:
    parts = _parts(tree)
    if parts is None:
        found.append(tree)
        return None
    return type(tree), tuple((step, _collect(child, found)) for step, child in parts[0])


def paths(structure: Any, name: str) -> Iterator[str]:
    """Where the leaves of a tree of that name stand, such as `params['w'][0]`, in order."""
    if structure is None:
        yield name
        return
    for step, child in structure[1]:
        yield from paths(child, f"{name}{step}")


def with_leaves(tree: Any, values: Iterator[Any]) -> Any:
    """A tree of the same structure with these leaves, in order."""
    parts = _parts(tree)
    if parts is None:
        return next(values)
    children, made = parts
    return made([with_leaves(child, values) for _, child in children])


# What most leaves are, known before anything is asked of them.
_LEAVES = frozenset((np.ndarray, Tensor, int, float, bool, str, type(None)))


def _parts(tree: Any) -> _Parts | None:
    """None for a leaf."""
    if type(tree) in _LEAVES:
        return None
    if isinstance(tree, dict):
        return [(f"[{key!r}]", child) for key, child in tree.items()], lambda made: _dict(tree, made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        named = zip(tree._fields, tree, strict=True)
        return [(f".{name}", child) for name, child in named], lambda made: type(tree)(*made)
    if isinstance(tree, (tuple, list)):
        return [(f"[{i}]", child) for i, child in enumerate(tree)], lambda made: type(tree)(made)
    if is_dataclass(tree) and not isinstance(tree, type):
        children = [(f".{field.name}", getattr(tree, field.name)) for field in fields(tree)]
        return children, lambda made: _dataclass(tree, made)
    return None


def _dict(tree: Any, made: list[Any]) -> Any:
    new = copy.copy(tree)
    new.update(zip(tree, made, strict=True))
    return new


def _dataclass(tree: Any, made: list[Any]) -> Any:
    """Without its __init__, which may want other things; one of constants alone as it is, since it may be known by identity."""
    named = {field.name: value for field, value in zip(fields(tree), made, strict=True)}
    if all(value is getattr(tree, name) for name, value in named.items()):
        return tree
    new = copy.copy(tree)
    for name, value in named.items():
        object.__setattr__(new, name, value)
    return new
