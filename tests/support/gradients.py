"""The gradients of an op on its samples, computed by the ops' references, and central differences of its own reference.

The loss is the sum of the op's results times random numbers. Samples are taken in f64 where the op accepts that.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, DType, as_dtype, bf16, f16, f64
from camshaft.errors import CamshaftError
from camshaft.graph.functions import function
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.decompose import use_of
from camshaft.ops.op import Op, Sample
from camshaft.ops.spec import TensorSpec
from tests.support.references import evaluated

Array = np.ndarray[Any, Any]
# Half the distance of a difference, and the error allowed, as a share of the sum of what the derivative is added up from.
STEP, ERROR = {True: 1e-6, False: 5e-5}, {True: 1e-6, False: 2e-3}
# Numbers from LEAST to MOST in size: smaller ones are replaced, as derivatives have steps at 0, and differences of 1 / x err.
LEAST, MOST = 0.3, 6.0
SHORT = (f16, bf16)
# Inputs that are tables of constants, and samples whose targets are out of range, which make their gradient NaN.
TABLES = (("fft_rows", 1), *((f"rope{kind}", 2) for kind in ("", "_multi", "_axial_2d", "_vision_2d")))
WITHOUT = (("cross_entropy", "none, long"), ("cross_entropy_gradient", "several blocks, no class"))
# Ops that are computed for positive numbers only, and those whose samples have a structure that new numbers would lose.
POSITIVE = ("log", "log1p", "sqrt", "rsqrt", "power")
AS_THEY_ARE = ("cholesky", "triangular_solve", "triangular_inverse")


def is_float(spec: TensorSpec) -> bool:
    """Whether a tensor has numbers with a gradient."""
    dtype = spec.dtype
    return spec.is_plain and isinstance(dtype, DType) and (dtype.is_float or dtype in PARTS)


def takes(op: Op, sample: Sample) -> bool:
    """Whether a sample has inputs and results of floats that are not rounded to 16 bits."""
    if (op.name, sample.name) in WITHOUT:
        return False
    try:
        case = Case(op, of_numbers(op, sample))
    except ValueError:
        return False
    floats = [s for s in case.outputs if is_float(s)]
    return bool(case.wrt) and bool(floats) and not any(s.dtype in SHORT for s in floats)


def of_numbers(op: Op, sample: Sample, kinks: bool = False) -> Sample:
    """The sample with finite numbers, in f64 or else f32 where the op takes that, and all rows of an Extent.

    Without `kinks` no two numbers are equal, and none is near 0. ValueError if the op takes neither dtype.
    """
    rng = np.random.default_rng(zlib.crc32(f"{op.name} {sample.name}".encode()))
    specs = specs_of(sample)
    pairs = enumerate(zip(sample.inputs, specs, strict=True))
    wide = [_numbers(rng, op, i, a, kinks) if is_float(s) else a for i, (a, s) in pairs]
    plain = {key: value for key, value in sample.attrs.items() if key != "to"}
    for narrower in (lambda a, s: a, _halved, _kept):
        for attrs in (plain, dict(sample.attrs)):
            arrays = [narrower(a, s) if is_float(s) else a for a, s in zip(wide, specs, strict=True)]
            new = tuple(
                TensorSpec(s.bounds, as_dtype(a.dtype) if s.is_plain else s.dtype, s.layout)
                for a, s in zip(arrays, specs, strict=True)
            )
            if op.accepts(new, attrs):
                return Sample(sample.name, tuple(arrays), attrs, new)
    raise ValueError(f"{op.name} takes {sample.name} in neither f32 nor f64")


def specs_of(sample: Sample) -> tuple[TensorSpec, ...]:
    """The specs of a sample's inputs."""
    return sample.specs or tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in sample.inputs)


def _halved(x: Array, spec: TensorSpec) -> Array:
    return x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)


def _kept(x: Array, spec: TensorSpec) -> Array:
    return x.astype(spec.parts[0].dtype.numpy)


def _numbers(rng: np.random.Generator, op: Op, index: int, array: Array, kinks: bool) -> Array:
    x = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    drawn = rng.uniform(0.5, 1.5, x.shape).astype(x.dtype)
    drawn += 0.5j * drawn if x.dtype.kind == "c" else 0  # |x| by its parts has a kink where one is 0
    x = np.where(np.isfinite(x), x, drawn)
    if op.name in AS_THEY_ARE:
        return x
    x = np.where(np.abs(x) > MOST, np.sign(x) * drawn, x)
    x = np.abs(x) if op.name in POSITIVE and index == 0 else x
    if kinks:
        return x
    x = np.where(np.abs(x) < LEAST, np.where(x.real < 0, -1, 1) * drawn, x)
    return x * rng.uniform(0.9, 1.1, x.shape)


@dataclass(frozen=True)
class Case:
    """An op on a sample."""

    op: Op
    sample: Sample

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return specs_of(self.sample)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.op.infer(self.inputs, self.sample.attrs)

    @cached_property
    def wrt(self) -> tuple[int, ...]:
        """The inputs of floats, but for those of 16 bits, in which no small difference shows."""
        found = [i for i, spec in enumerate(self.inputs) if is_float(spec) and spec.dtype not in SHORT]
        return tuple(i for i in found if (self.op.name, i) not in TABLES)

    @property
    def in_f64(self) -> bool:
        """Whether all is computed in f64."""
        floats = [self.inputs[i].dtype for i in self.wrt] + [s.dtype for s in self.outputs if is_float(s)]
        return all(PARTS.get(dtype, dtype) == f64 for dtype in floats)

    @cached_property
    def given(self) -> list[Array]:
        """The inputs; of packed ones random numbers, which references take as well."""
        rng = np.random.default_rng(0)
        pairs = zip(self.sample.inputs, self.inputs, strict=True)
        return [a if s.is_plain else rng.normal(size=s.bounds) for a, s in pairs]

    @cached_property
    def factors(self) -> dict[int, Array]:
        """What each result of floats is multiplied by: 0 where it is not finite, and where it is the same for all inputs."""
        rng, found = np.random.default_rng(5), {}
        made = self.results(self.given)
        for i, spec in enumerate(self.outputs):
            if is_float(spec):
                c = _drawn(rng, spec)
                found[i] = np.where(np.isfinite(np.asarray(made[i], c.dtype)) & (np.abs(made[i]) < 1e30), c, 0)
        return found

    def results(self, given: list[Array]) -> tuple[Array, ...]:
        """The op's results by its reference."""
        known = {a.name for a in self.op.parameters.attributes}
        attrs = {name: value for name, value in self.sample.attrs.items() if name in known}
        with np.errstate(all="ignore"):
            return self.op.reference(given, attrs)

    def loss(self, given: list[Array]) -> float:
        """The sum of results times factors."""
        made, total = self.results(given), np.longdouble(0)
        for i, c in self.factors.items():
            y = np.asarray(made[i]).astype(np.clongdouble if c.dtype.kind == "c" else np.longdouble)
            total += np.sum(np.real(np.where(c == 0, 0, y) * np.conj(c)))
        return float(total)

    def graph(self, order: int = 1) -> Graph:
        """The op, with the gradient by input i as output g<i>; of order 2 that of the gradients times `second`, summed."""
        graph = use_of(self.op, self.sample)
        wrt = [graph.inputs[f"x{i}"] for i in self.wrt]
        gradients = graph.gradients(added([weighed(graph.outputs[f"y{i}"], c) for i, c in self.factors.items()]), wrt)
        if order == 2:
            parts = [weighed(g, self.second[i]) for i, g in zip(self.wrt, gradients, strict=True)]
            gradients = graph.gradients(added(parts), wrt)
        for i, gradient in zip(self.wrt, gradients, strict=True):
            graph.output(f"g{i}", gradient)
        return graph

    @cached_property
    def second(self) -> dict[int, Array]:
        """What the gradient by each input is multiplied by for its own gradient."""
        rng = np.random.default_rng(6)
        return {i: _drawn(rng, self.inputs[i]) for i in self.wrt}

    def values(self, order: int = 1) -> Mapping[int, Array]:
        """The gradients by input, computed by the references of the graph's ops."""
        found = evaluated(self.graph(order), {f"x{i}": a for i, a in enumerate(self.given)}, {})
        return {i: found[f"g{i}"] for i in self.wrt}

    @cached_property
    def gradients(self) -> Mapping[int, Array]:
        """Those of order 1."""
        return self.values()

    def errors(self) -> dict[int, float]:
        """By input: the greatest difference of the derivative along random numbers from a central difference, in ERRORs."""
        return {i: self._error(i) for i in self.wrt}

    def _error(self, index: int) -> float:
        exact = self.in_f64
        along = self._direction(index)
        losses = [self._moved(index, sign * STEP[exact] * along) for sign in (1, -1)]
        terms = np.real(np.conj(self.gradients[index].astype(along.dtype)) * along)
        difference = abs((losses[0] - losses[1]) / (2 * STEP[exact]) - terms.sum())
        scale = np.abs(terms).sum() + abs(losses[0]) + 1e-3
        return float(difference / scale / ERROR[exact])

    def _direction(self, index: int) -> Array:
        """Random numbers with the gradient's signs: terms that cancelled would hide a wrong scale."""
        x, gradient = self.given[index], self.gradients[index]
        rng = np.random.default_rng(index)

        def signed(part: Array) -> Array:
            drawn = rng.normal(size=x.shape)
            return np.where(part == 0, drawn, np.copysign(drawn, part))

        along = signed(gradient.real) + (1j * signed(gradient.imag) if x.dtype.kind == "c" else 0)
        # cholesky's gradient is that of a symmetric matrix
        return along + np.swapaxes(along, -1, -2) if self.op.name == "cholesky" else along

    def _moved(self, index: int, by: Array) -> float:
        """The loss with an input moved, in f64 where the reference takes that."""
        given = [a.astype(np.float64) if a.dtype == np.float32 else a for a in self.given]
        given[index] = self.given[index] + by
        try:
            return self.loss(given)
        except CamshaftError:
            return self.loss([a.astype(b.dtype) for a, b in zip(given, self.given, strict=True)])


def _drawn(rng: np.random.Generator, spec: TensorSpec) -> Array:
    """Numbers of -1 to 1, of complex ones both parts."""
    imaginary = 1j * rng.uniform(-1, 1, spec.bounds) if spec.dtype in PARTS else 0
    return np.array(rng.uniform(-1, 1, spec.bounds) + imaginary)


def added(parts: list[Tensor]) -> Tensor:
    """The sum of numbers, which may differ in dtype."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def weighed(y: Tensor, c: Array) -> Tensor:
    """The sum of y times c, of complex numbers of their parts, as f64 or f32; where c is 0, whatever y is."""
    multiply, where, total = function("multiply"), function("where"), function("sum")
    if y.dtype in PARTS:
        y, c = y.pairs(), np.stack([c.real, c.imag], -1)
    numpy = y.spec.parts[0].dtype.numpy
    if not c.all():
        y = where(c != 0, y, 0)
    made: Tensor = multiply(y, c.astype(numpy))
    return made if not made.ndim else total(made)


def rule(op: Op, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The op's `vjp` with each gradient that it returns changed."""

    def changed(made: Any) -> Any:
        if made is None:
            return None
        return (lambda: change(made())) if callable(made) else change(made)

    def vjp(*inputs: Any, **attrs: Any) -> Any:
        assert callable(op.vjp)
        found = op.vjp(*inputs, **attrs)
        return tuple(map(changed, found)) if isinstance(found, tuple) else changed(found)

    return vjp
