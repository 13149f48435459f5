"""Array ops in NumPy, as a user would write them with preallocated memory. Does not import camshaft."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[[], object]


def operands(order: dict[str, Any]) -> dict[str, Array]:
    """float32 operands by name, equal for every peer."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in order["given"].items()}


def core_name() -> str:
    """The core type that NumPy's OpenBLAS detected, if available."""
    folder = Path(np.__file__).parent.with_name("numpy.libs")
    for path in folder.glob("*openblas*") if folder.is_dir() else ():
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                ask = getattr(library, name)
                ask.restype = ctypes.c_char_p
                return f"OpenBLAS for {ask().decode()}"
    return "unknown"


class NumPy:
    """Orders: {"what": an op of MADE, "given": shapes by name, ...}."""

    def __init__(self) -> None:
        self.version, self.built_for = f"NumPy {np.__version__}", core_name()

    def call(self, order: dict[str, Any]) -> Call:
        """Return a function that computes the op into preallocated memory."""
        return MADE[order["what"]](order, operands(order))

    def check(self, given: Any) -> float:
        """The mean magnitude of a result."""
        return float(np.abs(given).mean(dtype=np.float64))


def matmul(order: dict[str, Any], given: dict[str, Array]) -> Call:
    a, b = given["a"], given["b"]
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    return lambda: np.matmul(a, b, out=out)


def softmax(order: dict[str, Any], given: dict[str, Array]) -> Call:
    x = given["x"]
    out = np.empty_like(x)

    def run() -> Array:
        np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(axis=-1, keepdims=True), out=out)
        return out

    return run


def rms_norm(order: dict[str, Any], given: dict[str, Array]) -> Call:
    x, weight, eps = given["x"], given["weight"], np.float32(order["eps"])
    out = np.empty_like(x)

    def run() -> Array:
        mean = np.einsum("rc,rc->r", x, x)[:, None] / np.float32(x.shape[1])
        np.multiply(x, 1 / np.sqrt(mean + eps), out=out)
        return np.multiply(out, weight, out=out)

    return run


def layer_norm(order: dict[str, Any], given: dict[str, Array]) -> Call:
    x, weight, bias, eps = given["x"], given["weight"], given["bias"], np.float32(order["eps"])
    out = np.empty_like(x)

    def run() -> Array:
        np.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
        mean = np.einsum("rc,rc->r", out, out)[:, None] / np.float32(x.shape[1])
        np.multiply(out, 1 / np.sqrt(mean + eps), out=out)
        np.multiply(out, weight, out=out)
        return np.add(out, bias, out=out)

    return run


def _sigmoid(x: Array) -> Array:
    y = np.exp(-x)
    y += 1
    return np.reciprocal(y, out=y)


STEPS: dict[str, Callable[..., Array]] = {
    **{
        name: getattr(np, name)
        for name in ("add", "subtract", "multiply", "maximum", "tanh", "exp", "negative", "square")
    },
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
}


def chain(order: dict[str, Any], given: dict[str, Array]) -> Call:
    """Steps (op, names); a name is an operand or the number of an earlier step."""

    def run() -> Array:
        known: dict[str, Array] = dict(given)
        for i, (op, *names) in enumerate(order["steps"]):
            known[str(i)] = STEPS[op](*(known[name] for name in names))
        return known[str(len(order["steps"]) - 1)]

    return run


MADE: dict[str, Callable[[dict[str, Any], dict[str, Array]], Call]] = {
    "matmul": matmul,
    "softmax": softmax,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "chain": chain,
}
