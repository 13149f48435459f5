"""Settings from environment variables: a typed table, read when a plan is compiled and never while it runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from camshaft.errors import SettingError
from camshaft.setting_values import (
    CPU_LEVELS,
    Refused,
    existing_folder,
    file,
    folder,
    one_of,
    size,
    switch,
    whole,
    words,
)


@dataclass(frozen=True)
class Settings:
    """The values of all settings; TABLE describes each field. `threads` None: every core available to this process."""

    cache_dir: Path
    backend: str | None
    threads: int | None
    activations: str
    kv_cache: str = "auto"
    c_compiler: str | None = None
    cache_nbytes: int = 512 * 10**6
    tune: bool = False
    measure: bool = True
    keep_weights: bool = True
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
    def instrumented(self) -> bool:
        """Whether plans are to be instrumented (see observe/instrument.py)."""
        return any((self.debug, self.dump, self.override, self.validate, self.interpret, self.trace))


@dataclass(frozen=True)
class Setting:
    """A setting: variable, field of Settings, allowed values, default, meaning. `read` parses the text; `unset` gives the
    default value."""

    variable: str
    field: str
    values: str
    default: str
    meaning: str
    read: Callable[[str], Any]
    unset: Callable[[], Any] = lambda: None


# What the user's cache folder depends on.
_CACHE_VARIABLES = ("XDG_CACHE_HOME", "HOME", "USERPROFILE", "LOCALAPPDATA")


@functools.lru_cache(maxsize=8)
def _user_cache(*variables: str | None) -> Path:
    return Path(platformdirs.user_cache_dir("camshaft", appauthor=False))


TABLE = (
    Setting(
        "CAMSHAFT_CACHE_DIR",
        "cache_dir",
        "a folder",
        "the user's cache folder",
        "Folder of the cache: compiled kernels, validation results, measurements, compiled plans, model headers, models.",
        Path,  # not checked: what cannot be used is reported once, and does without (store/store.py)
        lambda: _user_cache(*map(os.environ.get, _CACHE_VARIABLES)),
    ),
    Setting(
        "CAMSHAFT_BACKEND",
        "backend",
        "a backend's or device's name",
        "the best validated one",
        "Backend that plans are compiled for, like `--backend`; an error if it is unavailable.",
        words,
    ),
    Setting(
        "CAMSHAFT_THREADS",
        "threads",
        "1 to 1024",
        "the cores available to this process",
        "Number of worker threads, at most the cores available to this process.",
        whole(1, 1024),
    ),
    Setting(
        "CAMSHAFT_ACTIVATIONS",
        "activations",
        "auto, q8 or f32",
        "auto",
        "Data type of inputs of quantized matmuls; auto is q8, and bf16 for prompts on a CPU with AMX or an NVIDIA GPU. f32 "
        "also makes the KV cache f32 by default.",
        one_of("auto", "q8", "f32"),
        lambda: "auto",
    ),
    Setting(
        "CAMSHAFT_KV_CACHE",
        "kv_cache",
        "auto, f16, bf16, f32, q8_0 or q4_0",
        "auto",
        "Data type of the KV cache; auto is f16, or f32 with f32 activations; q8_0 and q4_0 take 8.5 and 4.5 bits per number.",
        one_of("auto", "f16", "bf16", "f32", "q8_0", "q4_0"),
        lambda: "auto",
    ),
    Setting("CAMSHAFT_CC", "c_compiler", "a command", "the first one found", "C compiler of the backend `c`.", words),
    Setting(
        "CAMSHAFT_CACHE_SIZE",
        "cache_nbytes",
        "a size from 16M up",
        "512M",
        "Maximum size of the cache of compiled kernels; M is 10^6 bytes.",
        size,
        lambda: Settings.cache_nbytes,
    ),
    Setting(
        "CAMSHAFT_TUNE",
        "tune",
        "0 or 1",
        "0",
        "Plans measure their kernels at their exact shapes before they are compiled, and store the results.",
        switch,
        lambda: False,
    ),
    Setting(
        "CAMSHAFT_MEASURE",
        "measure",
        "0 or 1",
        "1",
        "After new plans were used, time the best kernels of their heaviest shapes in the background, for later plans.",
        switch,
        lambda: True,
    ),
    Setting(
        "CAMSHAFT_KEEP_WEIGHTS",
        "keep_weights",
        "0 or 1",
        "1",
        "Keep packed weights in the cache folder, in a tenth of the disk's free space at most; later starts map them (Linux).",
        switch,
        lambda: True,
    ),
    Setting(
        "CAMSHAFT_CHAINS",
        "chains",
        "0 or 1",
        "1",
        "Fuse chains of elementwise ops into one kernel; 0 runs each op separately, with bit-equal results.",
        switch,
        lambda: True,
    ),
    Setting(
        "CAMSHAFT_BEAM",
        "beam",
        "1 to 64",
        "4",
        "Beam width of the search over tunable parameters.",
        whole(1, 64),
        lambda: 4,
    ),
    Setting(
        "CAMSHAFT_DEBUG",
        "debug",
        "0 to 5",
        "0",
        "Print information on plans to stderr; each level adds to the one below, see the table of levels.",
        whole(0, 5),
        lambda: 0,
    ),
    Setting(
        "CAMSHAFT_DUMP",
        "dump",
        "a folder",
        "nothing is dumped",
        "Write each plan's schedule, and each kernel's IR, emitted source and assembly, to this folder.",
        folder,
    ),
    Setting(
        "CAMSHAFT_OVERRIDE",
        "override",
        "a folder",
        "nothing is replaced",
        "Replace kernels by LLVM IR from this folder, as written by CAMSHAFT_DUMP and edited by hand.",
        existing_folder,
    ),
    Setting(
        "CAMSHAFT_VALIDATE",
        "validate",
        "0 or 1",
        "0",
        "Compare the result of every node with the op's reference, and stop at the first difference.",
        switch,
        lambda: False,
    ),
    Setting(
        "CAMSHAFT_INTERPRET",
        "interpret",
        "0 or 1",
        "0",
        "Run kernels in the interpreter, which checks every access, instead of machine code. Slow; for small plans.",
        switch,
        lambda: False,
    ),
    Setting(
        "CAMSHAFT_TRACE",
        "trace",
        "a file",
        "nothing is traced",
        "Write a trace of every run of every worker to this file at exit, for Perfetto or chrome://tracing.",
        file,
    ),
    Setting(
        "CAMSHAFT_CPU_FEATURES",
        "cpu_features",
        "a level of CPU features",
        "all that the CPU has",
        "Highest level of CPU features that `cpu` and `cpu:c` kernels may use (see backends.md); read once per process.",
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
    """The value of one setting: 1 microsecond, where all settings take 25. Raises as `settings` does."""
    return _value(_ROWS[field])


def settings() -> Settings:
    """Read all settings from the environment. Raises SettingError, naming the variable and the allowed values."""
    return Settings(**{row.field: _value(row) for row in TABLE})
