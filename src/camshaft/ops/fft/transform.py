"""fft_rows: the Fourier transform of every row, of lengths without a prime factor above 13, from tables of factors.

The ops of fft.py are made of it. `form` says what rows are: 'complex' (pairs to pairs), 'from_real', 'to_real' (the real parts),
and for even n by a complex transform of n / 2 points 'rfft' and 'irfft'. Rows shorter than n are continued with zeros. After its
own factors, a table may have n by which the transform multiplies what it reads (`turn_in`), and n for what it makes (`turn_out`).
The spectrum of real numbers, which `real` counts where the form does not say so, has imaginary parts of 0 at 0 and real / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from camshaft.dtypes import DType, as_dtype, f32, f64, u64
from camshaft.errors import ShapeError
from camshaft.lang import Constant, Kernel
from camshaft.ops import op as ops
from camshaft.ops.fft.factors import Pass, passes, turn_of_real
from camshaft.ops.fft.kernels import TILE, fft_pass, half_spectrum, real_spectrum, transposed_columns
from camshaft.ops.fft.sizes import (
    FORMS,
    HALVED,
    NAME,
    Sizes,
    complex_at,
    own_points,
    real_at,
    real_points,
    sizes_of,
    table,
)
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

CPUS = ("simd", "scalar", "c")
# Points from which transposing between the sides is a step of its own; before, the columns are in the L1 cache.
LEAST_TURNED = 2048


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    s = sizes_of(specs, attrs)
    shape = (s.rows, s.keep, 2) if s.makes == "pairs" else (s.rows, s.keep)
    return (TensorSpec(shape, specs[0].dtype),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """By NumPy, whose transforms of longdouble are as wide."""
    x, form = inputs[0].astype(np.longdouble), attrs.get("form", "complex")
    n = attrs.get("n") or own_points(form, x.shape[1])
    values: Any = x[..., 0] + 1j * x[..., 1] if FORMS[form][0] == "pairs" else x
    count = n * (bool(attrs.get("turn_in")) + bool(attrs.get("turn_out")))
    turned = np.split(inputs[1][0, -count:] + 1j * inputs[1][1, -count:].astype(np.longdouble), max(count // n, 1))
    if attrs.get("turn_in"):
        width = min(values.shape[1], n)
        values = values[:, :width] * turned[0][:width]
    found: Any
    if form == "irfft":
        found = np.fft.irfft(values, n) * n
    elif form == "rfft":
        found = np.fft.rfft(values, n)
    else:
        found = np.fft.ifft(values, n) * n if attrs.get("inverse") else np.fft.fft(values, n)
    found = found * turned[-1] if attrs.get("turn_out") else found
    if real := real_points(form, n, attrs):
        found.imag[:, real_at(real)] = 0
    found = found[:, : attrs.get("keep")]
    parts = np.stack([found.real, found.imag], -1) * np.longdouble(attrs.get("scale", 1.0))
    return ((parts[..., 0] if FORMS[form][1] == "real" else parts).astype(np.float64),)


# --- launches ----------------------------------------------------------------------------------------------------------
def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    s, dtype = sizes_of(node.inputs, node.attrs), as_dtype(node.inputs[0].dtype)
    source, kind, out, made = _ends(node, s, dtype == f32 and target.backend in CPUS)
    launches: list[ops.Launch | ops.NativeCall] = []
    if s.form == "irfft":
        arrays = source, ops.read(1), ops.scratch(1, "write")
        launches.append(_halves(s, half_spectrum, arrays, s.points, width=s.width))
        source, kind = ops.scratch(1, "read"), "parts"
    steps, free = passes(s.points), 0
    for number, step in enumerate(steps, 1):
        if step.across and s.points >= LEAST_TURNED:
            launches.append(_transposed(s, step, (source, ops.read(1), ops.scratch(free, "write")), dtype))
            source, free, step = ops.scratch(free, "read"), 1 - free, replace(step, turn=0, across=0)
        ends = number == len(steps) and s.form != "rfft"
        into = out if ends else ops.scratch(free, "write")
        launches.append(_pass(s, step, (source, ops.read(1), into), kind, made if ends else "parts"))
        source, kind, free = ops.scratch(free, "read"), "parts", 1 - free
    if s.form == "rfft":
        launches.append(_halves(s, real_spectrum, (source, ops.read(1), out), s.points, scale=s.scale, made=made))
    scratch = TensorSpec((s.rows, 2, s.points), dtype)
    return ops.Build(tuple(launches), (scratch, scratch))


def _ends(node: ops.NodeSpec, s: Sizes, words: bool) -> tuple[ops.Operand, str, ops.Operand, str]:
    """How a transform reads its input and writes its output: complex pairs as `words` if rows are long enough."""
    elements = int(np.prod(node.outputs[0].bounds[1:]))
    kind = "pairs" if s.form == "rfft" else FORMS[s.form][0]
    made = "pairs" if s.form == "irfft" else s.makes
    source, out = ops.read(0, shape=(s.rows, s.width)), ops.write(0, shape=(s.rows, elements))
    if words and kind == "pairs" and s.form != "irfft" and s.width % 2 == 0 and s.width >= 2 * s.points:
        source, kind = ops.Operand("input", 0, shape=(s.rows, s.width // 2), dtype=u64), "words"
    if words and made == "pairs" and elements >= 2 * s.points:
        out, made = ops.write(0, shape=(s.rows, elements // 2), dtype=u64), "words"
    return source, kind, out, made


def _transposed(s: Sizes, step: Pass, arrays: tuple[ops.Operand, ...], dtype: DType) -> ops.Launch:
    rows = s.points // step.across
    constants: dict[str, Constant] = {"rows": rows, "columns": step.across, "turn": step.turn, "dtype": dtype.name}
    grid = ops.Cells(s.rows), ops.Cells(rows, TILE), ops.Cells(step.across, TILE)
    return ops.Launch(transposed_columns, arrays, grid, constants)


def _pass(s: Sizes, step: Pass, arrays: tuple[ops.Operand, ...], kind: str, made: str) -> ops.Launch:
    keep = s.points if s.form == "irfft" else s.keep
    constants: dict[str, Constant] = {
        **vars(step),
        "width": s.width if kind != "parts" else 0,
        "kind": kind,
        "made": made,
        "limit": keep if made != "parts" else 0,
        "inverse": (s.inverse or s.form == "irfft") and not kind == made == "parts",
        "scale": s.scale if made != "parts" else 1.0,
        "before": s.before if kind != "parts" else 0,
        "after": s.after if made != "parts" else 0,
        "real": s.real if made != "parts" else 0,
    }
    return ops.Launch(fft_pass, arrays, (ops.Cells(s.rows), ops.Cells(step.m)), constants)


def _halves(s: Sizes, kernel: Kernel, arrays: tuple[ops.Operand, ...], count: int, **more: Constant) -> ops.Launch:
    block = blocks.even_block(count)
    constants: dict[str, Constant] = {"n": s.points, "turn": turn_of_real(s.points), "block": block, **more}
    return ops.Launch(kernel, arrays, (ops.Cells(s.rows), ops.Cells(count, per=block)), constants)


def _flops(node: ops.NodeSpec) -> float:
    s = sizes_of(node.inputs, node.attrs)
    return 5.0 * s.rows * s.points * float(np.log2(max(s.points, 2)))


# (form, n, width, inverse, keep): every radix, one side and two, transposed in tiles or not, rows longer and shorter than n
_CASES = (
    ("complex", 60, 70, True, None),
    ("complex", 2048, 2000, False, None),
    ("complex", 77, 77, False, None),
    ("from_real", 26, 26, False, 14),
    ("from_real", 18, 18, True, None),
    ("to_real", 9, 5, True, None),
    ("rfft", 30, 30, False, None),
    ("irfft", 12, 7, True, None),
    ("rfft", 2, 2, False, None),
    ("complex", 1, 1, False, None),
)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(51)
    for form, n, width, inverse, keep in _CASES:
        for dtype in (f32, f64) if n == 60 else (f32,):
            shape = (3, width, 2) if FORMS[form][0] == "pairs" else (3, width)
            attrs = {"n": n, "form": form, "inverse": inverse} | ({"keep": keep} if keep else {})
            attrs |= {"scale": 1 / n} if inverse else {}
            x = rng.normal(size=shape).astype(dtype.numpy)
            turned = [rng.normal(size=n) + 1j * rng.normal(size=n) for _ in range(2 if n in (60, 26) else 0)]
            attrs |= {"turn_in": True, "turn_out": True, "real": keep} if turned else {}
            yield ops.Sample(f"{form} {n} of {width} {dtype}", (x, table(form, n, dtype, *turned)), attrs)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, pairs, tables = TensorSpec((2, 8), f32), TensorSpec((2, 8, 2), f32), TensorSpec((2, 9), f32)
    yield ops.ErrorSample((x,), {"n": 8}, "x and its table")
    yield ops.ErrorSample((pairs, tables), {"n": 8, "form": "dct"}, "wanted a form of")
    yield ops.ErrorSample((x, tables), {"n": 8}, r"wanted x \[rows, width, 2\]")
    yield ops.ErrorSample((pairs, tables), {"n": 17}, "without a prime factor above 13")
    yield ops.ErrorSample((x, tables), {"n": 9, "form": "rfft"}, "n of even points")
    yield ops.ErrorSample((pairs, tables), {"n": 8, "keep": 9}, "keep of 1 to 8")
    yield ops.ErrorSample((pairs, tables), {"n": 12}, "the table of factors")
    yield ops.ErrorSample((pairs, tables), {"n": 8, "real": 9}, "wanted real up to 8")


# The form of a gradient by the form of its transform: the conjugate transpose of a Fourier matrix is the inverse transform's.
_ADJOINT = {"complex": "complex", "from_real": "to_real", "to_real": "from_real", "rfft": "irfft", "irfft": "rfft"}


def _vjp(f: Any, dy: Any, y: Any, x: Any, factors: Any, **attrs: Any) -> tuple[Any, Callable[[], NoReturn]]:
    """The transform back, without 1 / n. A pair of conjugates counts twice in irfft, and once in rfft's gradient."""
    s = sizes_of((x.spec, factors.spec), attrs)
    given: dict[str, Any] = {"n": s.n, "form": _ADJOINT[s.form], "scale": s.scale}
    once = np.array([1.0, *[0.5] * (s.n // 2 - 1), 1.0], as_dtype(x.dtype).numpy)
    if s.form == "rfft":
        dy = dy * once[:, None]
    if s.real:
        dy = f.where(complex_at(s.real, s.keep), dy, 0.0)
    if s.form not in HALVED:
        turned = {"turn_in": s.after > 0, "turn_out": s.before > 0}
        given |= {"inverse": not s.inverse, "keep": min(x.shape[1], s.n), **turned}
        factors = _conjugated(f, factors, s)
    dx = f.fft_rows(dy, factors, **given)
    if s.form == "irfft":
        dx = dx / once[:, None]
    more = x.shape[1] - dx.shape[1]
    return (f.pad(dx, pad_width=((0, 0), (0, more), *((0, 0),) * (x.ndim - 2))) if more else dx), _by_factors


def _by_factors() -> NoReturn:
    raise ShapeError("fft_rows: got factors that change; wanted its gradient by x alone")


def _conjugated(f: Any, factors: Any, s: Sizes) -> Any:
    """The table whose factors of what is read are the conjugates of those of what was made, and the other way round."""
    if not s.before and not s.after:
        return factors
    own = s.before or s.after
    conjugate = np.array([[1], [-1]], as_dtype(factors.dtype).numpy)
    parts = [factors[:, at : at + s.n] * conjugate for at in (s.after, s.before) if at]
    return f.concat(factors[:, :own], *parts, axis=1)


OP = ops.Op(
    name=NAME,
    formula="y[r, f] = scale sum_t x[r, t] exp(-2 pi sqrt(-1) f t / n), + where inverse",
    parameters=Parameters(
        "x factors",
        (
            Attribute("n", "int | None", None),
            Attribute("form", "str", "complex"),
            Attribute("inverse", "bool", False),
            Attribute("scale", "float", 1.0),
            Attribute("keep", "int | None", None),
            Attribute("turn_in", "bool", False),
            Attribute("turn_out", "bool", False),
            Attribute("real", "int | None", None),
        ),
    ),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("passes", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12, "f64": 1e-29},
    flops=_flops,
    vjp=_vjp,
)
