"""Ops of arrays in camshaft: single ops by the dispatch table, chains as a plan. A side of the comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.compare.sides.numpy_arrays import Array, Call, operands
from bench.compare.sides.ours_attention import sdpa
from camshaft.dtypes import bf16
from camshaft.eager.tables import table
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile as ground


class Camshaft:
    """Orders: {"what": an op of MADE, "given": shapes by name, "dtype": f32 or bf16, ...}."""

    def __init__(self, threads: int) -> None:
        self.threads, self.table = threads, table()
        self.version, self.built_for = "camshaft", "this CPU"

    def call(self, order: dict[str, Any]) -> Call:
        """The op on its operands, into memory that is kept."""
        given = {name: lined(array) for name, array in operands(order).items()}
        if order.get("dtype") == "bf16":
            given = {name: lined(array.astype(bf16.numpy)) for name, array in given.items()}
        return MADE[order["what"]](self, order, given)

    def check(self, given: Any) -> float:
        """The mean size of a result."""
        return float(np.abs(np.asarray(given, np.float32)).mean(dtype=np.float64))


def lined(array: Array) -> Array:
    """A copy that begins at a cache line, as the memory of torch and ONNX Runtime does and NumPy's large arrays' does not."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def single(
    op: str, *names: str, attrs: tuple[str, ...] = ()
) -> Callable[[Camshaft, dict[str, Any], dict[str, Array]], Call]:
    """One op of the table, with what the order says of its attributes, into an output of the first operand's dtype."""

    def made(side: Camshaft, order: dict[str, Any], given: dict[str, Array]) -> Call:
        function, inputs = getattr(side.table, op), [given[name] for name in names]
        said, out = {name: order[name] for name in attrs}, lined(np.empty(order["gives"], inputs[0].dtype))
        return lambda: function(*inputs, **said, out=out)

    return made


def chain(side: Camshaft, order: dict[str, Any], given: Mapping[str, Array]) -> Call:
    """Steps [op, names] as a plan, its inputs filled before."""
    graph = Graph()
    known: dict[str, Any] = {name: graph.input(name, array.shape, "f32") for name, array in given.items()}
    for i, (op, *names) in enumerate(order["steps"]):
        known[str(i)] = F.function({"negative": "negate"}.get(op, op))(*(known[name] for name in names))
    graph.output("y", known[str(len(order["steps"]) - 1)])
    plan = ground(graph, threads=side.threads)
    plan.run(**given)
    return lambda: plan.run()["y"]


MADE: dict[str, Callable[[Camshaft, dict[str, Any], dict[str, Array]], Call]] = {
    "matmul": single("matmul", "a", "b"),
    "softmax": single("softmax", "x"),
    "rms_norm": single("rms_norm", "x", "weight", attrs=("eps",)),
    "layer_norm": single("layer_norm", "x", "weight", "bias", attrs=("eps",)),
    "sdpa": lambda side, order, given: sdpa(side.threads, given),
    "chain": chain,
}
