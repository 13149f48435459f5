"""real, imag and conj of complex numbers, by views of their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, as_dtype, complex64, f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import COMPLEX, expect_tensor
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(61)
    for shape, dtype in (((3, 5), np.complex64), ((7,), np.complex128), ((), np.complex64)):
        x = np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape), dtype)
        yield ops.Sample(f"{shape}", (x,))


def _op(name: str, formula: str, function: Callable[..., Any], decompose: Callable[..., Any]) -> ops.Op:
    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        ops.expect(len(specs) == 1, name, specs, "one tensor")
        if specs[0].shape:
            expect_tensor(name, specs[0], COMPLEX)
        else:
            ops.expect(specs[0].dtype in COMPLEX, name, specs[0], "a number of complex64 or complex128")
        dtype = as_dtype(specs[0].dtype)
        return (TensorSpec(specs[0].shape, dtype if name == "conj" else PARTS[dtype]),)

    def reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
        return (np.asarray(function(inputs[0])),)

    def error_samples() -> Iterable[ops.ErrorSample]:
        yield ops.ErrorSample((TensorSpec((2,), f32),), {}, "wanted a tensor of complex64 or complex128")
        ragged = TensorSpec((2, Extent("rows", 3)), complex64)
        yield ops.ErrorSample((ragged,), {}, "an Extent only as its first axis")

    return ops.Op(
        name=name,
        formula=formula,
        parameters=Parameters("x"),
        infer=infer,
        reference=reference,
        decompose=decompose,
        samples=_samples,
        error_samples=error_samples,
        tolerance={},
    )


def _conj(f: Any, x: Any) -> Any:
    pairs = x.pairs()
    return f.where(np.array([True, False]), pairs, -pairs).as_complex()


OPS = {
    "real": _op("real", "y = the real part of x", np.real, lambda f, x: x.pairs()[..., 0]),
    "imag": _op("imag", "y = the imaginary part of x", np.imag, lambda f, x: x.pairs()[..., 1]),
    "conj": _op("conj", "y = x with its imaginary part negated", np.conj, _conj),
}
