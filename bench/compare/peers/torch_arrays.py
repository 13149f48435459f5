"""Array ops in PyTorch, eager or compiled. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

Call = Callable[[], object]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def operands(order: dict[str, Any]) -> dict[str, Any]:
    """Tensors by name, equal for every peer."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in order["given"].items()}
    dtype = DTYPES[order.get("dtype", "f32")]
    return {name: torch.from_numpy(array).to(dtype) for name, array in arrays.items()}


class Torch:
    """Orders: {"what": an op of MADE, "given": shapes by name, "dtype": f32 or bf16, ...}."""

    def __init__(self, threads: int, compiled: bool = False) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.compiled = compiled
        self.version = f"torch {torch.__version__}{', compiled' * compiled}"
        self.built_for = torch.backends.cpu.get_cpu_capability()

    def call(self, order: dict[str, Any]) -> Call:
        """Return a function that computes the op; a compiled one has run once."""
        given = operands(order)
        function = MADE[order["what"]](order)
        names = list(given)
        if self.compiled:
            made = torch.compile(function, dynamic=False)
            made(*given.values())
            return lambda: made(*(given[name] for name in names))
        return lambda: function(*(given[name] for name in names))

    def check(self, given: Any) -> float:
        """The mean magnitude of a result."""
        return float(given.abs().mean(dtype=torch.float64))


STEPS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ("add", "subtract", "multiply", "maximum", "tanh", "exp", "square")},
    "negative": torch.neg,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
}


def chain(order: dict[str, Any]) -> Callable[..., Any]:
    """Steps (op, names); a name is an operand or the number of an earlier step."""
    names, steps = list(order["given"]), [tuple(step) for step in order["steps"]]

    def run(*given: Any) -> Any:
        known = dict(zip(names, given, strict=True))
        for i, (op, *inputs) in enumerate(steps):
            known[str(i)] = STEPS[op](*[known[name] for name in inputs])
        return known[str(len(steps) - 1)]

    return run


# The functions of each op, with operands in the order of `given`.
MADE: dict[str, Callable[[dict[str, Any]], Callable[..., Any]]] = {
    "matmul": lambda order: torch.matmul,
    "softmax": lambda order: lambda x: torch.softmax(x, -1),
    "rms_norm": lambda order: lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, order["eps"]),
    "layer_norm": lambda order: (
        lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, order["eps"])
    ),
    "sdpa": lambda order: lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    "chain": chain,
}
