"""DoRA (Liu et al., 2024): W' = diag(f) (W + scale B A), f[r] = m[r] / ||(W + scale B A)[r]||, m a magnitude per row."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.tensor import Tensor
from camshaft.models.checkpoint import Checkpoint

Array = np.ndarray[Any, Any]
# The smallest norm that a magnitude is divided by: a row of zeros stays one, where PEFT has NaN.
_TINY = 1e-12


def squared_norms(weight: Array) -> Array:
    """The squared norm of each row of a matrix [n, k], f32 [n], summed in f64."""
    found: Array = np.einsum("nk,nk->n", weight, weight, dtype=np.float64).astype(np.float32)
    return found


def row_factors(magnitude: Array, weight: Array) -> Array:
    """Returns f, f32 [n], from the magnitudes [n] and W + scale B A [n, k]."""
    norms = np.sqrt(np.einsum("nk,nk->n", weight, weight, dtype=np.float64))
    found: Array = (magnitude / np.maximum(norms, _TINY)).astype(np.float32)
    return found


def factors_tensor(
    name: str, magnitude: FileTensor, weight: FileTensor, pair: tuple[FileTensor, FileTensor], scale: float
) -> FileTensor:
    """Returns f of a matrix of the model as a tensor f32 [n], computed on first use."""

    @functools.cache
    def read() -> Array:
        a, b = (t.dequantize() for t in pair)
        changed = weight.dequantize() + np.float32(scale) * (b @ a)
        data = row_factors(magnitude.dequantize(), changed).view(np.uint8)
        data.flags.writeable = False
        return data

    (n,) = magnitude.shape
    return FileTensor(name, (n,), BLOCK_FORMATS["F32"], 4 * n, read, magnitude.path)


def learned_factors(
    checkpoint: Checkpoint, name: str, pair: Mapping[str, Tensor], scale: float, squares: Array
) -> Tensor:
    """f [n] of parameters `a` [rank, k], `b` [n, rank] and `m` [n]. The norm is a constant to gradients, as in PEFT.

    ||W + s B A||^2 = ||W||^2 + 2 s sum_r (W A^T)[:, r] B[:, r] + s^2 sum_r (B A A^T)[:, r] B[:, r] by rows: W is multiplied by
    rank rows in its packed form. `squares` [n] are ||W||^2."""
    a, b = f.stop_gradient(pair["a"]), f.stop_gradient(pair["b"])
    (n, _), (_, k) = b.spec.bounds, a.spec.bounds
    crossed = f.transpose(
        checkpoint.product(a, checkpoint.tensor(f"{name}.weight", n, k), f"{name}.crossed"), axes=(1, 0)
    )
    inner = f.matmul(b, f.matmul(a, a, transpose_b=True))
    change = f.sum((crossed * (2 * scale) + inner * (scale * scale)) * b, axes=1)
    norms = f.sqrt(f.maximum(checkpoint.made(f"{name}.squares", lambda: squares) + change, _TINY**2))
    factors: Tensor = pair["m"] / f.stop_gradient(norms)
    return factors
