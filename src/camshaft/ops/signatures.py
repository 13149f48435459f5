"""Signatures of the ops' functions, for help(), editors and the type stubs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

from camshaft import ops
from camshaft.ops.arguments import ROW_OPS
from camshaft.ops.parameters import AXES, Attribute, Parameters

if TYPE_CHECKING:
    from camshaft.ops.op import Op

_ITSELF = Parameter("self", Parameter.POSITIONAL_ONLY)
_LABEL = Attribute("name", "str | None", None)
_FOLDS_AXIS = Attribute("axis", AXES.type, None)  # what NumPy calls the axes of a fold
_ROWS_AXIS = (Attribute("axis", "int", -1),)
_DTYPE, _WHERE, _INITIAL = (Attribute(name, "Any", None) for name in ("dtype", "where", "initial"))
_FOLD = (_DTYPE, _WHERE, _INITIAL)
# What functions of arrays take besides an op's own attributes, as NumPy's do (eager/numpy_calls/).
_ON_ARRAYS = {
    "sum": _FOLD, "prod": _FOLD, "mean": _FOLD[:2], "max": _FOLD[1:], "min": _FOLD[1:],
}  # fmt: skip


def of_tensors(op: str) -> Signature:
    """The signature of graph.functions.<op>, which adds a node to the tensors' graph."""
    row = ops.get(op).parameters
    last = (*(_ROWS_AXIS if op in ROW_OPS else ()), _LABEL)
    return _signature(row.tensors, "Tensor | ArrayLike", row.attributes, _returns(row, "Tensor"), last)


def of_arrays(op: str) -> Signature:
    """The signature of table().<op>. A result is an ndarray, a scalar of NumPy, or an array of the inputs' own library."""
    row = ops.get(op).parameters
    out = Attribute("out", "Array | None" if row.results == 1 else "Array | tuple[Array, ...] | None", None)
    also = (_FOLDS_AXIS,) if AXES in row.attributes else ()
    attributes = (*also, *row.attributes, *(_ROWS_AXIS if op in ROW_OPS else ()), *_ON_ARRAYS.get(op, ()))
    returns = _returns(row, "Any")
    if row.out_by_position:
        masks = () if op in ("matmul", "where") else (_WHERE,)  # NumPy's take no mask either
        return _signature(row.tensors, "ArrayLike", (*attributes, *masks), returns, positional=(out,))
    return _signature(row.tensors, "ArrayLike", (out, *attributes), returns)


def of_both(op: str) -> Signature:
    """The signature of camshaft.<op>, which takes arrays and tensors."""
    arrays = of_arrays(op)
    made = [
        p.replace(annotation=f"Tensor | {p.annotation}") if p.annotation == "ArrayLike" else p
        for p in arrays.parameters.values()
    ]
    label = Parameter(_LABEL.name, Parameter.KEYWORD_ONLY, default=_LABEL.default, annotation=_LABEL.type)
    return arrays.replace(parameters=[*made, label], return_annotation="Any")


def help_of_function(op: Op) -> str:
    """The help of camshaft.<op>."""
    return f"{op.formula}.\n\nComputed at once on arrays. With a tensor among them, a node called `name` of its graph."


def help_of(op: Op) -> str:
    """The help of table().<op>."""
    written = "Arrays that it updates are written in place." if op.updates else "`out` is written and returned."
    return f"{op.formula}.\n\nArrays in, arrays out. {written}"


def builtin_text(op: Op) -> str:
    """Returns the docstring from which CPython reads a builtin's signature and help: names without types, then two dashes."""
    signature = of_arrays(op.name)
    bare = [p.replace(annotation=Parameter.empty) for p in signature.parameters.values()]
    text = str(Signature([_ITSELF, *bare])).replace("self", "$self", 1)
    return f"{op.name}{text}\n--\n\n{help_of(op)}"


def described(method: Callable[..., Any], op: Op) -> FunctionType:
    """The same code under the op's name, with its signature and help: a bound method has only what its function has."""
    assert isinstance(method, FunctionType)
    made = FunctionType(method.__code__, method.__globals__, op.name, method.__defaults__, method.__closure__)
    made.__kwdefaults__, made.__doc__, made.__qualname__ = method.__kwdefaults__, help_of(op), op.name
    signature = of_arrays(op.name)
    whole = signature.replace(parameters=[_ITSELF, *signature.parameters.values()])
    made.__signature__ = whole  # type: ignore[attr-defined]
    return made


def _returns(row: Parameters, one: str) -> str:
    if row.results is None:
        return "Any" if one == "Any" else f"{one} | tuple[{one}, ...]"
    return "None" if not row.results else one if row.results == 1 else f"tuple[{', '.join([one] * row.results)}]"


def _signature(
    tensors: str,
    tensor: str,
    attributes: Sequence[Attribute],
    returns: str,
    last: Sequence[Attribute] = (),
    positional: Sequence[Attribute] = (),
) -> Signature:
    made = [
        Parameter(
            name.lstrip("*"), Parameter.VAR_POSITIONAL if "*" in name else Parameter.POSITIONAL_ONLY, annotation=tensor
        )
        for name in tensors.split()
    ]
    kinds = (positional, Parameter.POSITIONAL_OR_KEYWORD), ((*attributes, *last), Parameter.KEYWORD_ONLY)
    for rows, kind in kinds:
        made += [Parameter(a.name, kind, default=a.default, annotation=a.type) for a in rows]
    return Signature(made, return_annotation=returns)
