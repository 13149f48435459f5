"""The ops as functions of graph tensors, such as rms_norm(x, w, eps=1e-5), made from the table of ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from camshaft import ops
from camshaft.errors import ShapeError
from camshaft.graph.tensor import Tensor, graph_of
from camshaft.ops.signatures import of_tensors

if TYPE_CHECKING:
    from camshaft.graph.tensor_functions import *  # noqa: F403 - types, written by scripts/stubs.py


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Returns an op's function, which takes tensors, then attributes by keyword; several outputs are returned as a tuple.

    At least one input must be a Tensor; Python numbers and arrays become constants, with NumPy's promotion.
    """
    op = ops.get(name)

    def apply(*inputs: Any, **attrs: Any) -> Any:
        first = next((t for t in inputs if isinstance(t, Tensor)), None)
        if first is None:
            raise ShapeError(f"{name}: got no tensor of a graph; wanted at least one")
        return graph_of(first).node(name, *inputs, **attrs)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{op.formula}. Raises ShapeError for specs that the op does not take."
    apply.__signature__ = of_tensors(name)  # type: ignore[attr-defined]
    return apply


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in ops.NAMES:
        raise AttributeError(f"camshaft has no op {name!r}")
    return function(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *ops.NAMES})
