"""Instrument plans while they are compiled, for CAMSHAFT_DEBUG, DUMP, OVERRIDE, VALIDATE, INTERPRET and TRACE.

plan/lower_and_bind.py calls this through plan/hooks.py only if one of these settings is on; other plans have no overhead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, native_function
from camshaft.backends.device import HOST, Bytes
from camshaft.errors import SettingError
from camshaft.extent import Extent
from camshaft.lang.interpreter.interpret import interpret
from camshaft.observe.debug_output import dump, print_lines, print_plan, print_run
from camshaft.observe.kernel_texts import SYMBOL, KernelTexts, kernel_texts
from camshaft.observe.machine_peak import machine_peak
from camshaft.observe.profile import profile_of
from camshaft.observe.trace import trace_file
from camshaft.observe.validate import validated_run
from camshaft.plan.buffers import BufferSlice
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.runtime.runnable import RunnableSchedule
from camshaft.plan.runtime.timed import TimedRun
from camshaft.plan.runtime.workers import inside_host_thunk
from camshaft.plan.schedule import Programs, Schedule, Thunk
from camshaft.settings import Settings, settings
from camshaft.store.files import digest_of

# Matches the entry name @kernel, but not @kernel_part.
_ENTRY = re.compile(rf"@{SYMBOL}\b(?![\w.$-])")


@dataclass(frozen=True)
class ReplacedKernel(CpuKernel):
    """Machine code compiled from an edited file."""

    path: Path = Path()


def replaced(lowered: Lowered, folder: Path) -> list[str]:
    """Run hand-edited LLVM IR in place of camshaft's own kernels; return the names of the replaced thunks.

    Reads files STEM.ll as CAMSHAFT_DUMP wrote them, for kernels of the backends simd and scalar and for BLAS calls. An unedited
    file changes nothing, so a dump folder can be used as it is. Raises SettingError for an edited file other than LLVM IR,
    BackendError with LLVM's message if it does not compile."""
    names = []
    for origin in lowered.origins:
        for index, texts in zip(range(origin.first, origin.last), kernel_texts(origin), strict=False):
            code = _edited(texts, folder)
            if code is not None:
                thunk = lowered.thunks[index]
                lowered.thunks[index] = replace(thunk, entry=code, reason=f"replaced by {code.path.name}")
                names.append(thunk.name)
    return names


def _edited(texts: KernelTexts, folder: Path) -> ReplacedKernel | None:
    for path in folder.glob(f"{texts.stem}.*"):
        content = path.read_text("utf-8")
        if path.suffix == ".ll" and texts.suffix == "ll" and texts.device.backend != "null":
            if content != texts.source:
                return _compiled(texts, path, content)
        elif texts.files().get(path.name, content) != content:
            raise SettingError(
                f"CAMSHAFT_OVERRIDE: {path} was edited; only the LLVM IR (.ll) of CPU kernels can be replaced"
            )
    return None


def _compiled(texts: KernelTexts, path: Path, source: str) -> ReplacedKernel:
    if not _ENTRY.search(source):
        raise SettingError(f"CAMSHAFT_OVERRIDE: {path} does not define @{SYMBOL}")
    signature = digest_of("override", source, texts.vectorize)
    code = native_function(
        texts.launch.name, signature, lambda symbol: _ENTRY.sub(f"@{symbol}", source), texts.vectorize
    )
    return ReplacedKernel(code.name, code.address, code.library, code.key, path)


def interpreted(lowered: Lowered) -> None:
    """Replace compiled thunks by interpreted ones. Raises SettingError for code without IR, and for plans not on the CPU."""
    for origin in lowered.origins:
        for index, texts in zip(range(origin.first, origin.last), kernel_texts(origin), strict=False):
            lowered.thunks[index] = _interpreted(lowered.thunks[index], texts)


def _interpreted(thunk: Thunk, texts: KernelTexts) -> Thunk:
    where = f"CAMSHAFT_INTERPRET=1: thunk {thunk.name!r} ({thunk.op}/{thunk.variant})"
    if thunk.device != HOST:
        raise SettingError(f"{where} is on {thunk.device}; only CPU plans can be interpreted")
    if texts.traced is None:
        raise SettingError(
            f"{where} calls another library; CAMSHAFT_BACKEND=simd uses only kernels that can be interpreted"
        )
    lanes = 1 if texts.device.backend == "scalar" else texts.launch.lanes or texts.device.lanes  # type: ignore[union-attr]
    kernel, arrays = texts.traced, texts.params.arrays

    def run(*args: Any) -> None:
        views = [
            np.frombuffer(memory, np.uint8).view(array.dtype.numpy).reshape(array.bounds)
            for memory, array in zip(args, arrays, strict=False)
        ]
        interpret(kernel, views, [int(value) for value in args[len(arrays) :]], lanes=lanes)

    slices = tuple(arg for arg in thunk.args if isinstance(arg, BufferSlice))
    extents = tuple(arg for arg in thunk.args if isinstance(arg, Extent))
    return replace(
        thunk,
        kind="host",
        entry=run,
        args=(*slices, *extents),
        programs=Programs(1),
        reason=f"interpreted; {thunk.reason}",
    )


def lowered(made: Lowered) -> Lowered:
    """Replace thunks by files of CAMSHAFT_OVERRIDE or by the interpreter, as the settings say."""
    wanted = settings()
    if wanted.override is not None:
        names = replaced(made, wanted.override)
        what = (
            f"replaced {len(names)} thunks of a plan: {', '.join(names)}" if names else "no edited kernel in this plan"
        )
        print_lines(f"CAMSHAFT_OVERRIDE: {wanted.override}: {what}")
    if wanted.interpret:
        interpreted(made)
    return made


def built(plan: ExecutionPlan) -> ExecutionPlan:
    """Print and dump a compiled plan, and wrap it in an InstrumentedSchedule if its runs are to be observed."""
    wanted = settings()
    print_plan(plan, wanted.debug)
    if wanted.dump is not None:
        dump(plan, wanted.dump)
    edited = any(isinstance(thunk.entry, ReplacedKernel) for thunk in plan.bound.schedule.thunks)
    if wanted.debug >= 2 or wanted.trace is not None or wanted.validate or edited:
        bound: RunnableSchedule = InstrumentedSchedule(plan, wanted)
        return replace(plan, bound=bound)
    return plan


class InstrumentedSchedule:
    """A bound schedule whose complete runs are validated or timed. Partial runs are passed on."""

    native = None

    def __init__(self, plan: ExecutionPlan, wanted: Settings) -> None:
        self.inner, self._plan, self._wanted = plan.bound, plan, wanted
        thunks = self.inner.schedule.thunks
        self._unvalidated = [
            o for o in plan.origins if any(isinstance(t.entry, ReplacedKernel) for t in thunks[o.first : o.last])
        ]
        self._is_timed = wanted.debug >= 2 or wanted.trace is not None
        self._peak = machine_peak(self.inner.threads) if wanted.debug >= 2 else None
        self._file = trace_file(wanted.trace) if wanted.trace is not None else None
        self._number = self._file.plan() if self._file else 0
        self._traced = False

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Run thunks [first, last). Raises ValidationError if a node differs from its reference. Runs are not timed with
        CAMSHAFT_VALIDATE, nor the first run of replaced kernels."""
        end = len(self.schedule.thunks) if last is None else last
        if self._wanted.validate:
            validated_run(self.inner, list(self._plan.origins), first, end)
        elif self._unvalidated:
            validated_run(self.inner, self._unvalidated, first, end)
            self._unvalidated = [o for o in self._unvalidated if o.first < first or o.last > end]
        elif self._is_timed and (first, end) == (0, len(self.schedule.thunks)) and not inside_host_thunk():
            self._run_timed()
        else:
            self.inner.run(first, last)

    def _run_timed(self) -> None:
        run = self.timed()
        if self._file is not None:
            self._file.add(run, self.schedule, self._number, not self._traced)
            self._traced = True
        if self._peak is not None:
            print_run(profile_of(self._plan, [run], self._peak))

    @property
    def schedule(self) -> Schedule:
        return self.inner.schedule

    @property
    def memory_plan(self) -> MemoryPlan:
        return self.inner.memory_plan

    @property
    def threads(self) -> int:
        return self.inner.threads

    @property
    def active(self) -> dict[Extent, int]:
        return self.inner.active

    def extent(self, extent: Extent) -> int:
        return self.inner.extent(extent)

    def set_extent(self, extent: Extent, value: int) -> None:
        self.inner.set_extent(extent, value)

    def bytes_of(self, piece: BufferSlice) -> Bytes:
        return self.inner.bytes_of(piece)

    def timed(self) -> TimedRun:
        return self.inner.timed()

    def close(self) -> None:
        self.inner.close()
