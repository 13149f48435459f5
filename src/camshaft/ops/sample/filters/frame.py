"""The frame of ops that filter tokens: a row of their table, and the Op made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample.kept import LOWEST, WORD
from camshaft.ops.spec import TensorSpec


@dataclass(frozen=True)
class Filter:
    """`inputs`: name, dtype and further axes of each input after the logits; an axis "n" is ceil(n / 32). `keeps(row, *inputs)`:
    which tokens of a float64 row stay. `settings`: values of the inputs, one tuple for each row of a sample."""

    name: str
    text: str
    inputs: tuple[tuple[str, DType, tuple[Any, ...]], ...]
    keeps: Callable[..., ops.Array]
    decompose: Callable[..., Any]
    settings: tuple[tuple[Any, ...], ...]
    variants: tuple[ops.KernelVariant, ...] = ()

    def wanted(self, logits: TensorSpec) -> list[TensorSpec]:
        """The specs of the inputs after the logits."""
        words = -(-logits.bounds[1] // WORD)
        return [
            TensorSpec((logits.shape[0], *(words if a == "n" else a for a in axes)), dtype)
            for _, dtype, axes in self.inputs
        ]


def _infer(row: Filter, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    names = ", ".join(name for name, *_ in row.inputs)
    ops.expect(len(specs) == 1 + len(row.inputs) and not attrs, row.name, (*specs, *attrs), f"logits [R, n], {names}")
    x = specs[0]
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and isinstance(x.shape[1], int) and 0 not in x.bounds
    ops.expect(fits, row.name, x, "logits of f32 [R, n]")
    for spec, (name, *_), want in zip(specs[1:], row.inputs, row.wanted(x), strict=True):
        ops.expect(spec == want, row.name, spec, f"{name} of {want}")
    return (x,)


def _reference(row: Filter, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    rows = [np.where(row.keeps(x, *given), x, np.float32(LOWEST)) for x, *given in zip(*inputs, strict=True)]
    return (np.array(rows, np.float32),)


def _inputs(row: Filter, logits: ops.Array) -> tuple[ops.Array, ...]:
    words = -(-logits.shape[1] // WORD)
    made = []
    for i, (_, dtype, axes) in enumerate(row.inputs):
        size = tuple(words if a == "n" else a for a in axes)
        values = [np.resize(np.array(row.settings[r % len(row.settings)][i]), size) for r in range(len(logits))]
        made.append(np.array(values, dtype.numpy))
    return (logits, *made)


def _samples(row: Filter) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(len(row.name))
    for rows, n in ((1, 1), (4, 17), (6, 130)):
        logits = (3 * rng.normal(size=(rows, n))).astype(np.float32)
        yield ops.Sample(f"{rows}x{n}", _inputs(row, logits))
    odd = rng.normal(size=(6, 33)).astype(np.float32)
    odd[:, ::3], odd[3, 7], odd[4] = -np.inf, 1e30, odd[4, 1]
    yield ops.Sample("infinities, ties", _inputs(row, odd))
    x = rng.normal(size=(16, 33)).astype(np.float32)
    yield partly_active(ops.Sample("7 of 16", _inputs(row, x)), 7, extent="rows")


def _error_samples(row: Filter) -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 40), f32)
    inputs = row.wanted(x)
    yield ops.ErrorSample((x,), {}, "wanted logits")
    yield ops.ErrorSample((TensorSpec((40,), f32), *inputs), {}, "wanted logits of f32")
    yield ops.ErrorSample((x, TensorSpec((3,), f32), *inputs[1:]), {}, f"wanted {row.inputs[0][0]} of")


def op_of(row: Filter) -> ops.Op:
    """The Op of a row."""
    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=Parameters(" ".join(("logits", *(name for name, *_ in row.inputs)))),
        infer=lambda specs, attrs: _infer(row, specs, attrs),
        reference=lambda inputs, attrs: _reference(row, inputs, attrs),
        variants=row.variants,
        samples=lambda: _samples(row),
        error_samples=lambda: _error_samples(row),
        tolerance={"f32": 0.0},
        decompose=row.decompose,
    )
