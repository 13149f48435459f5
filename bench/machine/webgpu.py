"""Host time of WebGPU runs: microseconds per thunk to submit a chain of small adds, and what making it ready once cost.

Run: python -m bench.machine.webgpu [--device webgpu] [--thunks 300] [--repeats 25] [--json FILE]. Each thunk adds 16 floats and
reads what the one before it wrote; 'arena' has all results in one buffer, 'buffers' each in its own. The device is idle when a
run is submitted. `cpu` is the submitting thread's own time, which a busy machine does not stretch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from camshaft.backends.device import CopyCommand, Device, LaunchCommand, Place
from camshaft.backends.registry import device, devices
from camshaft.dtypes import f32
from camshaft.lang import Array, CompileRequest, Tracer, ir, kernel

N = 16
MICROSECONDS = 1e6


@kernel
def add(k: Tracer, x: Array, y: Array, out: Array) -> None:
    # out = x + y
    for i in k.lanes(N):
        out[i] = x[i] + y[i]


def places(target: Device, layout: str, count: int) -> list[Place]:
    """`count` places of N floats."""
    step = -(-4 * N // target.limits["alignment"]) * target.limits["alignment"]
    if layout == "arena":
        arena = target.allocate(step * count)
        return [Place(arena, step * i, 4 * N) for i in range(count)]
    return [Place(target.allocate(4 * N), 0, 4 * N) for _ in range(count)]


def row(target: Device, layout: str, n_thunks: int, repeats: int) -> dict[str, Any]:
    """One case: submit and wait of `repeats` runs, after three that do not count."""
    arrays = tuple(ir.ArrayParam(name, f32, (N,), name == "out") for name in ("x", "y", "out"))
    code = target.compile(CompileRequest(add, arrays, lanes=N))
    chain, one = places(target, layout, n_thunks + 1), places(target, "buffers", 1)[0]
    ones, out = np.ones(N, np.float32).view(np.uint8), np.zeros(4 * N, np.uint8)
    for place in (chain[0], one):
        place.memory.write(ones, place.offset_nbytes)
    commands = [LaunchCommand("add", code, (a, one, b)) for a, b in itertools.pairwise(chain)]
    started = time.perf_counter()
    run = target.bind([*commands, CopyCommand("out", chain[-1], out)], 0)
    bound_s = time.perf_counter() - started
    submits, cpu, waits = [], [], []
    for repeat in range(repeats + 3):
        busy, started = time.thread_time(), time.perf_counter()
        run.submit([])
        submitted, busy = time.perf_counter(), time.thread_time() - busy
        run.wait()
        if repeat >= 3:
            cpu.append(busy * MICROSECONDS / n_thunks)
            submits.append((submitted - started) * MICROSECONDS / n_thunks)
            waits.append(time.perf_counter() - submitted)
    assert (out.view(np.float32) == n_thunks + 1).all()
    return {
        "bench": "webgpu",
        "layout": layout,
        "thunks": n_thunks,
        "submit_us_per_thunk": rows.Spread.of(submits).rounded(),
        "submit_cpu_us_per_thunk": rows.Spread.of(cpu).rounded(),
        "wait_ms": rows.Spread.of(waits).map(lambda s: s * 1e3).rounded(),
        "bind_ms": round(bound_s * 1e3, 2),
        "repeats": repeats,
        "device": next(info.description for info in devices() if info.name == target.name),
    }


def main() -> None:
    """Measures both layouts and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--thunks", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.thunks < 1 or options.repeats < 1:
        parser.error("wanted at least one thunk and one repeat")
    found = []
    for layout in ("arena", "buffers"):
        found.append(row(device(options.device), layout, options.thunks, options.repeats))
        print(json.dumps(found[-1]), flush=True)
    rows.write(options.json, found)


if __name__ == "__main__":
    main()
