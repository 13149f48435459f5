"""A geometric ladder of shapes per op to tune without a model; other shapes use the nearest one."""

from __future__ import annotations

from collections.abc import Iterator

from camshaft import ops
from camshaft.dtypes import f32
from camshaft.ops.op import Attrs, NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.tune.graphs import Use

# Rows, depth and columns. Steps are at most a factor of 16, so every shape between has a neighbour (measurements.REACH).
SQUARES = (16, 64, 256, 1024)
FEW_ROWS = (1, 8, 32)
WIDTHS = (64, 256, 1024)
# Elements of elementwise ops; (rows, columns) of row-wise ops.
ELEMENTS = (256, 4096, 65536, 1 << 20)
BY_ROW = ((1, 1024), (16, 256), (256, 1024), (1024, 4096))

_ELEMENTWISE = {"add": 2, "multiply": 2, "silu": 1, "silu_multiply": 2}


def ladder(override: str | None = None, only: str = "") -> list[Use]:
    """The uses of all ops with a ladder, or of those whose name contains `only`."""
    return [Use(ops.get(name), node, override) for name, node in _nodes() if only in name]


def _nodes() -> Iterator[tuple[str, NodeSpec]]:
    for m, k, n in _products():
        for transposed in (False, True):
            b = (n, k) if transposed else (k, n)
            yield "matmul", _node("matmul", [(m, k), b], {"transpose_b": True} if transposed else {})
    for name, n_inputs in _ELEMENTWISE.items():
        for size in ELEMENTS:
            yield name, _node(name, [(size,)] * n_inputs, {})
    for rows, columns in BY_ROW:
        x, w = (rows, columns), (columns,)
        yield "softmax", _node("softmax", [x], {})
        yield "rms_norm", _node("rms_norm", [x, w], {"eps": 1e-5})
        yield "residual_norm", _node("residual_norm", [x, x, w], {"eps": 1e-5})


def _products() -> Iterator[tuple[int, int, int]]:
    """Distinct (m, k, n) of matrix products."""
    yield from ((size, size, size) for size in SQUARES)
    yield from ((m, k, n) for m in FEW_ROWS for k in WIDTHS for n in WIDTHS)


def _node(op: str, shapes: list[tuple[int, ...]], attrs: Attrs) -> NodeSpec:
    specs = tuple(TensorSpec(shape, f32) for shape in shapes)
    return NodeSpec(specs, ops.get(op).infer(specs, attrs), attrs)
