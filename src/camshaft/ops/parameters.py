"""Parameters: what the functions of an op take by position and by name. Every Op has its own; ops/signatures.py renders them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any

from camshaft.errors import ArrayTypeError
from camshaft.extent import Extent

REQUIRED: Any = Parameter.empty
# Type of an attribute -> the types of its values, and what a message calls them. Other types are left to the op's shape rule.
_VALUES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int, Extent), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool, int), "True or False"),
}
_OR_NONE = {f"{name} | None": ((*types, type(None)), f"{text} or None") for name, (types, text) in _VALUES.items()}


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op: its name, type and default."""

    name: str
    type: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class Parameters:
    """The signature of an op's functions: positional tensors (a star marks any number), then keyword attributes.

    `results` is the number of returned tensors, None if it depends on the attributes. With `out_by_position`, functions on
    arrays also take `out` as the last positional argument, as NumPy's do."""

    tensors: str
    attributes: tuple[Attribute, ...] = ()
    results: int | None = 1
    out_by_position: bool = False

    @property
    def arity(self) -> int | None:
        """The number of tensors; None for any number."""
        return None if "*" in self.tensors else len(self.tensors.split())

    @cached_property
    def _checked(self) -> dict[str, tuple[tuple[type, ...], str] | None]:
        known = {**_VALUES, **_OR_NONE}
        return {a.name: known.get(a.type) for a in self.attributes}

    def check(self, op: str, attrs: Mapping[str, Any]) -> None:
        """Raises ArrayTypeError for an attribute that the op does not have, or whose value is not of its type."""
        for name, value in attrs.items():
            if name not in self._checked:
                raise ArrayTypeError(f"{op}() got an unexpected keyword argument '{name}'")
            wanted = self._checked[name]
            if wanted is None:
                continue
            types, text = wanted
            fits = isinstance(value, types) and (
                value in (0, 1, None) if bool in types else not isinstance(value, bool)
            )
            if not fits:
                raise ArrayTypeError(f"{op}: got {name}={value!r:.60}; wanted {text}")


# For an op without functions of its own.
ANY = Parameters("*inputs", results=None)

EPS = Attribute("eps", "float")
TO = Attribute("to", "str", "f32")
ACT = Attribute("act", "str", "silu")  # the activation of a gate
# What is added to a norm's weights: 1 for Gemma, whose files have w - 1.
OFFSET = Attribute("offset", "float", 0.0)
AXIS = Attribute("axis", "int", 0)
AXES = Attribute("axes", "int | tuple[int, ...] | None", None)
KEEPDIMS = Attribute("keepdims", "bool", False)
HEADS, KV_HEADS, HEAD_DIM = (Attribute(name, "int") for name in ("heads", "kv_heads", "head_dim"))
# Whether a slot's rows of the KV cache are written in a circle.
RING = Attribute("ring", "bool", False)
SUMS, FLOATS = Attribute("sums", "tuple[tuple[int, int], ...]"), Attribute("floats", "bool", False)
# The tensors that map tokens to rows of the KV cache.
PLACES = "positions slots block_table"
