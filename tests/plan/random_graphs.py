"""Random graphs, random thunks over random buffers, and an interpreter that runs them in any order that their waits allow."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st
from plan_kernels import TestKernel, kernel

import camshaft as cs
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.schedule import Programs, Schedule, Thunk

ADDRESS_STEP = 16
DIM = 24
TOKENS = cs.Extent("tokens", 40)
Bytes = np.ndarray


@st.composite
def thunk_lists(draw: st.DrawFn) -> list[Thunk]:
    """Up to 14 thunks. A temporary's first use writes all of it; no thunk writes what it reads or writes twice."""
    lifetimes = draw(st.lists(st.sampled_from(list(Lifetime)), min_size=2, max_size=9))
    sizes = st.integers(1, 20).map(lambda n: n * ADDRESS_STEP)
    aligned = st.sampled_from([1, 64, 64, 256])
    buffers = [Buffer(f"b{i}", draw(sizes), lifetime, draw(aligned)) for i, lifetime in enumerate(lifetimes)]
    begun: set[Buffer] = {buffer for buffer in buffers if buffer.lifetime is not Lifetime.TEMP}
    return [_thunk(draw, index, buffers, begun) for index in range(draw(st.integers(1, 14)))]


def _slice(draw: st.DrawFn, buffer: Buffer) -> BufferSlice:
    start = draw(st.integers(0, buffer.nbytes))
    return BufferSlice(buffer, start, draw(st.integers(0, buffer.nbytes - start)))


def _thunk(draw: st.DrawFn, index: int, buffers: Sequence[Buffer], begun: set[Buffer]) -> Thunk:
    readable = [buffer for buffer in buffers if buffer in begun]
    reads = [_slice(draw, b) for b in draw(st.lists(st.sampled_from(readable), max_size=3))] if readable else []
    writes: list[BufferSlice] = []
    writable = [buffer for buffer in buffers if buffer.lifetime is not Lifetime.CONSTANT]
    for buffer in draw(st.lists(st.sampled_from(writable), min_size=1, max_size=2)) if writable else []:
        piece = _slice(draw, buffer) if buffer in begun else buffer.slice()
        if not any(piece.overlaps(other) for other in reads + writes):
            writes.append(piece)
            begun.add(buffer)
    uses = tuple(BufferUse(s, "read") for s in reads) + tuple(BufferUse(s, "write") for s in writes)
    count = Programs(draw(st.integers(1, 4)))
    entry: TestKernel = kernel("tick")
    return Thunk(f"t{index}", "test", "random", "", "kernel", entry, tuple(u.slice for u in uses), uses, count)


def memory_for(
    buffers: Sequence[Buffer], offsets: Mapping[Buffer, int] | None, arena_nbytes: int
) -> dict[Buffer, Bytes]:
    """Random but repeatable bytes for each buffer; temporaries share one arena when offsets are given."""
    rng = np.random.default_rng(3)
    arena = rng.integers(0, 256, arena_nbytes, np.uint8)
    memory = {}
    for buffer in buffers:
        if buffer.lifetime is Lifetime.TEMP and offsets is not None:
            memory[buffer] = arena[offsets[buffer] : offsets[buffer] + buffer.nbytes]
        else:
            memory[buffer] = np.random.default_rng(zlib.crc32(buffer.name.encode())).integers(
                0, 256, buffer.nbytes, np.uint8
            )
    return memory


def run_program(
    thunk: Thunk, program: int, memory: Mapping[Buffer, Bytes], taken: Mapping[BufferUse, bytes] | None = None
) -> None:
    """Each program of a thunk reads all that the thunk reads and writes its share of what the thunk writes. `taken` are bytes
    that were read before."""
    digest = zlib.crc32(f"{thunk.name}.{program}".encode())
    for use in thunk.uses:
        if use.access == "read":
            now = memory[use.slice.buffer][use.slice.offset : use.slice.end].tobytes()
            digest = zlib.crc32((taken or {}).get(use, now), digest)
    for use in thunk.uses:
        if use.access == "write":
            digest = zlib.crc32(b"next", digest)
            target = memory[use.slice.buffer][use.slice.offset : use.slice.end][program :: thunk.programs.constant]
            target[:] = np.random.default_rng(digest).integers(0, 256, target.nbytes, np.uint8)


def groups(thunks: Sequence[Thunk], waits: Sequence[bool]) -> Iterator[list[Thunk]]:
    """The thunks between two waits, one group after the other."""
    group: list[Thunk] = []
    for thunk, wait in zip(thunks, waits, strict=True):
        if wait:
            yield group
            group = []
        group.append(thunk)
    yield group


def interpret(
    thunks: Sequence[Thunk],
    waits: Sequence[bool],
    memory: Mapping[Buffer, Bytes],
    shuffle: Callable[[list[tuple[Thunk, int]]], None],
) -> None:
    """Runs every program; the programs of all thunks between two waits in the order that `shuffle` makes."""
    for group in groups(thunks, waits):
        programs = [(thunk, program) for thunk in group for program in range(thunk.programs.constant)]
        shuffle(programs)
        for thunk, program in programs:
            run_program(thunk, program, memory)


OPS = {"add": cs.add, "multiply": cs.multiply, "silu": cs.silu}


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """Nodes as (op, first operand, second operand, device); operands are values so far."""
    nodes = []
    for i in range(draw(st.integers(1, 12))):
        values = st.integers(0, i + 1)
        nodes.append((draw(st.sampled_from(sorted(OPS))), draw(values), draw(values), draw(st.integers(0, 2))))
    return nodes


def graph_of(nodes: list[tuple[str, int, int, int]], n_outputs: int, place: bool) -> cs.Graph:
    graph = cs.Graph()
    values = [graph.input("x", (TOKENS, DIM), "f32"), graph.input("y", (TOKENS, DIM), "f32")]
    for op, a, b, device in nodes:
        with graph.on((None, "fake:0", "fake:1")[device] if place else None):
            values.append(OPS[op](values[a]) if op == "silu" else OPS[op](values[a], values[b]))
    for i, tensor in enumerate(values[-n_outputs:]):
        graph.output(f"out{i}", tensor)
    return graph


def check_bytes(thunks: list[Thunk], line: list[Thunk], schedule: Schedule, memory: MemoryPlan, seed: int) -> None:
    """Asserts that the thunks, in order `line` and with programs shuffled between waits, twice, give program order's bytes."""
    in_order = memory_for(schedule.buffers, None, 0)
    shuffled = memory_for(schedule.buffers, memory.offsets, memory.arena_nbytes)
    for _ in range(2):
        interpret(thunks, [True] * len(thunks), in_order, lambda programs: None)
        interpret(line, schedule.waits, shuffled, random.Random(seed).shuffle)
        for buffer in schedule.buffers:
            if buffer.lifetime is not Lifetime.TEMP:
                assert np.array_equal(in_order[buffer], shuffled[buffer])
