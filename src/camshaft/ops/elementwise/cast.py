"""cast: y = x in the dtype that `to` names, as NumPy's astype: floats to integers towards 0, floats to floats to the nearest.

Integers that do not fit wrap. Floats that do not fit an integer type give an undefined value, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, NAMED, PARTS, DType, as_dtype, boolean, f32, i32, u16, u32
from camshaft.errors import ShapeError
from camshaft.lang import Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.checks import COMPLEX, EVERY
from camshaft.ops.elementwise.frame import Formula, Pair, op_of
from camshaft.ops.kernels.bits import NAN_BITS
from camshaft.ops.parameters import Attribute
from camshaft.ops.spec import TensorSpec


def _to(dtype: DType, attrs: ops.Attrs) -> DType:
    if set(attrs) != {"to"} or attrs["to"] not in NAMED:
        raise ShapeError(f"cast: got attributes {dict(attrs)}; wanted to, the name of a dtype")
    return as_dtype(attrs["to"])


def _compute(k: Tracer, x: ir.Value, to: str) -> ir.Value:
    target = DTYPES[to]
    if x.dtype.is_float and target.nbytes < 4 and target.kind == "u":
        return k.bitcast(x.to(i32), u32)  # so that -1.0 wraps
    return x.to(ir.arithmetic_dtype(target))


def _numpy(x: ops.Array, to: str) -> ops.Array:
    whole = as_dtype(to) in PARTS or to == boolean.name
    return np.asarray(x if whole else x.real).astype(as_dtype(to).numpy)


def _samples() -> Iterable[ops.Sample]:
    """Each dtype to two others and from two others; small values, of both signs where both dtypes have them."""
    rng = np.random.default_rng(18)
    names = list(DTYPES)
    for step in (1, 5):
        for i, name in enumerate(names):
            source, to = DTYPES[name], DTYPES[names[(i + step) % len(names)]]
            signed = "u" not in (source.kind, to.kind) or (source.is_integer and to.is_integer)
            drawn = np.array([0, 1, 100, -100 if signed else 100, *(60 * rng.normal(size=37)).round(2)])
            drawn = drawn if signed else np.abs(drawn)
            values = drawn if source.is_float else drawn.astype(np.int64)
            yield ops.Sample(f"{source.name} to {to.name}", (values.astype(source.numpy),), {"to": to.name})
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-9, 65519.0, 65521.0, 1 + 2**-8, 1 + 2**-11, 3.4e38], np.float32)
    for short in ("f16", "bf16", "bool"):
        # NumPy does not compare bf16 NaNs as equal
        yield ops.Sample(f"special values to {short}", (odd[short == "bf16" :],), {"to": short})
    yield from _complex_samples()


def _complex_samples() -> Iterable[ops.Sample]:
    z = np.array([1 + 2j, -3.5, 0.25j, 0] * 6)
    for source, to in (
        ("complex64", "complex128"),
        ("complex128", "complex64"),
        ("f32", "complex64"),
        ("complex64", "f16"),
        ("complex64", "bool"),
    ):
        values = (
            z.astype(as_dtype(source).numpy) if source in ("complex64", "complex128") else z.real.astype(np.float32)
        )
        yield ops.Sample(f"{source} to {to}", (values,), {"to": to})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {"to": "f16"}, "wanted 1 tensor")
    yield ops.ErrorSample((x,), {}, "wanted to, the name of a dtype")
    yield ops.ErrorSample((x,), {"to": "f12"}, "wanted to, the name of a dtype")


def _pairs(k: Tracer, x: ir.Value | Pair, to: str) -> ir.Value | Pair:
    """To a real dtype, the real part; to booleans, whether either part is not 0."""
    parts = x if isinstance(x, tuple) else (x, k.const(0.0, f32))
    if to == boolean.name:
        return _compute(k, parts[0], to) | _compute(k, parts[1], to)
    if as_dtype(to) not in PARTS:
        return _compute(k, parts[0], to)
    part = PARTS[as_dtype(to)]
    return parts[0].to(part), parts[1].to(part)


def _vjp(f: Any, dy: Any, y: Any, x: Any, to: str) -> Any:
    return f.cast(dy, to=as_dtype(x.dtype).name)


ROW = Formula(
    "cast",
    "y = x in another dtype",
    _compute,
    _numpy,
    (*EVERY, *COMPLEX),
    arity=1,
    pairs=_pairs,
    gives=_to,
    attrs=(Attribute("to", "str"),),
    vjp=_vjp,
    moves=lambda node: {"to": u16.name} if node.inputs[0].dtype == node.outputs[0].dtype in NAN_BITS else None,
    tolerance={"f32": 0.0, "f64": 0.0, "f16": 1e-12, "bf16": 1e-12},
    samples=_samples,
    error_samples=_error_samples,
)
OP = op_of(ROW, __name__)
