"""Parameters: what the functions of an op take by position and by name. Every Op has its own; ops/signatures.py renders them."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter
from typing import Any

REQUIRED: Any = Parameter.empty


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op: its type, and what holds where it is left out."""

    name: str
    type: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class Parameters:
    """Tensors, by position, with a star where any number may come; then attributes, by name. `results` is how many tensors come
    back, None where that depends on the attributes. `out_by_position`: functions of arrays take `out` after the arrays too, as
    NumPy's do."""

    tensors: str
    attributes: tuple[Attribute, ...] = ()
    results: int | None = 1
    out_by_position: bool = False

    @property
    def arity(self) -> int | None:
        """The number of tensors; None where any number may come."""
        return None if "*" in self.tensors else len(self.tensors.split())


# Of an op that no function calls by name.
ANY = Parameters("*inputs", results=None)

EPS = Attribute("eps", "float")
TO = Attribute("to", "str", "f32")
AXIS = Attribute("axis", "int", 0)
AXES = Attribute("axes", "int | tuple[int, ...] | None", None)
KEEPDIMS = Attribute("keepdims", "bool", False)
HEADS, KV_HEADS, HEAD_DIM = (Attribute(name, "int") for name in ("heads", "kv_heads", "head_dim"))
SUMS, FLOATS = Attribute("sums", "tuple[tuple[int, int], ...]"), Attribute("floats", "bool", False)
# Where the KV cache keeps the rows of tokens.
PLACES = "positions slots block_table"
