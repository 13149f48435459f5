"""Parameters: what the functions of an op take by position and by name. Every Op has its own; ops/signatures.py renders them."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter
from typing import Any

REQUIRED: Any = Parameter.empty


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


# For an op without functions of its own.
ANY = Parameters("*inputs", results=None)

EPS = Attribute("eps", "float")
TO = Attribute("to", "str", "f32")
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
