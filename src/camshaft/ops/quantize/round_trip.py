"""quantize_dequantize_gguf: the numbers that a GGUF block format has for x, as training that rounds weights needs them.

The arithmetic is the codec's (formats/quants/simple.py), operation by operation, so on a CPU the results have its bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops import op as ops
from camshaft.ops.checks import expect_tensor, partly_active
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

NAME, BLOCK = "quantize_dequantize_gguf", 32


def _q8_0(f: Any, x: Any) -> Any:
    """d = max|x| / 127; q = x / d, halves rounded away from zero."""
    d = f.max(f.abs(x), axes=-1, keepdims=True) / 127.0
    scaled = x * _inverse(f, d)
    size = f.abs(scaled)
    whole = f.floor(size)
    code = whole + f.floor((size - whole) * 2.0)
    return _in_f16(f, d) * f.where(scaled < 0.0, 0.0 - code, code)


def _q4_0(f: Any, x: Any) -> Any:
    """d = x of largest magnitude / -8, the first of equals; q = floor(x / d + 8.5), at most 15."""
    high, low = (reduce(x, axes=-1, keepdims=True) for reduce in (f.max, f.min))
    places = [reduce(x, axis=-1).reshape(high.shape) for reduce in (f.argmax, f.argmin)]
    first = f.where(places[0] < places[1], high, low)
    d = f.where(high > -low, high, f.where(-low > high, low, first)) / -8.0
    # the maximum, which changes nothing, keeps the product and the sum from becoming one operation with one rounding
    code = f.minimum(f.floor(f.maximum(x * _inverse(f, d), -9.0) + 8.5), 15.0)
    return _in_f16(f, d) * (code - 8.0)


def _inverse(f: Any, d: Any) -> Any:
    inverse = 1.0 / d  # infinite where d is 0, or so small that f16 has 0 for it
    return f.where(f.less(f.abs(inverse), np.inf), inverse, 0.0)


def _in_f16(f: Any, d: Any) -> Any:
    return f.cast(f.cast(d, to="f16"), to="f32")


FORMATS = {"Q4_0": _q4_0, "Q8_0": _q8_0}


def _format_of(attrs: ops.Attrs) -> str:
    name = attrs.get("format", "Q4_0")
    ops.expect(name in FORMATS, NAME, f"format {name!r}", f"a format of {', '.join(FORMATS)}")
    return str(name)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, NAME, specs, "one tensor x [..., k]")
    (x,) = specs
    _format_of(attrs)
    expect_tensor(NAME, x, (f32,))
    fits = not isinstance(x.shape[-1], Extent) and x.bounds[-1] % BLOCK == 0
    ops.expect(fits, NAME, x, f"x [..., k] with k a multiple of {BLOCK}")
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    block, x = BLOCK_FORMATS[_format_of(attrs)], inputs[0]
    return (block.dequantize(block.quantize(x.reshape(-1, BLOCK))).reshape(x.shape).astype(np.float64),)


def _decompose(f: Any, x: Any, format: str = "Q4_0") -> Any:
    groups = x.reshape((*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK))
    return FORMATS[format](f, groups).reshape(x.shape)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(6)
    for name in FORMATS:
        x = rng.normal(size=(5, 96)).astype(np.float32)
        x[0, :32] = 0
        x[1, :32] = np.tile([1, -1], 16)  # the first of equal magnitude gives the sign
        x[2, :32] = np.tile([-2, 2], 16)
        yield ops.Sample(f"{name} 5x96", (x,), {"format": name})
    yield partly_active(ops.Sample("3 of 5", (x,), {"format": "Q8_0"}), 3)
    yield ops.Sample("2x3x32", (rng.normal(size=(2, 3, 32)).astype(np.float32),), {"format": "Q8_0"})


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 33), f32),), {}, "k a multiple of 32")
    yield ops.ErrorSample((TensorSpec((2, 64), f32),), {"format": "Q4_1"}, "a format of Q4_0, Q8_0")


OP = ops.Op(
    name=NAME,
    formula="y = dequantize(quantize(x)) in a GGUF format",
    parameters=Parameters("x", (Attribute("format", "str", "Q4_0"),)),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    # where a GPU's division is not exact, a few codes are neighbors
    tolerance={"f32": 1e-6},
    decompose=_decompose,
    vjp=lambda f, dy, y, x, format="Q4_0": dy,  # straight through: the derivative of a step is of no use
)
