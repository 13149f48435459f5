"""A GPU played by this CPU: the SIMT form of a kernel runs with one fiber per thread of a workgroup, switched at barriers.

The emitter is the one that writes PTX, but for its thread index, barrier and shuffle, which here call the harness below. Between
two barriers the threads run one after the other in an order drawn anew each time, so a barrier that is missing shows in the
results; one that not all threads reach, and a shuffle from outside of the warp, end the process with a message.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from camshaft.backends.cpu.compile import compile_module, host_target, load_object
from camshaft.emit.llvm_grid import program_lines, size_lines, total_lines
from camshaft.emit.llvm_simt import SimtEmitter
from camshaft.emit.llvm_values import array_name, memory_dtype
from camshaft.emit.target import CpuTarget
from camshaft.lang.simt import to_simt
from camshaft.lang.verify import verify

HARNESS = r"""
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct machine machine;
typedef void (*kernel)(const int64_t *args, int64_t linear, int64_t lane, machine *m);
struct machine {                       /* the first three are read by the kernel, by their offsets */
    char *shared;
    void (*barrier)(machine *m);
    int32_t (*shuffle)(machine *m, int32_t word, int32_t source);
    kernel run;
    const int64_t *args;
    int64_t linear;
    int lanes, now, *order, *state, *begun; /* state: 1 waits at a barrier, 2 ended */
    int32_t *words;
    uint64_t seed;
    jmp_buf home, *jumps;
    ucontext_t *fibers;
};

static void give_up(const char *what) { fprintf(stderr, "simulated GPU: %s\n", what); abort(); }
static machine *starting;

/* to the scheduler and, when it comes to this thread again, back: setjmp makes no system call, swapcontext makes one */
static void leave(machine *m, int lane, int state) {
    m->state[lane] = state;
    if (!_setjmp(m->jumps[lane])) _longjmp(m->home, 1);
}

static void enter(void) {
    machine *m = starting;
    int lane = m->now;
    for (;;) {                         /* a fiber serves its thread of every workgroup */
        m->run(m->args, m->linear, lane, m);
        leave(m, lane, 2);
    }
}

static void barrier(machine *m) { leave(m, m->now, 1); }

static int32_t shuffle(machine *m, int32_t word, int32_t source) {
    int lane = m->now, from = (lane & ~31) | source;
    if (source < 0 || source > 31 || from >= m->lanes) give_up("a shuffle from a thread that there is not");
    m->words[lane] = word;
    barrier(m);
    int32_t got = m->words[from];
    barrier(m);
    return got;
}

static void shuffle_order(machine *m) {
    for (int i = m->lanes - 1; i > 0; i--) {
        m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((m->seed >> 33) % (uint64_t)(i + 1)), t = m->order[i];
        m->order[i] = m->order[j];
        m->order[j] = t;
    }
}

static void resume(machine *m) {
    if (_setjmp(m->home)) return;
    starting = m;
    if (m->begun[m->now]) _longjmp(m->jumps[m->now], 1);
    m->begun[m->now] = 1;
    setcontext(&m->fibers[m->now]);
}

static void workgroup(machine *m) {
    for (;;) {
        int waiting = 0, ended = 0;
        shuffle_order(m);
        for (int i = 0; i < m->lanes; i++) {
            m->now = m->order[i];
            resume(m);
            waiting += m->state[m->now] == 1;
            ended += m->state[m->now] == 2;
        }
        if (ended == m->lanes) return;
        if (waiting != m->lanes) give_up("a barrier that some threads of the workgroup do not reach");
    }
}

void simulate(kernel run, const int64_t *args, int64_t first, int64_t last, int lanes, int64_t shared, uint64_t seed) {
    const size_t stack = 1 << 16;
    machine m = {0};
    m.barrier = barrier; m.shuffle = shuffle; m.run = run; m.args = args; m.lanes = lanes; m.seed = seed;
    m.shared = aligned_alloc(64, (size_t)(shared + 127) / 64 * 64);
    m.order = calloc((size_t)lanes, sizeof *m.order);
    m.state = calloc((size_t)lanes, sizeof *m.state);
    m.words = calloc((size_t)lanes, sizeof *m.words);
    m.begun = calloc((size_t)lanes, sizeof *m.begun);
    m.jumps = calloc((size_t)lanes, sizeof *m.jumps);
    m.fibers = calloc((size_t)lanes, sizeof *m.fibers);
    char *stacks = malloc(stack * (size_t)lanes);
    for (int i = 0; i < lanes; i++) {
        m.order[i] = i;
        getcontext(&m.fibers[i]);
        m.fibers[i].uc_stack.ss_sp = stacks + (size_t)i * stack;
        m.fibers[i].uc_stack.ss_size = stack;
        makecontext(&m.fibers[i], enter, 0);
    }
    for (m.linear = first; m.linear < last; m.linear++) {
        memset(m.shared, 0xA5, (size_t)shared);
        workgroup(&m);
    }
    free(stacks); free(m.fibers); free(m.jumps); free(m.begun); free(m.words); free(m.state); free(m.order); free(m.shared);
}
"""


class SimulatedEmitter(SimtEmitter):
    """Barriers and shuffles are calls through the machine's first words."""

    def wait_for_all(self) -> None:
        self.write("call void %barrier(ptr %machine)")

    def shuffled(self, word: str, source: str) -> str:
        return self.line(f"call i32 %shuffle(ptr %machine, i32 {word}, i32 {source})")


def emit(kernel, symbol: str) -> tuple[str, int]:
    """The LLVM module of `void symbol(args, linear, lane, machine)`, and the bytes of workgroup memory that it wants."""
    features = frozenset(f[1:] for f in host_target().features.split(",") if f.startswith("+"))
    body = SimulatedEmitter(kernel, CpuTarget(platform.machine().lower(), 1, features))
    body.emit()
    lines = [f"define void @{symbol}(ptr %args, i64 %linear, i64 %lane, ptr %machine) {{", "entry:"]
    lines += [f"  {line}" for line in body.allocas]
    for i, name in enumerate(["%shared.all", "%barrier", "%shuffle"]):
        lines += [f"  %word{i} = getelementptr i64, ptr %machine, i64 {i}", f"  {name} = load ptr, ptr %word{i}"]
    for i, array in enumerate(kernel.arrays):
        lines += [
            f"  %at{i} = getelementptr i64, ptr %args, i64 {i}",
            f"  {array_name(array.name)} = load ptr, ptr %at{i}",
        ]
    for i, at in enumerate(range(len(kernel.arrays), len(kernel.arrays) + len(kernel.scalars))):
        lines += [f"  %at{at} = getelementptr i64, ptr %args, i64 {at}", f"  %where{i} = load ptr, ptr %at{at}"]
        lines += [f"  %scalar{i} = load i64, ptr %where{i}"]
    offset = 0
    for name, nbytes in [
        *((array_name(a.name), prod(a.shape) * memory_dtype(a.dtype).nbytes) for a in kernel.shared),
        ("%exchange", body.exchange_nbytes),
    ]:
        lines.append(f"  {name} = getelementptr i8, ptr %shared.all, i64 {offset}")
        offset += -(-nbytes // 16) * 16
    found, sizes = size_lines(kernel.grid, kernel.scalars)
    product, total = total_lines(sizes)
    lines += [*found, *product, f"  %inside = icmp slt i64 %linear, {total}"]
    lines += ["  br i1 %inside, label %program, label %nothing", "program:", *program_lines(sizes, "%linear")]
    lines += [*body.lines, "  br label %nothing", "nothing:", "  ret void", "}"]
    return "\n".join([*lines, *sorted(body.declarations.values())]) + "\n", offset


@functools.cache
def harness():
    """`simulate` of the C text above. RuntimeError where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the simulated GPU wants a C compiler")
    folder = Path(tempfile.mkdtemp(prefix="camshaft-simt-"))
    (folder / "harness.c").write_text(HARNESS)
    command = [
        compiler,
        "-O2",
        "-Wall",
        "-Werror",
        "-U_FORTIFY_SOURCE",
        "-shared",
        "-fPIC",
        "harness.c",
        "-o",
        "harness.so",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(folder / "harness.so"))
    shutil.rmtree(folder)
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    library.simulate.argtypes = [pointer, pointer, word, word, ctypes.c_int, word, ctypes.c_uint64]
    library.simulate.restype = None
    return library.simulate


@dataclass
class SimulatedKernel:
    """A kernel that runs workgroup after workgroup on this thread; called like a CPU's: (argument block, first, last)."""

    name: str
    lanes: int
    address: int
    shared_nbytes: int
    library: object = field(repr=False)
    seed: int = 1

    def __call__(self, args: int, first: int, last: int) -> None:
        harness()(self.address, args, first, last, self.lanes, self.shared_nbytes, self.seed)


def simulated(kernel, seed: int = 1) -> SimulatedKernel:
    """A SimtKernel made ready to run here."""
    text, nbytes = emit(kernel, "kernel")
    library = load_object(compile_module(text, vectorize=False))
    return SimulatedKernel(kernel.name, kernel.lanes, library.address("kernel"), nbytes, library, seed)


_made: dict[tuple, SimulatedKernel] = {}


@dataclass(frozen=True)
class SimulatedDevice:
    """What dispatch/run.py wants of a device; `lanes` threads a workgroup, `seed` draws the order of threads."""

    lanes: int = 64
    seed: int = 1
    backend: str = "cuda"
    name: str = "simulated"
    features: frozenset[str] = frozenset()
    space: str = "host"
    limits: Mapping[str, int] = field(default_factory=dict)

    def compile(self, kernel, arrays, scalars, constants, grid, lanes=None) -> SimulatedKernel:
        key = (kernel, repr(arrays), tuple(scalars), repr(sorted(constants.items())), repr(grid), lanes or self.lanes)
        if key not in _made:
            traced = kernel.trace(arrays, scalars, constants, grid)
            verify(traced)
            _made[key] = simulated(to_simt(traced, lanes or self.lanes))
        found = _made[key]
        return SimulatedKernel(
            found.name, found.lanes, found.address, found.shared_nbytes, found.library, np.uint64(self.seed).item()
        )
