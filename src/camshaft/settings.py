"""Every knob, typed and read from the environment when a plan is built, never while it runs."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from camshaft.errors import SettingError


@dataclass(frozen=True)
class Settings:
    """What the environment asks for. `threads` None means every core this process may run on."""

    cache_dir: Path
    backend: str | None
    threads: int | None
    activations: str
    c_compiler: str | None = None
    cache_nbytes: int = 512 << 20
    tune: bool = False
    beam: int = 4


def _integer(name: str, default: int | None, low: int, high: int) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise SettingError(f"{name}={text}: wanted a whole number from {low} to {high}")
    return int(text)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LEAST_CACHE_NBYTES = 16 << 20  # one model's kernels take 0.5 MB, one object up to some hundred kB


def _nbytes(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    parts = re.fullmatch("([0-9]{1,12})([KMGT]?)", text)
    nbytes = int(parts[1]) * _UNITS.get(parts[2], 1) if parts else 0
    if not LEAST_CACHE_NBYTES <= nbytes <= 1 << 60:
        raise SettingError(f"{name}={text}: wanted a size from {LEAST_CACHE_NBYTES >> 20}M up, such as 512M or 2G")
    return nbytes


def _is_another_file(path: str) -> bool:
    """Whether there is something that is no folder; one look, since every kernel that is loaded asks for the settings."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def settings() -> Settings:
    """The settings of this moment, from the environment: CAMSHAFT_CACHE_DIR, CAMSHAFT_BACKEND, CAMSHAFT_THREADS (1 to
    1024), CAMSHAFT_ACTIVATIONS (auto, q8 or f32), CAMSHAFT_CC (the command of a C compiler), CAMSHAFT_TUNE (1: plans measure
    their kernels first), CAMSHAFT_BEAM (how many choices a search over tunables keeps, 1 to 64), CAMSHAFT_CACHE_SIZE (the most
    bytes of compiled kernels, 16M at least)."""
    cache = os.environ.get("CAMSHAFT_CACHE_DIR")
    if cache and _is_another_file(cache):
        raise SettingError(f"CAMSHAFT_CACHE_DIR={cache}: wanted a folder")
    activations = os.environ.get("CAMSHAFT_ACTIVATIONS") or "auto"
    if activations not in ("auto", "q8", "f32"):
        raise SettingError(f"CAMSHAFT_ACTIVATIONS={activations}: wanted auto, q8 or f32")
    return Settings(
        cache_dir=Path(cache) if cache else Path(platformdirs.user_cache_dir("camshaft", appauthor=False)),
        backend=os.environ.get("CAMSHAFT_BACKEND") or None,
        threads=_integer("CAMSHAFT_THREADS", None, 1, 1024),
        activations=activations,
        c_compiler=os.environ.get("CAMSHAFT_CC") or None,
        cache_nbytes=_nbytes("CAMSHAFT_CACHE_SIZE", Settings.cache_nbytes),
        tune=bool(_integer("CAMSHAFT_TUNE", 0, 0, 1)),
        beam=_integer("CAMSHAFT_BEAM", 4, 1, 64) or 4,
    )


def thread_count(requested: int | None = None) -> int:
    """How many workers to use: what was asked for, else CAMSHAFT_THREADS, else the cores this process may use."""
    if requested is not None:
        if not 1 <= requested <= 1024:
            raise SettingError(f"threads={requested}: wanted 1 to 1024")
        return requested
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return settings().threads or cores
