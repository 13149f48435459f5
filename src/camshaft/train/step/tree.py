"""Parameters as a tree of arrays, and by names such as layers.0.w, which states, errors and checkpoints use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from camshaft.dataclass import dataclass
from camshaft.dtypes import as_dtype, f32, f64
from camshaft.errors import CamshaftError, ShapeError
from camshaft.ops.arguments import operand
from camshaft.ops.spec import TensorSpec
from camshaft.plan.jit import leaves, paths, with_leaves

Array = np.ndarray[Any, Any]
_STEPS = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]|\.(\w+)")


def dotted(path: str) -> str:
    """The name of a path: ['layers'][0].w is layers.0.w."""
    found = [next(part for part in match.groups() if part is not None) for match in _STEPS.finditer(path)]
    return ".".join(found) or "parameters"


@dataclass(frozen=True)
class Tree:
    """A tree whose arrays are parameters, by name; what else it has (numbers, texts, None) is constant."""

    whole: Any
    arrays: Mapping[str, Array]
    names: tuple[str | None, ...]

    def filled(self, values: Mapping[str, Any]) -> Any:
        """The tree with other values for its arrays, by name."""
        found, _ = leaves(self.whole)
        return with_leaves(self.whole, iter(_filled(self.names, found, values)))

    def emptied(self) -> Tree:
        """The tree with zeros that take no memory in place of its arrays."""
        zeros = {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in self.arrays.items()}
        return Tree(self.filled(zeros), zeros, self.names)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """The parameters' specs by name."""
        return {name: TensorSpec(a.shape, as_dtype(a.dtype)) for name, a in self.arrays.items()}


def _filled(names: tuple[str | None, ...], found: list[Any], values: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in zip(names, found, strict=True):
        yield value if name is None else values[name]


def tree_of(parameters: Any) -> Tree:
    """The tree of parameters. ShapeError for one without arrays and, by name, for arrays of other dtypes than f32 and f64."""
    found, structure = leaves(parameters)
    arrays: dict[str, Array] = {}
    names: list[str | None] = []
    for path, value in zip(paths(structure, ""), found, strict=True):
        if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, np.generic)):
            names.append(None)
            continue
        name = dotted(path)
        arrays_before = len(arrays)
        arrays[name] = _array(name, value)
        if len(arrays) == arrays_before:
            raise ShapeError(f"parameters: got {name!r} twice; wanted names that differ")
        names.append(name)
    if not arrays:
        raise ShapeError(f"parameters: got {parameters!r:.80}; wanted arrays, or a dict, list or dataclass of them")
    return Tree(parameters, arrays, tuple(names))


def _array(name: str, value: Any) -> Array:
    try:
        array = np.asarray(operand(value))
    except (CamshaftError, TypeError, ValueError) as error:
        raise ShapeError(f"parameters: {name}: {error}") from error
    if array.dtype not in (f32.numpy, f64.numpy) or 0 in array.shape:
        raise ShapeError(f"parameters: {name} is {array.dtype} {list(array.shape)}; wanted f32 or f64, not empty")
    return array
