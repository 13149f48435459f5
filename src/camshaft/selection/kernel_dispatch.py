"""KernelDispatch: run a model's ops through an external dispatcher, an object with a method per op."""

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
from camshaft.selection.choice import Choice

Array = np.ndarray[Any, Any]
Failed = Exception | str | None


@dataclass(frozen=True)
class DispatchBuffer:
    """A tensor passed to a dispatcher. `array` has elements for a plain tensor and bytes for other layouts. Outputs are
    writable; an axis that is an Extent has its upper bound."""

    spec: TensorSpec
    array: Array


class KernelDispatch(Protocol):
    """The interface of a dispatcher.

    Each method reads its inputs, fills `out` and returns None, or an exception or error text (it does not raise). The op's
    attributes are passed by keyword; positions are always passed. Ops without a method are run by camshaft. A method whose
    signature does not fit raises an error when the plan is compiled.
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
        """out = softmax(scale q K^T) V over keys 0..position of each token's slot. The scales are passed only if the cache is
        quantized (see kv_cache_quantize.py); a method without them cannot serve such a cache."""


# op -> method of the dispatcher
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
# op -> (number of inputs before `out`, keyword names of the inputs after it)
BY_KEYWORD = {"attention": (6, ("k_scales", "v_scales"))}
# op -> the attributes that the method takes; a node with another value than the default of any other is not the dispatcher's.
TAKES = {"attention": ("heads", "kv_heads", "head_dim", "scale", "length")}


def check_dispatcher(dispatcher: object) -> None:
    """Raise BackendError for an object without any of the methods or without a name, or for a class instead of an object."""
    methods = tuple(dict.fromkeys(METHODS.values()))
    if isinstance(dispatcher, type) or not any(callable(getattr(dispatcher, method, None)) for method in methods):
        raise BackendError(f"dispatcher: got {dispatcher!r}; wanted an object with any of {', '.join(methods)}")
    name = getattr(dispatcher, "name", None)
    if not isinstance(name, str) or not name:
        raise BackendError(f"dispatcher: got {type(dispatcher).__name__} with the name {name!r}; wanted a string")


def dispatched(dispatcher: KernelDispatch, op: Op, node: NodeSpec) -> Choice | None:
    """The choice that runs a node by the dispatcher, as a host thunk, or None if it has no method for the op.

    Raises BackendError for a method whose signature does not fit.
    """
    method = getattr(dispatcher, METHODS.get(op.name, ""), None) if op.name in METHODS else None
    if method is None or _has_options(op, node):
        return None
    name = f"{dispatcher.name}.{METHODS[op.name]}"
    n_leading, keywords = BY_KEYWORD.get(op.name, (len(node.inputs), ()))
    named = keywords[: len(node.inputs) - n_leading]
    taken = [attr for attr in node.attrs if attr in TAKES.get(op.name, (attr,))]
    _check_signature(name, method, n_leading + len(node.outputs), (*named, *taken))

    def build(node: NodeSpec, target: Target) -> HostCall:
        return HostCall(_call(name, method, named, taken))

    return Choice(
        op,
        KernelVariant(name, frozenset({"simd"}), build),
        "simd",
        device("cpu"),
        f"by the dispatcher {dispatcher.name}",
        (),
    )


def _has_options(op: Op, node: NodeSpec) -> bool:
    """Whether an attribute that the dispatcher's method does not take has another value than its default."""
    if op.name not in TAKES:
        return False
    defaults = {a.name: a.default for a in op.parameters.attributes}
    return any(value != defaults.get(name) for name, value in node.attrs.items() if name not in TAKES[op.name])


def _check_signature(name: str, method: Callable[..., Failed], n_leading: int, keywords: Sequence[str]) -> None:
    """Raise BackendError if the method cannot be called with this many buffers and these keywords."""
    try:
        parameters = inspect.signature(method)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        parameters.bind(*(None for _ in range(n_leading)), **dict.fromkeys(keywords))
    except TypeError as error:
        passed = f"{n_leading} buffers, the last of them out" + "".join(f", {word}=" for word in keywords)
        raise BackendError(f"{name}{parameters}: {error}; wanted a method that takes {passed}") from None


def _call(
    name: str, method: Callable[..., Failed], named: Sequence[str], taken: Sequence[str]
) -> Callable[[NodeSpec, Sequence[Array], Sequence[Array]], None]:
    def run(node: NodeSpec, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        n_leading = len(inputs) - len(named)
        buffers = [DispatchBuffer(s, a) for s, a in zip(node.inputs, inputs, strict=True)]
        out = [DispatchBuffer(s, a) for s, a in zip(node.outputs, outputs, strict=True)]
        attrs = {attr: node.attrs[attr] for attr in taken}
        failed = method(*buffers[:n_leading], *out, **dict(zip(named, buffers[n_leading:], strict=True)), **attrs)
        if failed is not None:
            if not isinstance(failed, (Exception, str)):
                failed = f"it returned {type(failed).__name__}; wanted None, an exception or text, and the result in out.array"
            wrong = failed if isinstance(failed, CamshaftError) else BackendError(f"{name}: {failed}")
            raise wrong from (failed if isinstance(failed, Exception) else None)

    return run
