"""Converts calls in NumPy's forms to an op's own form.

NumPy takes attributes by position, lists of arrays, `dtype`, `where`, `axis` of row-wise ops, and None for a bound. Calls on
arrays without elements are answered here, because they compute nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.dtypes import NAMED, as_dtype
from camshaft.eager.numpy_calls import by_position, folds, moves
from camshaft.eager.numpy_calls.call import Attrs, Call, Form, Inputs, mask_of
from camshaft.errors import ArrayTypeError, ArrayValueError
from camshaft.ops.arguments import ROW_OPS, Array, operand
from camshaft.ops.movement.complex_moves import MOVES


def _cast(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """The dtype by position or as `dtype`, in any spelling that NumPy has."""
    named = "to" in attrs or "dtype" in attrs  # then a second argument is `out`
    to = attrs.get("to", attrs.get("dtype")) if named or len(inputs) == 1 else inputs[1]
    if named and isinstance(to, str) and to in NAMED and "dtype" not in attrs:
        return None
    if to is None:
        raise ArrayTypeError("cast: got no dtype; wanted to, the name of one")
    rest = {key: value for key, value in attrs.items() if key != "dtype"}
    return Call(inputs if named else (inputs[0], *inputs[2:]), {**rest, "to": as_dtype(to).name})


def _adam(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """Learning rate and step as numbers."""
    if len(inputs) != 6 or not any(isinstance(x, (int, float)) for x in inputs[4:]):
        return None
    dtype = np.asarray(operand(inputs[0], name)).dtype
    try:
        return Call((*inputs[:4], np.asarray(inputs[4], dtype), np.asarray(inputs[5], np.int32)), attrs)
    except (OverflowError, TypeError, ValueError) as error:
        raise ArrayValueError(f"{name}: got lr={inputs[4]!r:.40}, step={inputs[5]!r:.40}: {error}") from None


def _clip(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.clip: a bound that is None or left out is the dtype's own."""
    given = {key: value for key, value in attrs.items() if key in ("min", "max", "a_min", "a_max")}
    if len(inputs) in (3, 4) and inputs[1] is not None and inputs[2] is not None and not given:
        return None
    low, high = (*inputs[1:3], None, None)[:2]
    low = given.pop("min", given.pop("a_min", None)) if low is None else low
    high = given.pop("max", given.pop("a_max", None)) if high is None else high
    if given:
        raise ArrayTypeError(f"clip() got an argument twice: {', '.join(given)}")
    x = np.asarray(operand(inputs[0], name))
    least, most = _bounds(x)
    rest = {key: value for key, value in attrs.items() if key not in ("min", "max", "a_min", "a_max")}
    return Call((inputs[0], least if low is None else low, most if high is None else high, *inputs[3:]), rest)


def _bounds(x: Array) -> tuple[Any, Any]:
    if x.dtype.kind in "iu":
        return np.array(np.iinfo(x.dtype).min, x.dtype), np.array(np.iinfo(x.dtype).max, x.dtype)
    return (np.False_, np.True_) if x.dtype.kind == "b" else (np.array(-np.inf, x.dtype), np.array(np.inf, x.dtype))


# Op -> how it is called for NumPy's arguments, one or more; None where they are the op's own. ShapeError as NumPy's errors.
FORMS: dict[str, Form] = {
    "concat": moves.concat,
    "transpose": moves.transpose,
    "split": moves.split,
    "gather": moves.gather,
    "embedding": moves.gather,
    "slice": moves.sliced,
    "cast": _cast,
    "copy": lambda name, inputs, attrs: None,
    "outer": moves.outer,
    "dot": folds.dot,
    "clip": _clip,
    **dict.fromkeys(by_position.NAMES, by_position.moved),
    **dict.fromkeys(("group_norm", "layer_norm_2d"), by_position.norm_by_channel),
    "adam_update": _adam,
    **dict.fromkeys(ROW_OPS, folds.row_wise),
    **dict.fromkeys(("sum", "prod", "mean", "max", "min", "argmax", "argmin"), folds.fold),
}
FORMS |= {name: moves.moving(FORMS[name]) for name in MOVES}


def masked(result: Any, where: Any, out: Any) -> Any:
    """Applies a ufunc's where=: keeps `out`, if given, where the mask is off."""
    mask = mask_of(where)
    if out is None:
        return np.array(np.broadcast_to(result, np.broadcast_shapes(np.shape(result), mask.shape)))[()]
    np.copyto(out, result, casting="same_kind", where=mask)
    return out
