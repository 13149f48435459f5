"""Array ops in ONNX Runtime with bound inputs and outputs. Needs onnxruntime and onnx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

OPSET = 23
PROVIDERS = ["CPUExecutionProvider"]


class OnnxRuntime:
    """Orders: {"what": an op of NODES or a chain, "given": shapes by name, ...}, in float32."""

    def __init__(self, threads: int) -> None:
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.version, self.built_for = f"onnxruntime {onnxruntime.__version__}", ", ".join(PROVIDERS)

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """Return a function that runs a session with bound operands."""
        rng = np.random.default_rng(0)
        given = {name: rng.standard_normal(shape, np.float32) for name, shape in order["given"].items()}
        session = onnxruntime.InferenceSession(model(order), self.options, PROVIDERS)
        out = np.empty(order["gives"], np.float32)
        binding = session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        output = onnxruntime.OrtValue.ortvalue_from_numpy(out)
        binding.bind_ortvalue_output("y", output)

        def run() -> Any:
            session.run_with_iobinding(binding)
            return output

        return run

    def check(self, given: Any) -> float:
        """The mean magnitude of a result."""
        return float(np.abs(given.numpy()).mean(dtype=np.float64))


def model(order: dict[str, Any]) -> bytes:
    """The op as a model whose operands are all inputs: they may change between runs, as for every peer."""
    nodes = chain(order["steps"]) if order["what"] == "chain" else NODES[order["what"]](order)
    real = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, real, shape) for name, shape in order["given"].items()]
    output = helper.make_tensor_value_info("y", real, order["gives"])
    graph = helper.make_graph(nodes, order["what"], inputs, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return bytes(made.SerializeToString())


# Nodes of each op; inputs are named as in `given`, the output is y.
NODES: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "matmul": lambda order: [helper.make_node("MatMul", ["a", "b"], ["y"])],
    "softmax": lambda order: [helper.make_node("Softmax", ["x"], ["y"], axis=-1)],
    "rms_norm": lambda order: [
        helper.make_node("SimplifiedLayerNormalization", ["x", "weight"], ["y"], axis=-1, epsilon=order["eps"])
    ],
    "layer_norm": lambda order: [
        helper.make_node("LayerNormalization", ["x", "weight", "bias"], ["y"], axis=-1, epsilon=order["eps"])
    ],
    "sdpa": lambda order: [helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)],
}
STEPS = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "maximum": "Max", "tanh": "Tanh", "exp": "Exp"} | {
    "negative": "Neg",
    "sigmoid": "Sigmoid",
}


def chain(steps: list[list[str]]) -> list[Any]:
    """Nodes of steps (op, names). ONNX has no square or silu: a square is a product, silu uses a sigmoid."""
    nodes, last = [], len(steps) - 1
    for i, (op, *names) in enumerate(steps):
        made = "y" if i == last else str(i)
        if op == "silu":
            nodes.append(helper.make_node("Sigmoid", names, [f"{made}.sigmoid"]))
            nodes.append(helper.make_node("Mul", [*names, f"{made}.sigmoid"], [made]))
        elif op == "square":
            nodes.append(helper.make_node("Mul", names * 2, [made]))
        else:
            nodes.append(helper.make_node(STEPS[op], names, [made]))
    return nodes
