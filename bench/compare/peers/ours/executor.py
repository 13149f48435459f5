"""A schedule of small adds in camshaft's executor, dominated by the executor's overhead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.cpu.compile import NativeLibrary, compile_module, load_object
from camshaft.plan.buffers import Buffer, BufferUse, Lifetime
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import BoundSchedule, bind
from camshaft.plan.schedule import Programs, Thunk

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
    """Adds 8 floats per program."""

    name: str
    address: int
    library: NativeLibrary


def add_kernel() -> AddKernel:
    """Compile the kernel."""
    library = load_object(compile_module(ADD))
    return AddKernel("add", library.address("add"), library)


def add_plan(n_thunks: int, threads: int, *, dependent: bool) -> BoundSchedule:
    """n_thunks adds of 16 elements in 2 programs; each reads the previous result (a wait after each), or none does."""
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


class Adds:
    """Orders: {"adds": n}. Each add reads the result of the previous one."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.version, self.built_for = "camshaft", "this CPU"

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        return add_plan(order["adds"], self.threads, dependent=True).run
