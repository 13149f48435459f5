"""Cache a model's compiled plans in the store: load them on demand, save new ones when the model is closed.

A plan's key covers everything that compilation depends on: camshaft's files, Python, NumPy and LLVM versions, the CPU, the
model's metadata and tensor table, settings, and all stored validation results and measurements.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cpu.compile import host_target
from camshaft.errors import PlanError, StoreError
from camshaft.formats.gguf.file import GGUFFile
from camshaft.formats.tensor import FileTensor
from camshaft.models.file_tensors import converted_digest
from camshaft.plan.cached.cached_plan import CachedPlan, bind_cached
from camshaft.plan.cached.stored_plan import FORMAT, from_bytes, to_bytes
from camshaft.plan.memory.weights import Weights
from camshaft.settings import setting, settings
from camshaft.store.files import digest_of
from camshaft.store.store import store

if TYPE_CHECKING:
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
# Settings that do not affect a plan, or that the caller passes as facts.
_IRRELEVANT_SETTINGS = ("cache_dir", "cache_nbytes", "threads", "c_compiler", "beam", "measure")
_MAX_VALUE_NBYTES = 256  # of a value of the tokenizer; plans depend only on the vocabulary's size
_IRRELEVANT_KEYS = ("tokenizer.chat_template",)


class PlanCache:
    """The cached plans of one model by name. `facts` describes what its graphs depend on besides the file, `tensors` are the
    sources of their constants."""

    def __init__(
        self, file: GGUFFile, facts: str, weights: Weights, tensors: Mapping[str, FileTensor], *, use: bool
    ) -> None:
        self._weights, self._tensors = weights, tensors
        self._use = use and _is_cacheable()
        self._settings = _settings()
        self._facts = digest_of(facts, program_digest(), _model(file), self._settings) if self._use else ""
        self._before = store_state() if self._use else ("", "")
        self._data: dict[str, bytes] = {}  # serialized plans, loaded or new
        self._new: set[str] = set()
        self.refused: dict[str, str] = {}  # plan name -> the reason why it cannot be cached

    def get(self, name: str, memory: Callable[[], Mapping[str, Any]]) -> CachedPlan | None:
        """Load the named plan and bind it to `memory`; None if there is no valid entry."""
        data = (
            store().schedules.get(self._key(name, self._before), f"the cached plan {name!r}")
            if self._is_valid()
            else None
        )
        if data is None:
            return None
        try:
            plan = bind_cached(from_bytes(data), memory(), self._weights, self._tensors)
        except PlanError as error:
            warnings.warn(f"the cached plan {name!r} is rebuilt: {error}", stacklevel=2)
            return None
        if plan is not None:
            self._data[name] = data
        return plan

    def add(self, name: str, plan: ExecutionPlan, memory: Mapping[str, Any]) -> None:
        """Remember a compiled plan until `flush`."""
        if not self._is_valid():
            return
        from camshaft.plan.cached.serialize import serialize_plan  # not needed if all plans are cached

        serialized = serialize_plan(plan, memory, self._weights)
        if isinstance(serialized, str):
            self.refused[name] = serialized
            return
        self._data[name] = to_bytes(serialized)
        self._new.add(name)

    def flush(self) -> None:
        """Save the new plans under the present validation results. Warns if the store fails.

        Saves nothing if measurements were added meanwhile (another kernel may win now) or proofs were removed."""
        if not self._new:
            return
        try:
            self._save(store_state())
        except StoreError as error:
            warnings.warn(f"plans were not cached: {error}", stacklevel=2)
        self._new.clear()

    def _save(self, now: tuple[str, str]) -> None:
        from camshaft.validation.evidence import validation_cache  # imported already by the compilation

        if now[1] != self._before[1] or not validation_cache().is_stored():
            return
        for name in self._data if now != self._before else self._new:
            store().schedules.put(self._key(name, now), self._data[name])
        self._before = now

    def _is_valid(self) -> bool:
        """Whether plans may be cached and the settings still match the key."""
        return self._use and _is_cacheable() and _settings() == self._settings

    def saved(self) -> SavedPlans:
        """The plans that are saved, for `carry_over`."""
        return SavedPlans(tuple(name for name in self._data if name not in self._new), self._facts, self._before)

    def measure_later(self, compiled: Mapping[str, ExecutionPlan], backend: str | None, threads: int) -> None:
        """Let a background process measure the kernels of the plans compiled here, for the next ones."""
        if not setting("measure"):
            return
        from camshaft.tune import jobs

        if (compiled or jobs.waiting()) and jobs.is_on():
            plans = {name: jobs.used_in(plan.graph, plan.choices, backend) for name, plan in compiled.items()}
            jobs.measure_later(plans, threads, self.saved())

    def _key(self, name: str, state: tuple[str, str]) -> str:
        return _plan_key(name, self._facts, state)


@dataclass(frozen=True)
class SavedPlans:
    """Cached plans of one model: names, the facts and the state of their keys."""

    names: tuple[str, ...]
    facts: str
    state: tuple[str, str]


def carry_over(plans: SavedPlans, affected: Collection[str]) -> SavedPlans:
    """Save the plans under the present state of the store too, except those whose choices new measurements affect; return them.

    Without it the next start would compile plans that come out the same. Raises StoreError if they cannot be written."""
    now = store_state()
    names = tuple(name for name in plans.names if name not in affected)
    for name in names:
        data = store().schedules.get(_plan_key(name, plans.facts, plans.state), f"the cached plan {name!r}")
        if data is not None:
            store().schedules.put(_plan_key(name, plans.facts, now), data)
    return SavedPlans(names, plans.facts, now)


def _plan_key(name: str, facts: str, state: tuple[str, str]) -> str:
    return digest_of(name, facts, state)


def _is_cacheable() -> bool:
    """False while plans are instrumented or tuned, with kernels registered by the user, or with a backend override."""
    current, ops, override = settings(), sys.modules.get("camshaft.ops"), sys.modules.get("camshaft.selection.override")
    if override is not None and override.get_backend_override() is not None:
        return False
    return not (current.instrumented or current.tune or (ops is not None and ops.has_registered()))


def store_state() -> tuple[str, str]:
    """Digests of all stored validation results and measurements."""
    current = store()
    return current.evidence.objects.digest(), current.measurements.objects.digest()


def _settings() -> str:
    values = sorted(vars(settings()).items())
    return digest_of((name, repr(value)) for name, value in values if name not in _IRRELEVANT_SETTINGS)


def _model(file: GGUFFile) -> str:
    """Digest of the metadata without long arrays, the tensor table, and the bytes of tensors that plans have in another form."""
    values = [
        (key, file.metadata.type_id(key), _value(file, key)) for key in file.metadata if key not in _IRRELEVANT_KEYS
    ]
    tensors = [
        (t.name, t.shape, t.format.name, t.nbytes, file.part_of(t), t.offset, t.is_mapped)
        for t in file.tensors.values()
    ]
    return digest_of(values, tensors, converted_digest(file.tensors))


def _value(file: GGUFFile, key: str) -> bytes:
    """The bytes of a metadata value that plans may depend on: of the tokenizer's only the first ones, which give its size."""
    return file.metadata.raw(key, _MAX_VALUE_NBYTES if key.startswith("tokenizer.") else None)


@functools.cache
def program_digest() -> str:
    """Digest of camshaft's source files (size and time), and of the versions of Python, NumPy and LLVM."""
    root = Path(__file__).parent.parent
    rows = sorted(_sources(str(root)))
    return digest_of(FORMAT, sys.version, np.__version__, repr(host_target()), rows)


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
