"""Views of tensors, which add no thunk: other shapes, complex numbers as pairs and back, rows. ShapeError for an invalid view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from camshaft.dtypes import PARTS, DType
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.graph.checks import checked_tensor
from camshaft.graph.tensor import Tensor
from camshaft.ops.spec import Dim, TensorSpec, dims

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph


def reshape(graph: Graph, x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """A view in another shape; Extents and the axes before them must not change."""
    checked_tensor("reshape", x)
    spec = TensorSpec(dims("reshape", shape), x.spec.dtype)
    if not x.spec.is_plain or spec.nbytes != x.spec.nbytes:
        raise ShapeError(f"reshape: got {x.spec} as {spec}; wanted a plain tensor with as many elements")
    last = max((i for s in (x.shape, spec.shape) for i, dim in enumerate(s) if isinstance(dim, Extent)), default=-1)
    if x.shape[: last + 1] != spec.shape[: last + 1]:
        raise ShapeError(f"reshape: got {x.spec} as {spec}; wanted every Extent where it was")
    return Tensor(spec, x.name, "view", base=x, graph=graph)


def pairs(graph: Graph, x: Tensor) -> Tensor:
    """A view of complex numbers [..] as pairs [.., 2] of real and imaginary part."""
    checked_tensor("pairs", x)
    part = PARTS.get(x.spec.dtype) if isinstance(x.spec.dtype, DType) else None
    if part is None or not x.spec.is_plain:
        raise ShapeError(f"pairs: got {x.spec}; wanted a tensor of complex64 or complex128")
    return Tensor(TensorSpec((*x.shape, 2), part), x.name, "view", base=x, graph=graph)


def as_complex(graph: Graph, x: Tensor) -> Tensor:
    """A view of pairs [.., 2] of f32 or f64 as complex numbers [..]."""
    checked_tensor("as_complex", x)
    whole = next((c for c, part in PARTS.items() if part == x.spec.dtype), None)
    if whole is None or not x.spec.is_plain or x.shape[-1:] != (2,):
        raise ShapeError(f"as_complex: got {x.spec}; wanted pairs [.., 2] of f32 or f64")
    return Tensor(TensorSpec(x.shape[:-1], whole), x.name, "view", base=x, graph=graph)


def rows(graph: Graph, x: Tensor, first: int, last: int) -> Tensor:
    """A view of rows [first, last) of a plain tensor, whose axis 0 is not an Extent."""
    checked_tensor("rows", x)
    n_rows = x.shape[0] if x.spec.is_plain and x.shape else 0
    whole = isinstance(first, int) and isinstance(last, int)
    if isinstance(n_rows, Extent) or not whole or not 0 <= first < last <= n_rows:
        raise ShapeError(f"rows: got [{first}, {last}) of {x.spec}; wanted rows of a plain tensor that has them")
    spec, offset_nbytes = TensorSpec((last - first, *x.shape[1:]), x.spec.dtype), x.spec.nbytes // n_rows * first
    name = f"{x.name}[{first}:{last}]"
    return Tensor(spec, name, "view", base=x, graph=graph, offset_nbytes=offset_nbytes)
