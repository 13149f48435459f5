"""Every knob: one table, typed, read from the environment when a plan is built and never while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from camshaft.errors import SettingError
from camshaft.setting_values import Refused, existing_folder, file, folder, one_of, size, switch, whole, words


@dataclass(frozen=True)
class Settings:
    """What the environment asks for; a row of TABLE says what each field means. `threads` None: every core this process may
    run on."""

    cache_dir: Path
    backend: str | None
    threads: int | None
    activations: str
    kv_cache: str = "auto"
    c_compiler: str | None = None
    cache_nbytes: int = 512 << 20
    tune: bool = False
    chains: bool = True
    beam: int = 4
    debug: int = 0
    dump: Path | None = None
    override: Path | None = None
    validate: bool = False
    interpret: bool = False
    trace: Path | None = None
    cpu_features: str | None = None

    @property
    def watched(self) -> bool:
        """Whether plans are to be looked at while they are built or run (observe/instrument.py)."""
        return any((self.debug, self.dump, self.override, self.validate, self.interpret, self.trace))


# emit/cpu_levels.py says what each of them has
CPU_LEVELS = (
    *("sse4", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"),
    *("neon", "neon-dotprod", "neon-i8mm", "neon-bf16"),
)


@dataclass(frozen=True)
class Setting:
    """A row: the variable, the field of Settings, what may stand there, what holds without it, what it does. `read` turns the
    text into the value, `unset` gives the one without a text."""

    variable: str
    field: str
    values: str
    default: str
    meaning: str
    read: Callable[[str], Any]
    unset: Callable[[], Any] = lambda: None


TABLE = (
    Setting(
        "CAMSHAFT_CACHE_DIR",
        "cache_dir",
        "a folder",
        "the user's cache folder",
        "Where kernels, evidence, measurements, schedules, headers and models are kept between runs.",
        folder,
        lambda: Path(platformdirs.user_cache_dir("camshaft", appauthor=False)),
    ),
    Setting(
        "CAMSHAFT_BACKEND",
        "backend",
        "a backend's or device's name",
        "the best one proved",
        "The backend that plans are made for, as `--backend`; an error if it is absent.",
        words,
    ),
    Setting(
        "CAMSHAFT_THREADS",
        "threads",
        "1 to 1024",
        "the cores this process may use",
        "Workers of a plan.",
        whole(1, 1024),
    ),
    Setting(
        "CAMSHAFT_ACTIVATIONS",
        "activations",
        "auto, q8 or f32",
        "auto",
        "How inputs of quantized products are kept; f32 keeps the KV cache in f32 too.",
        one_of("auto", "q8", "f32"),
        lambda: "auto",
    ),
    Setting(
        "CAMSHAFT_KV_CACHE",
        "kv_cache",
        "auto, f16, bf16, f32, q8_0 or q4_0",
        "auto",
        "How keys and values are kept; auto is f16, or f32 with f32 activations; q8_0 and q4_0 take 8.5 and 4.5 bits a number.",
        one_of("auto", "f16", "bf16", "f32", "q8_0", "q4_0"),
        lambda: "auto",
    ),
    Setting("CAMSHAFT_CC", "c_compiler", "a command", "the first one found", "The C compiler of backend `c`.", words),
    Setting(
        "CAMSHAFT_CACHE_SIZE",
        "cache_nbytes",
        "a size from 16M up",
        "512M",
        "The most bytes of compiled kernels that are kept.",
        size,
        lambda: Settings.cache_nbytes,
    ),
    Setting(
        "CAMSHAFT_TUNE",
        "tune",
        "0 or 1",
        "0",
        "Plans measure their kernels at their exact shapes first, and keep what they find.",
        switch,
        lambda: False,
    ),
    Setting(
        "CAMSHAFT_CHAINS",
        "chains",
        "0 or 1",
        "1",
        "Plans join elementwise ops that read each other's results to one kernel; 0 leaves each its own, with the same bits.",
        switch,
        lambda: True,
    ),
    Setting(
        "CAMSHAFT_BEAM",
        "beam",
        "1 to 64",
        "4",
        "How many choices a search over tunables keeps at a time.",
        whole(1, 64),
        lambda: 4,
    ),
    Setting(
        "CAMSHAFT_DEBUG",
        "debug",
        "0 to 5",
        "0",
        "Says on stderr what a plan is and does, each level more than the one before; see the ladder below.",
        whole(0, 5),
        lambda: 0,
    ),
    Setting(
        "CAMSHAFT_DUMP",
        "dump",
        "a folder",
        "nothing is dumped",
        "Writes each plan's schedule there, and each kernel's IR, emitted source and assembly.",
        folder,
    ),
    Setting(
        "CAMSHAFT_OVERRIDE",
        "override",
        "a folder",
        "nothing is replaced",
        "Kernels whose LLVM IR lies there, as CAMSHAFT_DUMP wrote it and a person edited it, run in place of camshaft's.",
        existing_folder,
    ),
    Setting(
        "CAMSHAFT_VALIDATE",
        "validate",
        "0 or 1",
        "0",
        "Compares what each node computes with its op's reference and stops at the first that differs.",
        switch,
        lambda: False,
    ),
    Setting(
        "CAMSHAFT_INTERPRET",
        "interpret",
        "0 or 1",
        "0",
        "Runs kernels in the interpreter, every access checked, in place of machine code. Slow: for small plans.",
        switch,
        lambda: False,
    ),
    Setting(
        "CAMSHAFT_TRACE",
        "trace",
        "a file",
        "nothing is traced",
        "Writes what every worker did in every run there when the process ends, for Perfetto or chrome://tracing.",
        file,
    ),
    Setting(
        "CAMSHAFT_CPU_FEATURES",
        "cpu_features",
        "a level of CPU features",
        "all that the CPU has",
        "Kernels of `cpu` and `cpu:c` use no instruction above that level (the levels are in backends.md); read once a process.",
        one_of(*CPU_LEVELS),
    ),
)


def _value(row: Setting) -> Any:
    text = os.environ.get(row.variable)
    if not text:
        return row.unset()
    try:
        return row.read(text)
    except Refused as wanted:
        raise SettingError(f"{row.variable}={text}: wanted {wanted}") from None


_ROWS = {row.field: row for row in TABLE}


def setting(field: str) -> Any:
    """One of them, for callers that cannot wait for all: 1 microsecond, all take 25. SettingError as of `settings`."""
    return _value(_ROWS[field])


def settings() -> Settings:
    """The settings of this moment, from the environment, by TABLE. SettingError names the variable and what was wanted."""
    return Settings(**{row.field: _value(row) for row in TABLE})


def thread_count(requested: int | None = None) -> int:
    """How many workers to use: what was asked for, else CAMSHAFT_THREADS, else the cores this process may use."""
    if requested is not None:
        if not isinstance(requested, int) or not 1 <= requested <= 1024:
            raise SettingError(f"threads={requested!r}: wanted 1 to 1024")
        return requested
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return settings().threads or cores
