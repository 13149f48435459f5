"""KernelDispatch: a whole dispatcher from outside, whose methods compute a model's ops over buffers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from camshaft.backends.registry import device
from camshaft.errors import BackendError, CamshaftError
from camshaft.ops.op import HostCall, KernelVariant, NodeSpec, Op, Target
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import Choice

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
    leaves its op to camshaft. What a method cannot be called with is an error when a plan is made.
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
        *,
        k_scales: DispatchBuffer | None = None,
        v_scales: DispatchBuffer | None = None,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        length: Any,
    ) -> Failed:
        """out = softmax(scale q K^T) V over keys 0..position of each token's slot. The scales are passed where the cache is
        quantized (kv_cache_quantize.py says how), and only then: a method without them cannot serve such a cache."""


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
# op -> how many inputs come before `out`, and the names that those after them have as keywords
BY_KEYWORD = {"attention": (6, ("k_scales", "v_scales"))}


def check_dispatcher(dispatcher: object) -> None:
    """BackendError for what can compute nothing, a class in place of its object, or an object without a name to be shown by."""
    methods = tuple(dict.fromkeys(METHODS.values()))
    if isinstance(dispatcher, type) or not any(callable(getattr(dispatcher, method, None)) for method in methods):
        raise BackendError(f"dispatcher: got {dispatcher!r}; wanted an object with any of {', '.join(methods)}")
    name = getattr(dispatcher, "name", None)
    if not isinstance(name, str) or not name:
        raise BackendError(f"dispatcher: got {type(dispatcher).__name__} with the name {name!r}; wanted a string")


def dispatched(dispatcher: KernelDispatch, op: Op, node: NodeSpec) -> Choice | None:
    """The choice that hands a node to the dispatcher, as a host thunk; None where it has no method for its op.

    BackendError for a method that does not take what the node passes.
    """
    method = getattr(dispatcher, METHODS.get(op.name, ""), None) if op.name in METHODS else None
    if method is None:
        return None
    name = f"{dispatcher.name}.{METHODS[op.name]}"
    n_leading, keywords = BY_KEYWORD.get(op.name, (len(node.inputs), ()))
    named = keywords[: len(node.inputs) - n_leading]
    _check_signature(name, method, n_leading + len(node.outputs), (*named, *node.attrs))

    def build(node: NodeSpec, target: Target) -> HostCall:
        return HostCall(_call(name, method, named))

    return Choice(
        op,
        KernelVariant(name, frozenset({"simd"}), build),
        "simd",
        device("cpu"),
        f"by the dispatcher {dispatcher.name}",
        (),
    )


def _check_signature(name: str, method: Callable[..., Failed], n_leading: int, keywords: Sequence[str]) -> None:
    """BackendError where the method cannot be called with so many buffers and these keywords."""
    try:
        found = inspect.signature(method)
    except (TypeError, ValueError):  # a builtin that does not tell
        return
    try:
        found.bind(*(None for _ in range(n_leading)), **dict.fromkeys(keywords))
    except TypeError as error:
        passed = f"{n_leading} buffers, the last of them out" + "".join(f", {word}=" for word in keywords)
        raise BackendError(f"{name}{found}: {error}; wanted a method that takes {passed}") from None


def _call(
    name: str, method: Callable[..., Failed], named: Sequence[str]
) -> Callable[[NodeSpec, Sequence[Array], Sequence[Array]], None]:
    def run(node: NodeSpec, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        n_leading = len(inputs) - len(named)
        given = [DispatchBuffer(s, a) for s, a in zip(node.inputs, inputs, strict=True)]
        out = [DispatchBuffer(s, a) for s, a in zip(node.outputs, outputs, strict=True)]
        failed = method(*given[:n_leading], *out, **dict(zip(named, given[n_leading:], strict=True)), **node.attrs)
        if failed is not None:
            if not isinstance(failed, (Exception, str)):
                failed = (
                    f"it gave {type(failed).__name__}; wanted None, an error or its text, and the result in out.array"
                )
            wrong = failed if isinstance(failed, CamshaftError) else BackendError(f"{name}: {failed}")
            raise wrong from (failed if isinstance(failed, Exception) else None)

    return run
