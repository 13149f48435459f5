"""NumPy's shapes that ops do not have: vectors and empty matrices in a product, and its words for errors. For shaped_call.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dispatch.operands import Array, ArrayValueError

_REDUCTIONS = frozenset(("sum", "mean", "prod", "max", "min"))
_SIGNATURE = "(n?,k),(k,m?)->(n?,m?)"


@dataclass(frozen=True)
class Form:
    """The arrays to call the op on; `shape` is the result's, which is all zeros without a run where an operand is `empty`."""

    arrays: tuple[Array, ...]
    shape: tuple[int, ...]
    empty: bool


def _matmul(arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """out[.., i, j] = sum_k a[.., i, k] b[.., k, j]; a vector is a matrix of one row or column that the result lacks."""
    if len(arrays) != 2 or attrs.get("transpose_b", False):
        return None
    for i, x in enumerate(arrays):
        if not x.ndim:
            has = f"(has 0, gufunc core with signature {_SIGNATURE} requires 1)"
            raise ArrayValueError(f"matmul: Input operand {i} does not have enough dimensions {has}")
    a, b = arrays
    rows, columns = (() if a.ndim == 1 else a.shape[-2:-1]), (() if b.ndim == 1 else b.shape[-1:])
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    if left.shape[-1] != right.shape[-2]:
        sizes = f"(size {right.shape[-2]} is different from {left.shape[-1]})"
        where = f"Input operand 1 has a mismatch in its core dimension 0, with gufunc signature {_SIGNATURE} {sizes}"
        raise ArrayValueError(f"matmul: {where}")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        text = " ".join(f"{_text(x.shape)}->{_text((*x.shape[:-2], None, None))}" for x in (left, right))
        what = "operands could not be broadcast together with remapped shapes [original->remapped]"
        raise ArrayValueError(f"{what}: {text}  and requested shape {_text((*rows, *columns))}") from None
    shape = (*batch, *rows, *columns)
    return Form((left, right), shape, 0 in left.shape or 0 in right.shape)


def _text(shape: Sequence[int | None]) -> str:
    inner = ",".join("newaxis" if n is None else str(n) for n in shape)
    return f"({inner}{',' if len(shape) == 1 else ''})"


_FORMS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], Form | None]] = {"matmul": _matmul}


def form_of(op: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """How NumPy's arguments of a function become the op's; None where they are the op's own. ArrayValueError in NumPy's words."""
    return _FORMS[op](arrays, attrs) if op in _FORMS else None


def check_core(op: str, out: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """ArrayValueError unless an output has the shape of the result."""
    if out == wanted:
        return
    core = [i for i in (0, 1) if len(out) == len(wanted) > i and out[i - 2] != wanted[i - 2]] if op == "matmul" else []
    if core and len(wanted) >= 2:
        sizes = f"(size {out[core[0] - 2]} is different from {wanted[core[0] - 2]})"
        where = f"Output operand 0 has a mismatch in its core dimension {core[0]}, with gufunc signature {_SIGNATURE} {sizes}"
        raise ArrayValueError(f"{op}: {where}")
    raise ArrayValueError(f"{op}: out has the shape {out}; wanted {wanted}")


def attributes_of(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as the op names them, where NumPy's function of that name says `axis`; lists as tuples."""
    named = {"axes" if name == "axis" and op in _REDUCTIONS else name: value for name, value in attrs.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}


def count_of(op: str, given: int) -> int:
    """How many operands NumPy's function of that name takes before `out`; as many as were given where there is no form."""
    return 2 if op in _FORMS else given
