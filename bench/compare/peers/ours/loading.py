"""Peak memory of opening a model, measured in fresh processes (see also bench/starts/loading.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# A child's ru_maxrss on Linux includes the parent's memory at the fork; its own VmHWM does not.
_PEAK = """
try:
    print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024)
except OSError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""
_BASELINE = f"""
import resource, sys, numpy as np, camshaft
camshaft.LanguageModel
graph = camshaft.Graph()
x = graph.input("x", (64,), "f32")
graph.output("y", camshaft.add(x, x))
camshaft.compile(graph, threads=1).run(x=np.zeros(64, np.float32))
{_PEAK}
"""
_MODEL = f"""
import json, resource, sys, camshaft
lm = camshaft.LanguageModel(sys.argv[1], threads=int(sys.argv[2]))
found = lm.describe_plan()
print(json.dumps([found.kv_cache_nbytes, found.arena_nbytes, found.weights_nbytes]))
{_PEAK}
"""


def _child(program: str, *arguments: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    return ended.stdout.splitlines()


def measure_memory(model: str, threads: int) -> dict[str, Any]:
    """Peak memory of opening the model beyond camshaft itself, and its ratio to file + cache + arena. The model must have been
    opened on this machine before, since compiling kernels takes memory too."""
    (baseline,) = _child(_BASELINE)
    sizes, peak = _child(_MODEL, model, str(threads))
    cache, arena, weights = json.loads(sizes)
    file = Path(model).stat().st_size
    return {
        "bench": "loading",
        "op": "memory",
        "model": Path(model).name,
        "threads": threads,
        "file_nbytes": file,
        "weights_nbytes": weights,
        "cache_nbytes": cache,
        "arena_nbytes": arena,
        "peak_nbytes": int(peak) - int(baseline),
        "share": round((int(peak) - int(baseline)) / (file + cache + arena), 3),
    }


class Memory:
    """Orders: {"model": path, "threads": n}. Returns a ratio instead of seconds: peak memory over file + KV cache + arena."""

    version, built_for = "camshaft", "this CPU"

    def seconds(self, order: dict[str, Any]) -> float:
        """The ratio; the first order of a model also compiles its kernels."""
        return float(measure_memory(order["model"], order["threads"])["share"])
