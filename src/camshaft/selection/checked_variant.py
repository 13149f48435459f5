"""What a variant answers about a node, held to its types: variants come from other packages too."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Real
from typing import Any

from camshaft.backends.device import Device
from camshaft.errors import BackendError, CamshaftError
from camshaft.ops.op import KernelVariant, NodeSpec, Op
from camshaft.validation.run import refusal_of


def refusal_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> str | None:
    """None, or why the variant cannot have the node there. BackendError for an answer that is neither, or a failure to answer."""
    found = _asked(op, variant, "supports", lambda: variant.supports(node, target))
    if not isinstance(found, (str, type(None))):  # True and False would both be taken for their opposite
        raise BackendError(f"{op.name}/{variant.name}: supports gave {found!r}; wanted None, or in words why not")
    refused: str | None = found or _asked(op, variant, "build", lambda: refusal_of(variant, node, target))
    return refused


def cost_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> float:
    """The estimate in nanoseconds. BackendError if it is no number, or one that nothing can be compared with."""
    found = _asked(op, variant, "cost", lambda: variant.cost(node, target))
    if not isinstance(found, Real) or not isfinite(found) or found < 0:
        raise BackendError(f"{op.name}/{variant.name}: cost gave {found!r}; wanted nanoseconds, 0 or more")
    return float(found)


def _asked(op: Op, variant: KernelVariant, what: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CamshaftError:
        raise
    except Exception as error:
        raise BackendError(f"{op.name}/{variant.name}: {what} raised {type(error).__name__}: {error}") from error
