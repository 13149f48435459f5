"""Nanoseconds per thunk of the executor: 16-element float32 adds on 1 and 2 threads, with and without waits.

Run: python bench/executor.py [--thunks 300] [--repeats 9] [--json FILE]. Prints one JSON row per case.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.backends.cpu.compile import NativeLibrary, compile_module, host_target, load_object
from camshaft.plan.execute import BoundSchedule, bind
from camshaft.plan.memory import make_schedule
from camshaft.plan.native import native_executor
from camshaft.plan.schedule import Buffer, BufferUse, Lifetime, Programs, Thunk
from camshaft.plan.workers import aligned_bytes, available_cores

ADD = """
define void @add(ptr %args, i64 %first, i64 %last) {
entry:
  %a = load ptr, ptr %args
  %b.at = getelementptr i64, ptr %args, i64 1
  %b = load ptr, ptr %b.at
  %out.at = getelementptr i64, ptr %args, i64 2
  %out = load ptr, ptr %out.at
  br label %head
head:
  %p = phi i64 [ %first, %entry ], [ %p.next, %body ]
  %more = icmp slt i64 %p, %last
  br i1 %more, label %body, label %done
body:
  %x.at = getelementptr <8 x float>, ptr %a, i64 %p
  %x = load <8 x float>, ptr %x.at, align 4
  %y.at = getelementptr <8 x float>, ptr %b, i64 %p
  %y = load <8 x float>, ptr %y.at, align 4
  %z = fadd <8 x float> %x, %y
  %z.at = getelementptr <8 x float>, ptr %out, i64 %p
  store <8 x float> %z, ptr %z.at, align 4
  %p.next = add i64 %p, 1
  br label %head
done:
  ret void
}
"""


@dataclass(frozen=True)
class AddKernel:
    """Adds 8 floats a program."""

    name: str
    address: int
    library: NativeLibrary


def add_kernel() -> AddKernel:
    """The kernel, compiled."""
    library = load_object(compile_module(ADD))
    return AddKernel("add", library.address("add"), library)


def add_plan(n_thunks: int, threads: int, *, dependent: bool) -> BoundSchedule:
    """n_thunks adds of 16 elements in 2 programs: each reads the result before it (a wait after each), or none does."""
    kernel = add_kernel()
    step = Buffer("step", 64, Lifetime.CONSTANT)
    links = [Buffer(f"x{index}", 64, Lifetime.IO) for index in range(n_thunks + 1)]
    thunks = []
    for index in range(n_thunks):
        a, b, out = links[index if dependent else 0].slice(), step.slice(), links[index + 1].slice()
        uses = (BufferUse(a, "read"), BufferUse(b, "read"), BufferUse(out, "write"))
        thunks.append(Thunk(f"add{index}", "add", "bench", "", "kernel", kernel, (a, b, out), uses, Programs(2)))
    schedule, memory = make_schedule(thunks)
    assert schedule.waits.count(True) == (n_thunks - 1 if dependent else 0)
    memory_of = {buffer: aligned_bytes(64, 64).view(np.float32) for buffer in (step, *links)}
    for values in memory_of.values():
        values[:] = 1
    plan = bind(schedule, memory, buffers=memory_of, threads=threads)
    plan.run()
    assert (memory_of[links[-1]] == (n_thunks + 1 if dependent else 2)).all()
    return plan


def ns_per_run(plan: BoundSchedule, least_s: float = 0.02) -> float:
    """Nanoseconds of one run, the mean over at least `least_s`."""
    runs, start = 0, time.perf_counter_ns()
    while (elapsed := time.perf_counter_ns() - start) < least_s * 1e9:
        for _ in range(10):
            plan.run()
        runs += 10
    return elapsed / runs


def row(n_thunks: int, threads: int, dependent: bool, repeats: int) -> dict[str, Any]:
    """One case, measured: median, min and max of the repeats, in ns per thunk, and what an empty run costs."""
    with add_plan(n_thunks, threads, dependent=dependent) as plan:
        times = [ns_per_run(plan) / n_thunks for _ in range(repeats)]
    return {
        "bench": "executor",
        "op": "add",
        "shape": [16],
        "thunks": n_thunks,
        "threads": threads,
        "waits": dependent,
        "ns_per_thunk": round(statistics.median(times), 2),
        "ns_per_thunk_min": round(min(times), 2),
        "ns_per_thunk_max": round(max(times), 2),
        "repeats": repeats,
        "cores": available_cores(),
        "cpu": host_target().cpu,
        "system": platform.system(),
        "sleep": native_executor().row.name,
    }


def main() -> None:
    """Measures every case and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thunks", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.thunks < 1 or options.repeats < 1:
        parser.error("wanted at least one thunk and one repeat")
    rows = []
    for threads in (1, 2):
        for dependent in (False, True):
            rows.append(row(options.thunks, threads, dependent, options.repeats))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
