"""The plans of a model in the store: read when they are wanted, kept when the model is closed.

A plan's key stands for all that grinding it would look at: camshaft's own files, Python, NumPy and LLVM, the CPU, the model's
metadata and table of tensors, settings, and every proof and measurement that is kept. Whatever differs, the plan is made anew.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cpu.compile import host_target
from camshaft.errors import PlanError, StoreError
from camshaft.formats.gguf.file import GGUFFile
from camshaft.plan.cached.cached_plan import FORMAT, CachedPlan, from_bytes, revive, to_bytes
from camshaft.plan.memory.weights import Weights
from camshaft.settings import settings
from camshaft.store.store import store

if TYPE_CHECKING:
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
# Settings that say where and how much is kept, and others that a plan's caller passes on.
_NO_MATTER = ("cache_dir", "cache_nbytes", "threads", "c_compiler", "beam")
_MOST_NBYTES = 256  # of a value: of the vocabulary only its size matters
_NO_PART = ("tokenizer.chat_template",)


class PlanCache:
    """The kept plans of one model by name. `facts` are the caller's: what its graphs depend on besides the file."""

    def __init__(self, file: GGUFFile, facts: str, weights: Weights, *, use: bool) -> None:
        self._file, self._weights = file, weights
        self._use = use and _may_be_kept()
        self._asked = _settings()
        self._facts = "|".join((facts, program_digest(), _model(file), self._asked)) if self._use else ""
        self._before = _state() if self._use else ("", "")
        self._data: dict[str, bytes] = {}  # of plans that were read or made
        self._made: set[str] = set()
        self.refused: dict[str, str] = {}  # why a plan that was made cannot be kept

    def get(self, name: str, memory: Callable[[], Mapping[str, Any]]) -> CachedPlan | None:
        """The plan of that name bound to this memory, or None: there is none that holds now."""
        data = (
            store().schedules.get(self._key(name, self._before), f"the kept plan {name!r}") if self._holds() else None
        )
        if data is None:
            return None
        try:
            plan = revive(from_bytes(data), memory(), self._weights, self._file.tensors)
        except PlanError as error:
            warnings.warn(f"the kept plan {name!r} is made anew: {error}", stacklevel=2)
            return None
        if plan is not None:
            self._data[name] = data
        return plan

    def add(self, name: str, plan: ExecutionPlan, memory: Mapping[str, Any]) -> None:
        """Remembers a plan that was made, for `flush`."""
        if not self._holds():
            return
        from camshaft.plan.cached.serialize import kept_of  # here: a start that finds its plans makes none

        made = kept_of(plan, memory, self._weights)
        if isinstance(made, str):
            self.refused[name] = made
            return
        self._data[name] = to_bytes(made)
        self._made.add(name)

    def flush(self) -> None:
        """Keeps what was made, under what is proved now. Nothing where somebody measured meanwhile, since other kernels may win
        then, or removed proofs, which the plans would outlive. A store that cannot be used keeps nothing, and later starts make
        their plans again."""
        if not self._made:
            return
        try:
            self._keep(_state())
        except StoreError as error:
            warnings.warn(f"plans are not kept: {error}", stacklevel=2)
        self._made.clear()

    def _keep(self, now: tuple[str, str]) -> None:
        from camshaft.validation.evidence import validation_cache  # here: what was made has imported it

        if now[1] != self._before[1] or not validation_cache().is_kept():
            return
        for name in self._data if now != self._before else self._made:
            store().schedules.put(self._key(name, now), self._data[name])
        self._before = now

    def _holds(self) -> bool:
        """Whether plans may be kept, and what is asked for is still what the key says."""
        return self._use and _may_be_kept() and _settings() == self._asked

    def _key(self, name: str, state: tuple[str, str]) -> str:
        return hashlib.sha256("|".join((name, self._facts, *state)).encode()).hexdigest()


def _may_be_kept() -> bool:
    """Not where plans are watched or tuned while they are made, or where somebody has registered kernels of their own or asked
    for a backend."""
    asked, ops, override = settings(), sys.modules.get("camshaft.ops"), sys.modules.get("camshaft.selection.override")
    if override is not None and override.get_backend_override() is not None:
        return False
    return not (asked.watched or asked.tune or (ops is not None and ops.has_registered()))


def _state() -> tuple[str, str]:
    """What stands for every proof that is kept, and for every measurement."""
    kept = store()
    return kept.evidence.objects.digest(), kept.measurements.objects.digest()


def _settings() -> str:
    asked = settings()
    return ",".join(f"{name}={value}" for name, value in sorted(vars(asked).items()) if name not in _NO_MATTER)


def _model(file: GGUFFile) -> str:
    """The metadata but for long arrays (the vocabulary) and the table of tensors. Of rotations' factors the bytes too."""
    digest = hashlib.sha256()
    for key in file.metadata:
        if key not in _NO_PART:
            digest.update(f"{key}|{file.metadata.type_id(key)}|".encode() + file.metadata.raw(key, _MOST_NBYTES))
    for name, tensor in file.tensors.items():
        digest.update(f"{name}|{tensor.shape}|{tensor.format.name}|{tensor.nbytes}|{tensor.is_mapped}\n".encode())
    if "rope_freqs.weight" in file.tensors:
        digest.update(file.tensors["rope_freqs.weight"].data().tobytes())
    return digest.hexdigest()


@functools.cache
def program_digest() -> str:
    """Camshaft's files by size and time, and what else makes code."""
    root = Path(__file__).parent.parent
    rows = sorted(_sources(str(root)))
    return hashlib.sha256(f"{FORMAT}|{sys.version}|{np.__version__}|{host_target()!r}|{rows}".encode()).hexdigest()


def _sources(folder: str) -> list[tuple[str, int, int]]:
    rows = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                rows.append((entry.path, status.st_size, status.st_mtime_ns))
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                rows += _sources(entry.path)
    return rows
