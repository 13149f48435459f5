"""dot by BLAS: y = sum_i a[i] b[i] by NumPy's cblas_ddot on the host. A variant of ops/reduce/reduction.py's dot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from camshaft.backends.blas import library
from camshaft.ops import op as ops
from camshaft.ops.spec import bound


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Why NumPy's BLAS cannot do it, or None."""
    if not node.inputs[0].parts[0].dtype.is_float:
        return "NumPy multiplies integers without BLAS"
    return library.absent()


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.HostCall:
    return ops.HostCall(_by_numpy)


def _by_numpy(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    # in f64, as the folds have it: a sum that cancels keeps f32's places
    a, b = (x.astype(np.float64, copy=False) for x in inputs)
    outputs[0][...] = np.dot(a, b)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Nanoseconds: both operands widened and read on one thread, the way into Python and out."""
    return 20_000.0 + bound(node.inputs[0].shape[0]) / 0.5


VARIANT = ops.KernelVariant("numpy", frozenset({"blas"}), _build, _supports, _cost)
