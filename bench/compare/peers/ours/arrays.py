"""Array ops in camshaft: single ops through the dispatch table, chains as a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.compare.peers.numpy_arrays import Array, Call, operands
from bench.compare.peers.ours.attention import sdpa
from camshaft.dtypes import bf16
from camshaft.eager.tables import table
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile as compile_graph


class Camshaft:
    """Orders: {"what": an op of MADE, "given": shapes by name, "dtype": f32 or bf16, ...}."""

    def __init__(self, threads: int) -> None:
        self.threads, self.table = threads, table()
        self.version, self.built_for = "camshaft", "this CPU"

    def call(self, order: dict[str, Any]) -> Call:
        """Return a function that computes the op into preallocated memory."""
        given = {name: lined(array) for name, array in operands(order).items()}
        if order.get("dtype") == "bf16":
            given = {name: lined(array.astype(bf16.numpy)) for name, array in given.items()}
        return MADE[order["what"]](self, order, given)

    def check(self, given: Any) -> float:
        """The mean magnitude of a result."""
        return float(np.abs(np.asarray(given, np.float32)).mean(dtype=np.float64))


def lined(array: Array) -> Array:
    """A copy aligned to a cache line, as torch and ONNX Runtime allocate; NumPy's large arrays are not aligned."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def single(
    op: str, *names: str, attrs: tuple[str, ...] = ()
) -> Callable[[Camshaft, dict[str, Any], dict[str, Array]], Call]:
    """One op of the table, with the order's attributes, into an output of the first operand's dtype."""

    def made(peer: Camshaft, order: dict[str, Any], given: dict[str, Array]) -> Call:
        function, inputs = getattr(peer.table, op), [given[name] for name in names]
        attributes, out = {name: order[name] for name in attrs}, lined(np.empty(order["gives"], inputs[0].dtype))
        return lambda: function(*inputs, **attributes, out=out)

    return made


def chain(peer: Camshaft, order: dict[str, Any], given: Mapping[str, Array]) -> Call:
    """Steps (op, names) as a plan, with its inputs already filled."""
    graph = Graph()
    known: dict[str, Any] = {name: graph.input(name, array.shape, "f32") for name, array in given.items()}
    for i, (op, *names) in enumerate(order["steps"]):
        known[str(i)] = F.function({"negative": "negate"}.get(op, op))(*(known[name] for name in names))
    graph.output("y", known[str(len(order["steps"]) - 1)])
    plan = compile_graph(graph, threads=peer.threads)
    plan.run(**given)
    return lambda: plan.run(keep=True, view=True)["y"]


MADE: dict[str, Callable[[Camshaft, dict[str, Any], dict[str, Array]], Call]] = {
    "matmul": single("matmul", "a", "b"),
    "softmax": single("softmax", "x"),
    "rms_norm": single("rms_norm", "x", "weight", attrs=("eps",)),
    "layer_norm": single("layer_norm", "x", "weight", "bias", attrs=("eps",)),
    "sdpa": lambda peer, order, given: sdpa(peer.threads, given),
    "chain": chain,
}
