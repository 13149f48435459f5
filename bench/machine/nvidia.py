"""NVIDIA GPUs: check every kernel with ptxas (no GPU needed), or time ops and a language model on a GPU, beside their peers.

Run: python -m bench.machine.nvidia ptxas | ops | products | model [MODEL] [--json FILE]. `ptxas`: registers, workgroup memory,
spills of every variant's kernels, for three GPU generations. `ops`: nanoseconds, by GPU events, of each variant's largest
sample, minimum of 20 runs. `products`: matmul of squares beside torch. `model`: prompt and generation tokens per second, beside
the CPU and transformers (bench/machine/nvidia_peer.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench import rows
from bench.machine import nvidia_peer
from camshaft import LanguageModel, ops
from camshaft.backends.cuda import device as cuda
from camshaft.backends.cuda.kernel import ptx
from camshaft.backends.device import Device
from camshaft.backends.registry import backend_named, device
from camshaft.dtypes import DTYPES
from camshaft.emit.nvptx.module import MOST_SHARED_NBYTES, emit, simt_form
from camshaft.emit.target import GPU_TARGETS
from camshaft.generate.measures.benchmark import benchmark
from camshaft.models.files.pull import resolve_model
from camshaft.ops.op import HostCall, KernelVariant, NodeSpec, Op, Sample
from camshaft.validation.run import commands_of, extents_of, refusal_of
from camshaft.validation.validate import node_of
from tests.support.op_kernels import op_kernels
from tests.support.ptxas import assemble, find_tool, joined

PROMPT_TOKENS, GENERATED_TOKENS, REPEATS = 512, 128, 5
RUNS = 20
SIZES = (512, 1024, 2048, 4096)


def ptxas_rows() -> list[dict[str, Any]]:
    """A row per kernel and processor."""
    if find_tool("ptxas") is None:
        sys.exit("ptxas is not here: install the wheel nvidia-cuda-nvcc, or set CUDA_HOME")
    limits = {"workgroup_memory": MOST_SHARED_NBYTES, "lanes": cuda.MOST_LANES}
    target = SimpleNamespace(
        backend="cuda", name="cuda", lanes=cuda.LANES, features=frozenset(), limits=limits, space="cuda"
    )
    kernels = {f"{k.symbol}_{i}": k for i, k in enumerate(op_kernels(target))}
    found = []
    for processor, gpu in GPU_TARGETS.items():
        forms = {name: simt_form(k.kernel, k.lanes or cuda.LANES) for name, k in kernels.items()}
        report = assemble(joined([ptx(emit(form, gpu, name), gpu) for name, form in forms.items()]), processor)
        for name, form in forms.items():
            row = {
                "op": kernels[name].op,
                "variant": kernels[name].variant,
                "processor": processor,
                "lanes": form.lanes,
            }
            found.append(row | asdict(report[name]) | {"kernel": form.name})
    return found


def ops_rows() -> list[dict[str, Any]]:
    """A row per variant, by the device's clock."""
    target, found = device("cuda"), []
    for op in ops.all_ops():
        for variant in op.variants:
            if "cuda" in variant.backends:
                found += _timed(op, variant, target)
    return found


def _timed(op: Op, variant: KernelVariant, target: Device) -> list[dict[str, Any]]:
    samples = [(node_of(op, sample), sample) for sample in op.samples()]
    taken = [(n, s) for n, s in samples if not (variant.supports(n, target) or refusal_of(variant, n, target))]
    if not taken:
        return []
    node, sample = max(taken, key=lambda pair: op.nbytes(pair[0]))
    ns = _kernel_ns(variant, node, sample, target)
    return [] if ns is None else [_row(op, variant, node, sample.name, ns)]


def _kernel_ns(variant: KernelVariant, node: NodeSpec, sample: Sample, target: Device) -> int | None:
    """The least nanoseconds of all launches of a build, by GPU events; None if the op is a call on the host."""
    build = variant.build(node, target)
    if isinstance(build, HostCall):
        return None
    specs = {("input", i): s for i, s in enumerate(node.inputs)} | {
        ("output", i): s for i, s in enumerate(node.outputs)
    }
    memories = {key: target.allocate(spec.nbytes) for key, spec in specs.items()}
    memories |= {("scratch", i): target.allocate(s.nbytes) for i, s in enumerate(build.scratch)}
    for i, array in enumerate(sample.inputs):
        memories["input", i].write(np.ascontiguousarray(array).view(np.uint8).reshape(-1))
    extents = extents_of(build, node)
    run = target.bind(commands_of(node, build, target, memories, extents, 0), len(extents), timed=True)
    times = []
    for _ in range(RUNS):
        run.submit([sample.extents.get(e, e.bound) for e in extents])
        run.wait()
        times.append(sum(run.elapsed_ns() or ()))
    run.close()
    for memory in memories.values():
        memory.close()
    return min(times)


def product_rows() -> list[dict[str, Any]]:
    """A row per size and dtype of matmul, beside torch where it is installed."""
    target, found, op = device("cuda"), [], ops.get("matmul")
    for name, n in itertools.product(("f16", "bf16", "f32"), SIZES):
        rng, dtype = np.random.default_rng(n), DTYPES[name].numpy
        pair = tuple(rng.standard_normal((n, n), np.float32).astype(dtype) for _ in range(2))
        sample = Sample(f"{name} {n}", pair, {})
        node = node_of(op, sample)
        fit = [v for v in op.variants if "cuda" in v.backends and v.supports(node, target) is None]
        variant = min(fit, key=lambda v: v.cost(node, target))
        ns = _kernel_ns(variant, node, sample, target)
        assert ns is not None
        row = {
            "op": "matmul",
            "variant": variant.name,
            "shape": sample.name,
            "tflop_per_s": round(2 * n**3 / ns / 1e3, 1),
        }
        if find_spec("torch"):
            row["torch_tflop_per_s"] = round(nvidia_peer.product_tflops(name, n, RUNS), 1)
        found.append(row)
    return found


def _row(op: Op, variant: KernelVariant, node: NodeSpec, sample: str, ns: int) -> dict[str, Any]:
    row = {"op": op.name, "variant": variant.name, "shape": sample, "backend": "cuda", "ns": ns}
    return row | {"gb_per_s": op.nbytes(node) / max(ns, 1), "gflop_per_s": float(op.flops(node)) / max(ns, 1)}


def model_rows(model: str) -> list[dict[str, Any]]:
    """A row per backend and kind of activations, then transformers' in bf16 where it is installed and knows the shape."""
    found, path = [], resolve_model(model)
    for backend, activations in (("simd", "auto"), ("cuda", "auto"), ("cuda", "q8"), ("cuda", "f32")):
        with LanguageModel(path, backend=backend, context=nvidia_peer.LENGTH, activations=activations) as lm:
            rates = benchmark(lm, PROMPT_TOKENS, GENERATED_TOKENS, REPEATS, lambda done, total: None)
            config = lm.plans.config
        found.append(_model_row(f"{backend} {activations}", path.name, rates))
    if config.architecture == "llama" and find_spec("transformers") and find_spec("torch"):
        rates = nvidia_peer.rates(config, PROMPT_TOKENS, GENERATED_TOKENS, REPEATS)
        found.append(_model_row("transformers bf16", path.name, rates))
    return found


def _model_row(backend: str, model: str, rates: Mapping[str, rows.Spread]) -> dict[str, Any]:
    return {"backend": backend, "model": model} | {name: rate.rounded() for name, rate in rates.items()}


ROWS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "ops": lambda given: ops_rows(),
    "products": lambda given: product_rows(),
    "model": lambda given: model_rows(given.model),
}


def _shown(value: Any) -> Any:
    return f"{value['median']:.0f} ({value['min']:.0f} to {value['max']:.0f})" if isinstance(value, dict) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("what", choices=("ptxas", *ROWS))
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "ptxas":
        found = ptxas_rows()
    else:
        reason = backend_named("cuda").absent()
        if reason is not None:
            sys.exit(f"no GPU to measure: {reason}")
        info = [asdict(i) for i in cuda.devices()]
        found = [row | {"gpu": info} for row in ROWS[given.what](given)]
    shown = [key for key in found[-1] if key not in ("gpu",)]
    print(rows.table(shown, [[_shown(row.get(key, "")) for key in shown] for row in found]))
    if given.what == "ptxas" and given.json is not None:  # independent of the machine
        given.json.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n", "utf-8")
    else:
        rows.write(given.json, found)


if __name__ == "__main__":
    main()
