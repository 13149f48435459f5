"""Kernels for AArch64 without such a machine: cross-emitted, linked into one executable for many ops, run under qemu-aarch64."""

from __future__ import annotations

import functools
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from camshaft.backends.cpu.device import CpuDevice
from camshaft.emit.llvm.module import emit
from camshaft.ops.kernels.launch import operand_part, program_count, signature
from camshaft.validation.run import GUARD_NBYTES, check_guards, guarded, updated, view
from camshaft.validation.validate import check_outputs, node_of
from tests.support.compilers.cross import CrossTarget, compile_for

TRIPLE = "aarch64-unknown-linux-gnu"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
TIMEOUT_S = 300
# A kernel's name as it is compiled; its number replaces it in the object, so that one object serves every executable.
SYMBOL = "kernel____"
DRIVER = Path(__file__).with_name("aarch64_driver.c")


@dataclass(frozen=True)
class Cpu:
    """A CPU: LLVM's name and features, and the one that qemu plays (an instruction that it has not ends the process)."""

    name: str
    features: frozenset[str]
    qemu: str

    @property
    def target(self) -> CrossTarget:
        return CrossTarget(TRIPLE, self.name, self.features)

    @property
    def device(self) -> CpuDevice:
        return CpuDevice(f"aarch64:{self.name}", "simd", 4, self.features, "aarch64")


CPUS = {
    cpu.name: cpu
    for cpu in (
        Cpu("cortex-a53", frozenset({"neon"}), "cortex-a53"),
        Cpu("cortex-a76", frozenset({"neon", "dotprod"}), "cortex-a76"),
        Cpu("neoverse-n2", frozenset({"neon", "dotprod", "i8mm", "bf16"}), "max"),
    )
}


def missing() -> str | None:
    """None, or which of the programs is not there."""
    absent = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    return f"not here: {', '.join(absent)} (gcc-aarch64-linux-gnu, qemu-user)" if absent else None


@functools.cache
def driver_object(folder: Path) -> Path:
    made = folder / "driver.o"
    subprocess.run([COMPILER, "-O1", "-c", str(DRIVER), "-o", str(made)], check=True, capture_output=True)
    return made


@dataclass
class Executable:
    """Some ops' kernels for one CPU, compiled once each, and the samples that run on them."""

    cpu: Cpu
    folder: Path
    symbols: dict[str, int] = field(default_factory=dict)
    jobs: list[_Job] = field(default_factory=list)

    def kernel(self, launch, made) -> int:
        """The kernel's index in the table; its object lies in the folder."""
        key = f"{made.request(launch).key()}|{launch.lanes}"
        if key not in self.symbols:
            index = self.symbols[key] = len(self.symbols)
            text = emit(made.request(launch).trace(), self.cpu.target.at(launch.lanes or 4), SYMBOL)
            code = compile_for(self.cpu.target, text).replace(SYMBOL.encode(), f"kernel{index:04}".encode())
            (self.folder / f"kernel{index:04}.o").write_bytes(code)
        return self.symbols[key]

    def add(self, op, variant, sample) -> bool:
        """Takes a sample if the variant supports it on this CPU."""
        node = node_of(op, sample)
        if variant.supports(node, self.cpu.device) is not None:
            return False
        self.jobs.append(_Job(self, op, variant, sample, node))
        return True

    def link(self) -> Path:
        names = [f"kernel{i:04}" for i in range(len(self.symbols))]
        table = self.folder / "table.c"
        declarations = "\n".join(f"void {n}(const long *, long, long);" for n in names)
        table.write_text(
            f"{declarations}\nvoid (*const kernels[])(const long *, long, long) = {{{', '.join(names)}}};\n"
        )
        made = self.folder / "all"
        parts = [driver_object(self.folder.parent), table, *(self.folder / f"{n}.o" for n in names)]
        subprocess.run([COMPILER, "-static", *map(str, parts), "-o", str(made)], check=True, capture_output=True)
        return made

    def run(self) -> list[tuple[str, str, str, float, float]]:
        """(op, variant, sample, error, tolerance) of every sample. AssertionError for guards, unequal runs and dead processes."""
        blob = np.concatenate([memory for job in self.jobs for memory in job.memories.values()])
        at, words = 0, [len(self.jobs)]
        for job in self.jobs:
            words += job.words(at)
            at += sum(len(m) for m in job.memories.values())
        paths = [self.folder / name for name in ("script", "blob", "results")]
        np.array(words, np.int64).tofile(paths[0])
        blob.tofile(paths[1])
        command = [EMULATOR, "-cpu", self.cpu.qemu, str(self.link()), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        self._alive(done)
        data, results, start = np.fromfile(paths[2], np.uint8), [], 0
        for job in self.jobs:
            error, tolerance, start = job.judge(data, start)
            results.append((job.op.name, job.variant.name, job.sample.name, error, tolerance))
        assert start == len(data)
        return results

    def _alive(self, done) -> None:
        if done.returncode:
            index, edge = next(
                (map(int, line.split()) for line in reversed(done.stderr.splitlines()) if line[:1].isdigit()), (0, 0)
            )
            job = self.jobs[index]
            where = f"{job.op.name} {job.variant.name} ({job.sample.name}), run {edge + 1}"
            raise AssertionError(f"{self.cpu.name}: exit {done.returncode} in {where}: {done.stderr[-300:]}")


class _Job:
    """One sample on one variant: its memories as they are before the run, and the words of the driver's script."""

    def __init__(self, executable: Executable, op, variant, sample, node) -> None:
        self.op, self.variant, self.sample, self.node = op, variant, sample, node
        self.build = variant.build(node, executable.cpu.device)
        self.specs = {("input", i): spec for i, spec in enumerate(node.inputs)}
        self.specs |= {("output", i): spec for i, spec in enumerate(node.outputs)}
        self.specs |= {("scratch", i): spec for i, spec in enumerate(self.build.scratch)}
        self.memories = {key: guarded(spec)[: spec.nbytes + 2 * GUARD_NBYTES] for key, spec in self.specs.items()}
        for i, array in enumerate(sample.inputs):
            raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
            self.memories["input", i][GUARD_NBYTES : GUARD_NBYTES + len(raw)] = raw
        self.launches = [self._launch(executable, launch) for launch in self.build.launches]

    def _launch(self, executable: Executable, launch) -> list[int]:
        made = signature(launch, self.node, self.build)
        order = list(self.memories)
        active = {c.dim: c.dim.bound for c in launch.grid if not isinstance(c.dim, int)}
        active |= {e: e.bound for e in made.scalars} | dict(self.sample.extents)
        args: list[int] = []
        for operand in launch.arrays:
            part = operand_part(operand, self.node, self.build)
            args += [order.index((operand.kind, operand.index)), GUARD_NBYTES + part.offset_nbytes]
        for extent in made.scalars:
            args += [-1, active[extent]]
        return [executable.kernel(launch, made), program_count(launch, active), len(args) // 2, *args]

    def words(self, at: int) -> list[int]:
        rows = [len(self.memories)]
        for memory in self.memories.values():
            rows += [len(memory), at]
            at += len(memory)
        return [*rows, len(self.launches), *(word for launch in self.launches for word in launch)]

    def judge(self, data, start: int) -> tuple[float, float, int]:
        """(error, tolerance, where the next sample's results start)."""
        runs = []
        for edge in (False, True):
            memories = {}
            for key, memory in self.memories.items():
                size = len(memory) - (GUARD_NBYTES if edge else 0)
                # a run at a page's end has no trailing guard: the one it started with stands in
                memories[key] = np.concatenate([data[start : start + size], memory[size:]])
                start += size
                check_guards(memories[key], self.specs[key], f"{self.variant.name} {self.sample.name} {key}")
            runs.append(memories)
        node, build = self.node, self.build
        outputs = [[view(m["output", i], s) for i, s in enumerate(node.outputs)] for m in runs]
        for values, memories in zip(outputs, runs, strict=True):
            values += [view(memories["input", i], node.inputs[i]) for i in updated(build)]
        for a, b in zip(*outputs, strict=True):
            np.testing.assert_array_equal(
                a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8), err_msg="two runs differ"
            )
        checked = check_outputs(self.op, self.variant, node, self.sample, tuple(outputs[0]))
        return checked.max_error, checked.tolerance, start
