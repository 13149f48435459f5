"""What the functions of the ops take: their parameters by name, for help(), editors and the type stubs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

from camshaft.ops import TABLES

if TYPE_CHECKING:
    from camshaft.ops.op import Op

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
    back, None where that depends on the attributes."""

    tensors: str
    attributes: tuple[Attribute, ...] = ()
    results: int | None = 1


_EPS = Attribute("eps", "float")
_TO = Attribute("to", "str", "f32")
_TRANSPOSE_B = Attribute("transpose_b", "bool", False)
_AXIS = Attribute("axis", "int", 0)
_AXES = Attribute("axes", "int | tuple[int, ...] | None", None)
_KEEPDIMS = Attribute("keepdims", "bool", False)
_HEADS, _KV_HEADS, _HEAD_DIM = (Attribute(name, "int") for name in ("heads", "kv_heads", "head_dim"))
_SUMS, _FLOATS = Attribute("sums", "str"), Attribute("floats", "bool", False)
_ARGUMENT = Attribute("axis", "int | None", -1), _KEEPDIMS, Attribute("nan_first", "bool", False)
_PLACES = "positions slots block_table"

PARAMETERS = {
    **{name: Parameters("x") for name in TABLES["elementwise.unary"]},
    **{name: Parameters("a b") for name in (*TABLES["elementwise.binary"], *TABLES["elementwise.comparison"])},
    **{name: Parameters("x", (_AXES, _KEEPDIMS)) for name in TABLES["reduce.reduction"]},
    **{name: Parameters("x", _ARGUMENT) for name in TABLES["reduce.argmax"]},
    "softcap": Parameters("x", (Attribute("cap", "float"),)),
    "where": Parameters("condition a b"),
    "clip": Parameters("x low high"),
    "logical_not": Parameters("x"),
    "dot": Parameters("a b"),
    "concat": Parameters("*tensors", (_AXIS,)),
    "split": Parameters("x", (Attribute("sizes", "tuple[int, ...]"), _AXIS), results=None),
    "outer": Parameters("a b"),
    "rms_norm": Parameters("x w", (_EPS, _TO)),
    "layer_norm": Parameters("x w b", (_EPS,)),
    "residual_norm": Parameters("a b w", (_EPS, _TO), results=2),
    "silu_multiply": Parameters("gate up", (_TO,)),
    "rms_norm_q8": Parameters("x w", (_EPS, _SUMS, _FLOATS), results=None),
    "residual_norm_q8": Parameters("a b w", (_EPS, _SUMS, _FLOATS), results=None),
    "silu_multiply_q8": Parameters("gate up", (_SUMS, _FLOATS), results=None),
    "matmul": Parameters("a b", (_TRANSPOSE_B, _TO)),
    "rounded_matmul": Parameters("a b", (Attribute("transpose_b", "bool"),)),
    "quantize_activations": Parameters("x", (Attribute("group", "int", 32), Attribute("zero", "int", 0))),
    "quantized_matmul": Parameters("x w"),
    "gated_product": Parameters("x gate up", (_SUMS,), results=None),
    "embedding": Parameters("ids table"),
    "copy": Parameters("x"),
    "gather": Parameters("x rows"),
    "cast": Parameters("x", (Attribute("to", "str"),)),
    "transpose": Parameters("x", (Attribute("axes", "tuple[int, ...] | None", None),)),
    "repeat_penalty": Parameters("logits ids penalty"),
    "softmax": Parameters("x"),
    "rope": Parameters("x positions table", (_HEADS, _HEAD_DIM, Attribute("pairing", "str"))),
    "kv_cache_update": Parameters(f"k_cache v_cache k v {_PLACES}", (_KV_HEADS, _HEAD_DIM), results=0),
    "kv_cache_quantize": Parameters(
        f"k_codes v_codes k_scales v_scales k v {_PLACES}", (_KV_HEADS, _HEAD_DIM), results=0
    ),
    "sample": Parameters("logits temperature top_k top_p min_p seed"),
    "attention": Parameters(
        f"q k_cache v_cache {_PLACES} *scales",
        (_HEADS, _KV_HEADS, _HEAD_DIM, Attribute("scale", "float"), Attribute("length", "int | Extent")),
    ),
}
# Functions of arrays that take `out` after them too, as NumPy's do.
OUT_BY_POSITION = frozenset(
    (
        *TABLES["elementwise.unary"],
        *TABLES["elementwise.binary"],
        *TABLES["elementwise.comparison"],
        "cast",
        "copy",
        "silu_multiply",
        "matmul",
    )
)
_ITSELF = Parameter("self", Parameter.POSITIONAL_ONLY)
_LABEL = Attribute("name", "str | None", None)
_FOLDS_AXIS = Attribute("axis", _AXES.type, None)  # what NumPy calls the axes of a fold


def of_tensors(op: str) -> Signature:
    """The signature of camshaft.<op>, which adds a node to the tensors' graph."""
    row = PARAMETERS[op]
    return _signature(row.tensors, "Tensor | Array", row.attributes, _returns(row, "Tensor"), (_LABEL,))


def of_arrays(op: str) -> Signature:
    """The signature of table().<op>. A result is an ndarray, a scalar of NumPy, or an array of the inputs' own library."""
    row = PARAMETERS[op]
    out = Attribute("out", "Array | None" if row.results == 1 else "Array | tuple[Array, ...] | None", None)
    also = (_FOLDS_AXIS,) if _AXES in row.attributes else ()
    attributes = (*also, *row.attributes)
    returns = _returns(row, "Any")
    if op in OUT_BY_POSITION:
        return _signature(row.tensors, "ArrayLike", attributes, returns, positional=(out,))
    return _signature(row.tensors, "ArrayLike", (out, *attributes), returns)


def help_of(op: Op) -> str:
    """The help of table().<op>."""
    written = "Arrays that it updates are written in place." if op.updates else "`out` is written and returned."
    return f"{op.formula}.\n\nArrays in, arrays out. {written}"


def builtin_text(op: Op) -> str:
    """What CPython reads the signature and the help of a builtin from: names without types, then two dashes."""
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
