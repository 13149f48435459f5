"""The frame of ops on sequences: the shape rule, the reference and the samples that follow from the axes of each input.

Axes are letters: B sequences of T tokens; H heads of values in G groups of queries and keys; K and V, the sizes of a key
and a value; others as an op names them. A state has no T: it comes in, and comes out as it is after the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, i32
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

Sizes = Mapping[str, int]
NARROW = (f32, f16, bf16)


@dataclass(frozen=True)
class AxesOp:
    """An op by the axes of its inputs, each a letter. "*" stands before the name of an optional input, which is the last."""

    name: str
    inputs: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs without their stars."""
        return tuple(name.lstrip("*") for name in self.inputs)

    @property
    def n_required(self) -> int:
        """The number of inputs that are not optional."""
        return sum(not name.startswith("*") for name in self.inputs)

    def expect_inputs(self, specs: Sequence[TensorSpec]) -> None:
        """ShapeError for too few or too many inputs."""
        wanted = "; ".join(f"{n} [{', '.join(axes)}]" for n, axes in self.inputs.items())
        ops.expect(self.n_required <= len(specs) <= len(self.inputs), self.name, f"{len(specs)} inputs", wanted)


@dataclass(frozen=True)
class SequenceOp(AxesOp):
    """An op on sequences. `gives`: the axes of each result. `narrow`: the inputs that may be f16 or bf16, all alike; the first
    result then is too, the others are f32. `check` refuses sizes and attributes. `sizes`: those of the samples. `draws`: values
    of an input, of a generator and a shape."""

    gives: tuple[str, ...]
    numpy: Callable[..., tuple[Any, ...]]
    sizes: Sequence[Sizes]
    narrow: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    given: Sequence[ops.Attrs] = ({},)
    check: Callable[[Sizes, ops.Attrs], None] = lambda sizes, attrs: None
    draws: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = field(default_factory=dict)


def sequence_op(row: SequenceOp, formula: str, decompose: Callable[..., Any], **fields: Any) -> ops.Op:
    """The Op of a row; without `variants` it is computed by its decomposition."""
    return ops.Op(
        **{"variants": (), "tolerance": TO_TOLERANCE | {"f32": 2e-12}}
        | fields
        | {
            "name": row.name,
            "formula": formula,
            "infer": lambda specs, attrs: infer(row, specs, attrs),
            "reference": lambda arrays, attrs: _reference(row, arrays, attrs),
            "samples": lambda: _samples(row),
            "error_samples": lambda: _error_samples(row),
            "decompose": in_f32(decompose, row),
            "parameters": Parameters(" ".join(row.inputs), row.attributes, results=len(row.gives)),
        }
    )


def sizes_of(row: SequenceOp, specs: Sequence[TensorSpec]) -> dict[str, int]:
    """The size of each axis. ShapeError for inputs of other axes or dtypes."""
    row.expect_inputs(specs)
    sizes: dict[str, int] = {}
    shared = next((s.dtype for n, s in zip(row.names, specs, strict=False) if n in row.narrow), f32)
    for (name, axes), spec in zip(row.inputs.items(), specs, strict=False):
        plain = name.lstrip("*")
        dtype = shared if plain in row.narrow else f32
        text = f"{plain} of {dtype if dtype in NARROW else 'f32, f16 or bf16'} [{', '.join(axes)}]"
        fits = spec.is_plain and spec.dtype == dtype and dtype in NARROW and len(spec.shape) == len(axes)
        fits = fits and all(isinstance(d, int) and d > 0 for d in spec.shape)
        ops.expect(fits, row.name, spec, f"{text}, of fixed sizes above 0")
        for axis, size in zip(axes, spec.bounds, strict=True):
            known = sizes.setdefault(axis, size)
            ops.expect(known == size, row.name, spec, f"{text} with {axis} = {known}")
    return sizes


def infer(row: SequenceOp, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    """The specs of the results."""
    sizes = sizes_of(row, specs)
    row.check(sizes, attrs)
    first = specs[0].dtype if row.names[0] in row.narrow else f32
    return tuple(
        TensorSpec(tuple(sizes[a] for a in axes), as_dtype(f32 if i else first)) for i, axes in enumerate(row.gives)
    )


def _reference(row: SequenceOp, arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    wide = [np.asarray(a).astype(np.float64) for a in arrays]
    wide += [None] * (len(row.inputs) - len(wide))  # type: ignore[list-item]
    return tuple(np.asarray(y, np.float64) for y in row.numpy(*wide, **attrs))


def in_f32(decompose: Callable[..., Any], row: SequenceOp) -> Callable[..., Any]:
    """The decomposition with 16-bit inputs cast to f32, and the first result cast back."""

    def decomposed(f: Any, *tensors: Any, **attrs: Any) -> Any:
        dtype = as_dtype(tensors[0].dtype)
        if dtype == f32:
            return decompose(f, *tensors, **attrs)
        wide = (f.cast(t, to="f32") if t.dtype == dtype else t for t in tensors)
        first, *others = _tuple(decompose(f, *wide, **attrs))
        return (f.cast(first, to=dtype.name), *others)

    return decomposed


def _tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def drawn(row: SequenceOp, sizes: Sizes, count: int, dtype: DType, seed: int) -> tuple[ops.Array, ...]:
    """Values of the first `count` inputs: normal, or as `draws` says."""
    rng = np.random.default_rng(seed)
    arrays = []
    for name, axes in zip(row.names[:count], row.inputs.values(), strict=False):
        shape = tuple(sizes[a] for a in axes)
        values = row.draws[name](rng, shape) if name in row.draws else rng.normal(size=shape)
        arrays.append(np.asarray(values, np.float32).astype(dtype.numpy if name in row.narrow else np.float32))
    return tuple(arrays)


def _samples(row: SequenceOp) -> Iterable[ops.Sample]:
    """Each of the sizes with and without the optional input, then 16-bit inputs."""
    for i, sizes in enumerate(row.sizes):
        attrs = row.given[i % len(row.given)]
        count = len(row.inputs) if i % 2 == 0 else row.n_required
        text = " ".join(f"{a}{n}" for a, n in sizes.items())
        yield ops.Sample(text, drawn(row, sizes, count, f32, i), attrs)
    for dtype in (f16, bf16) if row.narrow else ():
        last = row.sizes[0]
        yield ops.Sample(dtype.name, drawn(row, last, len(row.inputs), dtype, 9), row.given[0])


def _error_samples(row: SequenceOp) -> Iterable[ops.ErrorSample]:
    """An input too few, another dtype, one axis longer than elsewhere."""
    specs = tuple(TensorSpec(a.shape, f32) for a in drawn(row, row.sizes[0], len(row.inputs), f32, 0))
    attrs = row.given[0]
    yield ops.ErrorSample(specs[: row.n_required - 1], attrs, "wanted .*;" if row.n_required > 1 else "wanted")
    yield ops.ErrorSample((TensorSpec(specs[0].shape, i32), *specs[1:]), attrs, f"wanted {row.names[0]} of f32")
    last, names = specs[-1], row.names
    if len(row.inputs) > 1:
        wrong = TensorSpec((last.bounds[0] + 1, *last.shape[1:]), f32)
        yield ops.ErrorSample((*specs[:-1], wrong), attrs, f"wanted {names[-1]} of f32")


def expect_heads(op: str, sizes: Sizes) -> None:
    """ShapeError unless each head of keys serves as many heads of values."""
    wanted = "heads of values H a multiple of the heads of keys G"
    ops.expect(sizes["H"] % sizes["G"] == 0, op, (sizes["H"], sizes["G"]), wanted)


def decays(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Log decays: mostly near 0, a few large."""
    return -np.exp(rng.normal(size=shape) - 2)


def rates(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Numbers between 0 and 1."""
    return 1 / (1 + np.exp(-rng.normal(size=shape)))


def small(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Vectors of about unit length."""
    return rng.normal(size=shape) / np.sqrt(shape[-1])
