"""Call: the op's call for a call with NumPy's arguments, and how these are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.errors import ArrayTypeError
from camshaft.ops.arguments import Array, operand

Inputs = tuple[Any, ...]
Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """The op's own call and the conversion of its result; `ready` is the result if nothing is computed."""

    inputs: Inputs = ()
    attrs: Attrs = field(default_factory=dict)
    finish: Callable[[Any], Any] | None = None
    ready: Any = None


Form = Callable[[str, Inputs, Attrs], "Call | None"]


def arrays_of(name: str, inputs: Inputs) -> list[Array]:
    """The arguments as arrays."""
    return [np.asarray(operand(x, name)) for x in inputs]


def integers_of(name: str, what: str, value: Any) -> tuple[int, ...]:
    """An integer or a sequence of them, as NumPy takes axes."""
    try:
        listed = np.atleast_1d(value).tolist()
    except ValueError:
        listed = [value]
    if any(type(x) is not int for x in listed):
        raise ArrayTypeError(f"{name}: got {what} {value!r:.40}; wanted integers")
    return tuple(listed)


def mask_of(where: Any) -> Array:
    """An argument `where`: booleans."""
    mask = np.asarray(operand(where))
    if mask.dtype != np.bool_:
        raise ArrayTypeError(f"where: got an array of {mask.dtype}; wanted booleans")
    return mask
