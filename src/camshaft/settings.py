"""Every knob, typed and read from the environment when a plan is built, never while it runs."""

from __future__ import annotations

import os
import re
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


def _integer(name: str, default: int | None, low: int, high: int) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise SettingError(f"{name}={text}: wanted a whole number from {low} to {high}")
    return int(text)


def settings() -> Settings:
    """The settings of this moment, from the environment: CAMSHAFT_CACHE_DIR, CAMSHAFT_BACKEND, CAMSHAFT_THREADS (1 to
    1024), CAMSHAFT_ACTIVATIONS (auto, q8 or f32), CAMSHAFT_CC (the command of a C compiler)."""
    cache = os.environ.get("CAMSHAFT_CACHE_DIR")
    if cache and Path(cache).exists() and not Path(cache).is_dir():
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
