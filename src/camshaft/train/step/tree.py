"""Parameters and batches as trees of arrays, and by names such as layers.0.w, which states, errors and checkpoints use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f32, f64
from camshaft.errors import CamshaftError, PlanError, ShapeError
from camshaft.ops.arguments import operand
from camshaft.ops.spec import TensorSpec
from camshaft.plan.jit import leaves, paths, plain_array, with_leaves

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


def plain(batch: Sequence[Any]) -> tuple[Any, ...]:
    """A batch whose arrays, of any library, are NumPy's."""
    found, _ = leaves(tuple(batch))
    made: tuple[Any, ...] = with_leaves(tuple(batch), map(plain_array, found))
    return made


def inputs_of(batch: Sequence[Any]) -> dict[str, Any]:
    """The leaves of a batch by their paths, such as batch[0]."""
    found, structure = leaves(tuple(batch))
    return dict(zip(paths(structure, "batch"), found, strict=True))


def arrays_of(batch: Sequence[Any]) -> dict[str, Array]:
    """The arrays of a batch by their paths."""
    return {name: value for name, value in inputs_of(batch).items() if isinstance(value, np.ndarray)}


def micro_batches_of(batch: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """A batch as `count` equal parts of its arrays along axis 0. PlanError for an axis 0 that does not divide into them."""
    if count == 1:
        return [tuple(batch)]
    arrays = arrays_of(batch)
    for name, a in arrays.items():
        if a.ndim < 1 or len(a) % count or not len(a):
            raise PlanError(f"step: {name} is {list(a.shape)}; wanted {count} micro-batches of equal size along axis 0")
    found, _ = leaves(tuple(batch))
    names = list(inputs_of(batch))
    parts = []
    for i in range(count):
        cut = [
            arrays[n][i * (len(arrays[n]) // count) : (i + 1) * (len(arrays[n]) // count)] if n in arrays else value
            for n, value in zip(names, found, strict=True)
        ]
        parts.append(with_leaves(tuple(batch), iter(cut)))
    return parts
