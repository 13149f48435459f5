"""What the ops of quantizing.py are tried on: rows of one block to many, sums of both groups, with y and without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

_SHAPES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (1, 32, {"sums": "32-0"}),
    (3, 96, {"sums": "16-32"}),
    (2, 544, {"sums": "32-8 16-0", "floats": True}),
    (5, 1056, {"sums": "32-128", "floats": True}),
)


def _case(first: ops.Op, rows: int, k: int) -> tuple[tuple[ops.Array, ...], dict[str, Any]]:
    """Inputs and attributes of `first` for y of [rows, k]; the first block of the first row is zero."""
    rng = np.random.default_rng(rows + k)
    x = [rng.normal(size=(rows, k)).astype(np.float32) for _ in range(1 if first.name == "rms_norm" else 2)]
    for array in x:
        array[0, :32] = 0
    if first.name == "silu_multiply":
        return tuple(x), {}
    return (*x, rng.normal(size=k).astype(np.float32)), {"eps": 1e-5}


def samples(first: ops.Op) -> Iterable[ops.Sample]:
    """Samples of `first` followed by quantize_activations."""
    for rows, k, attrs in _SHAPES:
        inputs, own = _case(first, rows, k)
        yield ops.Sample(f"{rows}x{k} {attrs}", inputs, own | attrs)
    tokens = Extent("tokens", 16)
    inputs, own = _case(first, 16, 64)
    specs = tuple(TensorSpec((tokens, 64), f32) if a.ndim == 2 else TensorSpec((64,), f32) for a in inputs)
    yield ops.Sample("7 of 16", inputs, own | {"sums": "32-0 16-32", "floats": True}, specs, {tokens: 7})


def error_samples(first: ops.Op) -> Iterable[ops.ErrorSample]:
    """A row that is no whole number of blocks; sums of a group that there is not."""
    for k, sums, match in ((33, "32-0", "multiple of 32"), (64, "8-0", "sums such"), (64, "32-0 32-0", "each once")):
        inputs, own = _case(first, 2, 64)
        specs = tuple(TensorSpec((2, k) if a.ndim == 2 else (k,), f32) for a in inputs)
        yield ops.ErrorSample(specs, own | {"sums": sums}, match)
