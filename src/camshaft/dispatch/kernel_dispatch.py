"""KernelDispatch: a whole dispatcher from outside, whose methods compute a model's ops over buffers. Used by plan/compile.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from camshaft.backends.registry import device
from camshaft.dispatch.select import Choice
from camshaft.errors import BackendError, CamshaftError
from camshaft.ops.op import HostCall, KernelVariant, NodeSpec, Op, Target
from camshaft.ops.spec import TensorSpec

Array = np.ndarray[Any, Any]
Failed = Exception | str | None


@dataclass(frozen=True)
class DispatchBuffer:
    """A tensor as a dispatcher gets it: `array` is its memory, elements for a plain tensor, bytes for another layout. Outputs
    are writable; an axis that is an Extent is at its bound."""

    spec: TensorSpec
    array: Array


class KernelDispatch(Protocol):
    """What a dispatcher offers. Each method reads its inputs, fills `out`, and gives None, or the error or its text: nothing is
    raised. Attributes come by keyword, as the op of that name has them; positions are always passed. A method that is missing
    leaves its op to camshaft.
    """

    @property
    def name(self) -> str: ...

    def mul_mat(self, a: DispatchBuffer, b: DispatchBuffer, out: DispatchBuffer, **attrs: Any) -> Failed:
        """out = a b, or a b^T with transpose_b; b may be quantized, always as [n, k]."""

    def rms_norm(self, x: DispatchBuffer, weight: DispatchBuffer, out: DispatchBuffer, *, eps: float) -> Failed: ...

    def add(self, a: DispatchBuffer, b: DispatchBuffer, out: DispatchBuffer) -> Failed: ...

    def mul(self, a: DispatchBuffer, b: DispatchBuffer, out: DispatchBuffer) -> Failed: ...

    def silu(self, x: DispatchBuffer, out: DispatchBuffer) -> Failed: ...

    def copy(self, x: DispatchBuffer, out: DispatchBuffer) -> Failed: ...

    def rope(
        self, x: DispatchBuffer, positions: DispatchBuffer, table: DispatchBuffer, out: DispatchBuffer, **attrs: Any
    ) -> Failed: ...

    def attention(
        self,
        q: DispatchBuffer,
        k_cache: DispatchBuffer,
        v_cache: DispatchBuffer,
        positions: DispatchBuffer,
        slots: DispatchBuffer,
        block_table: DispatchBuffer,
        out: DispatchBuffer,
        **attrs: Any,
    ) -> Failed: ...


# op -> the method that computes it
METHODS = {
    "matmul": "mul_mat",
    "quantized_matmul": "mul_mat",
    "rms_norm": "rms_norm",
    "add": "add",
    "multiply": "mul",
    "silu": "silu",
    "copy": "copy",
    "rope": "rope",
    "attention": "attention",
}


def check_dispatcher(dispatcher: object) -> None:
    """BackendError for what can compute nothing, a class in place of its object, or an object without a name to be shown by."""
    methods = tuple(dict.fromkeys(METHODS.values()))
    if isinstance(dispatcher, type) or not any(callable(getattr(dispatcher, method, None)) for method in methods):
        raise BackendError(f"dispatcher: got {dispatcher!r}; wanted an object with any of {', '.join(methods)}")
    name = getattr(dispatcher, "name", None)
    if not isinstance(name, str) or not name:
        raise BackendError(f"dispatcher: got {type(dispatcher).__name__} with the name {name!r}; wanted a string")


def dispatched(dispatcher: KernelDispatch, op: Op) -> Choice | None:
    """The choice that hands an op's nodes to the dispatcher, as host thunks; None where it has no method for them."""
    method = getattr(dispatcher, METHODS.get(op.name, ""), None) if op.name in METHODS else None
    if method is None:
        return None
    name = f"{dispatcher.name}.{METHODS[op.name]}"

    def build(node: NodeSpec, target: Target) -> HostCall:
        return HostCall(_call(name, method))

    return Choice(
        op,
        KernelVariant(name, frozenset({"simd"}), build),
        "simd",
        device("cpu"),
        f"by the dispatcher {dispatcher.name}",
        (),
    )


def _call(name: str, method: Callable[..., Failed]) -> Callable[[NodeSpec, Sequence[Array], Sequence[Array]], None]:
    def run(node: NodeSpec, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        specs = (*node.inputs, *node.outputs)
        buffers = [DispatchBuffer(s, a) for s, a in zip(specs, (*inputs, *outputs), strict=True)]
        failed = method(*buffers, **node.attrs)
        if failed is not None:
            if not isinstance(failed, (Exception, str)):
                failed = (
                    f"it gave {type(failed).__name__}; wanted None, an error or its text, and the result in out.array"
                )
            wrong = failed if isinstance(failed, CamshaftError) else BackendError(f"{name}: {failed}")
            raise wrong from (failed if isinstance(failed, Exception) else None)

    return run
