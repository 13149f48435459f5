"""The gradients of attention, of cross-entropy over 49,152 classes and of recurrences beside torch's, in turn.

    python -m bench.train.training_parts [--threads 2] [--rounds 9] [--json FILE]

Needs the extra `oracles`. Attention is causal with grouped heads, [batch, heads, kv_heads, length, size]. Seconds of the forward
pass with the gradients; of attention also of the gradients alone, camshaft's by its profiler. The gated delta rule is beside
transformers' torch_chunk_gated_delta_rule, 2 sequences of 256 tokens with 16 heads; "op" is camshaft's without gradients.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import camshaft
from bench.rows import write

torch: Any = import_module("torch")  # its functions are not all typed

ATTENTIONS = ((2, 9, 3, 128, 64), (2, 9, 3, 512, 64), (1, 14, 2, 512, 64))
ROWS, CLASSES = 254, 49152
Array = np.ndarray[Any, Any]
Turn = Callable[[], dict[str, float]]


def attention(sizes: tuple[int, ...], threads: int) -> Turn:
    """Measures one turn of attention of these sizes."""
    batch, heads, kv_heads, length, size = sizes
    rng, shape = np.random.default_rng(0), (batch, kv_heads, length, size)
    shapes = {"q": (batch, heads, length, size), "k": shape, "v": shape, "dy": (batch, heads, length, size)}
    arrays: dict[str, Any] = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    graph = camshaft.Graph()
    q, k, v, dy = (graph.input(name, s, "f32") for name, s in shapes.items())
    y = camshaft.scaled_dot_product_attention(q, k, v, causal=True)
    assert isinstance(y, camshaft.Tensor)
    for name, tensor in zip(("dq", "dk", "dv"), graph.gradients(y, [q, k, v], cotangent=dy), strict=True):
        graph.output(name, tensor)
    plan = camshaft.compile(graph, threads=threads)
    plan.run(**arrays)
    tensors = [torch.tensor(arrays[name], requires_grad=True) for name in ("q", "k", "v")]
    of_y = torch.tensor(arrays["dy"])

    def turn() -> dict[str, float]:
        found = plan.profile(runs=1, warmup=0)
        ours = sum(row.ns for row in found.by("op") if row.op != "attention") / 1e9
        for tensor in tensors:
            tensor.grad = None
        started = time.perf_counter()
        out = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
        middle = time.perf_counter()
        out.backward(of_y)
        ended = time.perf_counter()
        return {
            "camshaft": found.total_ns / 1e9,
            "torch": ended - started,
            "camshaft backward": ours,
            "torch backward": ended - middle,
        }

    return turn


def cross_entropy(threads: int) -> Turn:
    """Measures one turn of the mean loss of ROWS rows."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32)
    target = rng.integers(0, CLASSES, ROWS)
    graph = camshaft.Graph()
    x, t = graph.input("x", logits.shape, "f32"), graph.input("t", target.shape, "i64")
    loss = camshaft.cross_entropy(x, t)
    graph.output("loss", loss)
    graph.output("dx", graph.gradients(loss, [x])[0])
    plan = camshaft.compile(graph, threads=threads)
    plan.run(x=logits, t=target)
    tensor, targets = torch.tensor(logits, requires_grad=True), torch.tensor(target)

    def turn() -> dict[str, float]:
        ours = plan.profile(runs=1, warmup=0).total_ns / 1e9
        tensor.grad = None
        started = time.perf_counter()
        torch.nn.functional.cross_entropy(tensor, targets).backward()
        return {"camshaft": ours, "torch": time.perf_counter() - started}

    return turn


def recurrence(op: str, size: int, threads: int) -> Turn:
    """Measures one turn of a recurrence with heads of this size; gated linear attention has no peer."""
    rng, shape = np.random.default_rng(0), (2, 256, 16)
    arrays: dict[str, Any] = {name: rng.normal(size=(*shape, size)) for name in ("q", "k", "v", "dy")}
    arrays |= {"k": arrays["k"] / size**0.5, "g": -np.exp(rng.normal(size=shape) - 2), "beta": rng.random(shape)}
    given = [name for name in ("q", "k", "v", "g", "beta") if name != "beta" or op == "gated_delta_rule"]
    arrays = {name: arrays[name].astype(np.float32) for name in (*given, "dy")}
    graphs = camshaft.Graph(), camshaft.Graph()
    for graph in graphs:
        wrt = [graph.input(name, arrays[name].shape, "f32") for name in given]
        y = graph.node(op, *wrt)[0]
        graph.output("y", y)
        if graph is graphs[1]:
            dy = graph.input("dy", arrays["dy"].shape, "f32")
            for name, tensor in zip(given, graph.gradients(y, wrt, cotangent=dy), strict=True):
                graph.output(f"d{name}", tensor)
    alone, whole = (camshaft.compile(graph, threads=threads) for graph in graphs)
    alone_given = {name: arrays[name] for name in given}
    alone.run(**alone_given)
    whole.run(**arrays)
    tensors = [torch.tensor(arrays[name], requires_grad=True) for name in given]
    of_y = torch.tensor(arrays["dy"])

    def turn() -> dict[str, float]:
        found = {
            "camshaft": whole.profile(runs=1, warmup=0).total_ns / 1e9,
            "op": alone.profile(runs=1, warmup=0).total_ns / 1e9,
        }
        if op == "gated_delta_rule":
            rule = import_module("transformers.models.qwen3_next.modeling_qwen3_next").torch_chunk_gated_delta_rule
            for tensor in tensors:
                tensor.grad = None
            started = time.perf_counter()
            rule(*tensors)[0].backward(of_y)
            found["torch"] = time.perf_counter() - started
        return found

    return turn


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    turns = {f"attention {sizes}": attention(sizes, args.threads) for sizes in ATTENTIONS}
    turns[f"cross_entropy [{ROWS}, {CLASSES}]"] = cross_entropy(args.threads)
    for op in ("gated_delta_rule", "gated_linear_attention"):
        turns |= {f"{op}, heads of {size}": recurrence(op, size, args.threads) for size in (64, 128)}
    rows: list[dict[str, Any]] = []
    for name, turn in turns.items():
        turn()
        times = [turn() for _ in range(args.rounds)]
        medians = {part: statistics.median(t[part] for t in times) for part in times[0]}
        spans = {part: [min(t[part] for t in times), max(t[part] for t in times)] for part in times[0]}
        ratios = {
            f"times{part[8:]}": medians[f"torch{part[8:]}"] / medians[part]
            for part in medians
            if "camshaft" in part and f"torch{part[8:]}" in medians
        }
        rows.append({"what": name, "threads": args.threads, "peer": f"torch {torch.__version__}", "medians_s": medians})
        rows[-1] |= {"spans_s": spans, **ratios}
        shown = ", ".join(f"{part} {s * 1e3:.1f} ms" for part, s in medians.items())
        print(f"{name}: {shown}; " + ", ".join(f"{part} {r:.2f}" for part, r in ratios.items()))
    write(args.json, rows)


if __name__ == "__main__":
    main()
