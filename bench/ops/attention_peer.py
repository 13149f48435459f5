"""The peers of attention.py: causal SDPA, B1 H8 T1024 D64 f32, in PyTorch or ONNX Runtime. Does not import camshaft.

Run by attention.py as `python -m bench.ops.attention_peer torch|onnxruntime THREADS`. Each input line is a number of calls; each
output line is {"s": mean seconds per call}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SHAPE = (1, 8, 1024, 64)


def by_torch(threads: int) -> tuple[str, Callable[[], Any]]:
    """Eager: what torch.compile makes of this one call is the same kernel."""
    import torch

    torch.set_num_threads(threads)
    q, k, v = (torch.randn(SHAPE) for _ in range(3))

    def call() -> Any:
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return f"torch {torch.__version__}", call


def by_onnxruntime(threads: int) -> tuple[str, Callable[[], Any]]:
    """The operator Attention of opset 23."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)

    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    graph = helper.make_graph([node], "sdpa", [value(name) for name in "qkv"], [value("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = threads
    session_options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # the others take turns on these cores
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options, providers=["CPUExecutionProvider"]
    )
    given = {name: np.random.default_rng(i).standard_normal(SHAPE, np.float32) for i, name in enumerate("qkv")}
    return f"onnxruntime {onnxruntime.__version__}", lambda: session.run(None, given)


SIDES = {"torch": by_torch, "onnxruntime": by_onnxruntime}


def main() -> None:
    """Print the peer's name and version, then answer requests until the pipe ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not lie between the answers
    name, threads = sys.argv[1:]
    version, call = SIDES[name](int(threads))
    call()
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        calls = int(line)
        call()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        print(json.dumps({"s": (time.perf_counter() - started) / calls}), file=answers, flush=True)


if __name__ == "__main__":
    main()
