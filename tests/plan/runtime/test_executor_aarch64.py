"""The executor on AArch64, under qemu: cross-emitted, its workers threads of pthread, on a schedule where each thunk needs all of
the one before. qemu on x86 keeps x86's order of memory, so that what a weaker order breaks does not show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from camshaft.dtypes import i64
from camshaft.emit.llvm.module import emit
from camshaft.lang import ir, kernel
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.executor import executor_ir
from camshaft.plan.runtime.native.os_wait import FUTEX_NUMBERS, futex_row
from camshaft.plan.schedule import COPY_NBYTES_PER_PROGRAM
from tests.support.compilers.aarch64 import COMPILER, CPUS, EMULATOR, missing
from tests.support.compilers.cross import compile_for
from tests.support.needs import require
from tests.support.quick import full

DRIVER = Path(__file__).parents[2] / "support" / "compilers" / "aarch64_executor.c"
BLOCK, N = 16, 1000
MEMORY, EXTENT, NUMBER, MEMMOVE = range(4)
ROUNDS = 20
CPU = CPUS["cortex-a76"]


@kernel
def turned(k, x, out, n, *, step):
    """out[i] = x[n - 1 - i] + step: a program reads what other workers' programs wrote."""
    first = k.program(0) * BLOCK
    for i in k.lanes(first, k.minimum(first + BLOCK, n)):
        out[i] = k.gather(x, n - 1 - i) + step


def turned_object(index: int, step: int) -> bytes:
    arrays = [ir.ArrayParam("x", i64, (N,)), ir.ArrayParam("out", i64, (N,), True)]
    traced = turned.trace(arrays, ["n"], {"step": step}, [ir.GridDim(1, "n", BLOCK)])
    return compile_for(CPU.target, emit(traced, CPU.target.at(4), f"kernel{index}"))


def launch(index: int, source: int, to: int, wait: bool, home: int) -> list[int]:
    args = [MEMORY, source * N, MEMORY, to * N, EXTENT, 0]
    return [index, 1, wait, home, 1, BLOCK, len(args) // 2, *args]


def copy(source: int, to: int, home: int) -> list[int]:
    nbytes = 8 * N
    args = [MEMORY, source * N, MEMORY, to * N, NUMBER, nbytes, MEMMOVE, 0]
    return [-1, -(-nbytes // COPY_NBYTES_PER_PROGRAM), True, home, 0, len(args) // 2, *args]


def thunks() -> list[list[int]]:
    """Memory 0 becomes 1, 1 becomes 2 and, side by side with it, 3; 2 is copied back to 0."""
    found = []
    for i in range(ROUNDS):
        found += [launch(0, 0, 1, True, 0), launch(1, 1, 2, True, i % 2), launch(0, 1, 3, False, 1), copy(2, 0, i % 2)]
    return found


def wanted(n: int) -> np.ndarray:
    """What the schedule makes of memory 1, 2, 3 ... where n elements are active."""
    memory = np.arange(1, 4 * N + 1).reshape(4, N)
    for _ in range(ROUNDS):
        memory[1, :n] = memory[0, :n][::-1] + 1
        memory[2, :n] = memory[1, :n][::-1] + 2
        memory[3, :n] = memory[1, :n][::-1] + 1
        memory[0] = memory[2]
    return memory


@pytest.fixture(scope="module", params=[False, True], ids=["ordinary", "timed"])
def program(request, tmp_path_factory) -> Path:
    reason = missing()
    require(reason is None, reason or "")
    folder = tmp_path_factory.mktemp("executor")
    text = executor_ir(futex_row(FUTEX_NUMBERS["aarch64"]), "aarch64", timed=request.param)
    objects = {"executor": compile_for(CPU.target, text)} | {f"kernel{i}": turned_object(i, i + 1) for i in (0, 1)}
    for name, data in objects.items():
        (folder / f"{name}.o").write_bytes(data)
    entries = "void kernel0(const long *, long, long), kernel1(const long *, long, long);"
    table = f"{entries}\nvoid (*const kernels[])(const long *, long, long) = {{kernel0, kernel1}};\n"
    (folder / "table.c").write_text(table)
    offsets = [f"-D{name}={value}" for name, value in vars(layout).items() if name.isupper() and isinstance(value, int)]
    parts = [str(DRIVER), str(folder / "table.c"), *(str(folder / f"{name}.o") for name in objects)]
    made = folder / ("timed" if request.param else "ordinary")
    subprocess.run([COMPILER, "-O1", "-static", "-pthread", *offsets, *parts, "-o", str(made)], check=True)
    return made


@pytest.mark.parametrize(("workers", "turns"), [full(2, 1), (2, 2000), full(3, 50)])
def test_workers_meet_at_every_wait(workers, turns, program, tmp_path) -> None:
    extents = (N, 1, 33, 0, 17, 999, 16)
    # workers fall asleep between runs with a pause, and on few turns within them too
    runs = [(n, 3000 if i % 3 == 0 else 0) for i, n in enumerate(extents * 3)]
    rows = thunks()
    script = [workers, turns, 4 * N, len(runs), *(word for run in runs for word in run), len(rows)]
    np.array(script + [int(word) for row in rows for word in row], np.int64).tofile(tmp_path / "script")
    command = [EMULATOR, "-cpu", CPU.qemu, str(program), str(tmp_path / "script"), str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    results = np.fromfile(tmp_path / "results", np.int64).reshape(len(runs) + 1, -1)
    memory, stamps = results[:, : 4 * N].reshape(-1, 4, N), results[:, 4 * N :]
    for (n, _), found in zip([*runs, runs[-1]], memory, strict=True):
        np.testing.assert_array_equal(found, wanted(n), err_msg=f"{n} active")
    if program.name == "timed":
        check_stamps(
            stamps.reshape(len(runs) + 1, workers, len(rows) + 1, layout.STAMP_WORDS)[:-1], [n for n, _ in runs], rows
        )


def check_stamps(stamps: np.ndarray, extents: list[int], rows: list[list[int]]) -> None:
    """Of each run: programs add up, a thunk ends after it starts, and starts after the one that it waits for has ended."""
    for run, n in zip(stamps, extents, strict=True):
        start, end, size = (run[:, :-1, word] for word in (layout.START, layout.END, layout.SIZE))
        assert size.sum(axis=0).tolist() == [1 if row[0] < 0 else -(-n // BLOCK) for row in rows]
        assert (end >= start).all()
        assert (start[:, 1:] >= end[:, :-1]).all()
        ended = np.where(size > 0, end, 0).max(axis=0)
        for i, row in enumerate(rows[1:], start=1):
            if row[2]:
                assert start[:, i].min() >= ended[:i].max()
