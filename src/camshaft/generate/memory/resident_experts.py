"""Weights that stay in files: which are mapped, and which experts keep their memory.

With a budget, the router's choices are counted after each run; where more experts were read than it has room for, those that were
chosen least give their pages back. The counts are kept beside the packed weights, and the next start reads the most used first.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import ModelError, SettingError
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.memory.packed_folder import packed_folder
from camshaft.models.config import ModelConfig
from camshaft.plan.memory.mapped_weights import MappedWeights
from camshaft.store.files import atomic_file, read_regular

if TYPE_CHECKING:
    from camshaft.plan.cached.cached_plan import CachedPlan
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
GB = 1e9
# Weights that take more than this part of the machine's memory are mapped without being asked to.
LARGE = 0.9
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_\w+_exps\.weight")
_COUNTS = "counts.npy"


@dataclass(frozen=True)
class ExpertUse:
    """Counts of a model's experts: pairs of token and expert in all layers, experts that a run read from the file and those
    that were in memory, experts dropped, and bytes: in memory now, at most, and of all experts."""

    chosen: int
    read: int
    found: int
    dropped: int
    resident_nbytes: int
    most_nbytes: int
    all_nbytes: int


class ResidentExperts:
    """The experts of mapped weights, of which those chosen most have up to `most_nbytes` of memory between runs."""

    def __init__(
        self, mapped: MappedWeights, layers: list[int], n_experts: int, most_nbytes: int, sizes: Array
    ) -> None:
        self.layers, self._mapped, self._n = layers, mapped, n_experts
        self._most, self._sizes = most_nbytes, sizes  # bytes of an expert of each layer
        self._counts = np.zeros((len(layers), n_experts), np.int64)
        self._resident = np.zeros((len(layers), n_experts), bool)
        self._read = self._found = self._dropped = 0

    def restore(self, path: Path) -> None:
        """Takes the counts of earlier runs and reads the most used experts, as far as there is room."""
        try:
            counts = np.load(io.BytesIO(read_regular(path)), allow_pickle=False)
        except (OSError, ValueError, EOFError):  # the first run, or a file that is damaged
            return
        if counts.shape == self._counts.shape and counts.dtype == np.int64:
            self._counts = counts
            for layer, expert in self._most_used(counts > 0):
                self._resident[layer, expert] = True
                self._each(layer, expert, "prefetch")

    def save(self, path: Path) -> None:
        """Keeps the counts for the next start."""
        data = io.BytesIO()
        np.save(data, self._counts)
        with atomic_file(path) as file:
            file.write(data.getvalue())

    def begin(self, outputs: Mapping[str, Array]) -> None:
        """Says before a run that no expert was chosen."""
        for layer in self.layers:
            outputs[name_of(layer)].fill(-1)

    def end(self, outputs: Mapping[str, Array]) -> None:
        """Counts the experts that a run chose, and drops the least used beyond the budget."""
        for row, layer in enumerate(self.layers):
            chosen = outputs[name_of(layer)].reshape(-1)
            counts = np.bincount(chosen[(chosen >= 0) & (chosen < self._n)], minlength=self._n)
            used = counts > 0
            found = int((used & self._resident[row]).sum())
            self._found += found
            self._read += int(used.sum()) - found
            self._counts[row] += counts
            self._resident[row] |= used
        if self.resident_nbytes > self._most:
            self._drop()

    def _most_used(self, among: Array) -> list[tuple[int, int]]:
        """The experts (layer, expert) that fit the budget, those chosen most first."""
        places = np.argwhere(among)
        order = np.argsort(-self._counts[among], kind="stable")
        places = places[order]
        fits = np.cumsum(self._sizes[places[:, 0]]) <= self._most
        return [(int(layer), int(expert)) for layer, expert in places[fits]]

    def _drop(self) -> None:
        kept = np.zeros_like(self._resident)
        for layer, expert in self._most_used(self._resident):
            kept[layer, expert] = True
        for layer, expert in np.argwhere(self._resident & ~kept):
            self._each(int(layer), int(expert), "drop")
            self._dropped += 1
        self._resident = kept

    def _each(self, layer: int, expert: int, what: str) -> None:
        start = f"blk.{self.layers[layer]}.ffn_"
        for name, weight in self._mapped.weights.items():
            if name.startswith(start):
                for first, last in weight.ranges(expert, self._n):
                    getattr(weight, what)(first, last)

    @property
    def resident_nbytes(self) -> int:
        """The bytes of the experts that were read and not dropped."""
        return int((self._resident.sum(1) * self._sizes).sum())

    @property
    def use(self) -> ExpertUse:
        """The counts until now."""
        whole = int(self._sizes.sum()) * self._n
        counted = self._read, self._found, self._dropped
        return ExpertUse(int(self._counts.sum()), *counted, self.resident_nbytes, self._most, whole)


def name_of(layer: int) -> str:
    """The name of the plans' output with the experts that a layer chose, i32 [tokens, slots]."""
    return f"experts.{layer}"


class Residency:
    """Mapped weights of an open model, and the experts that have a budget, if any. `what` is mapped: experts or all weights."""

    def __init__(self, mapped: MappedWeights, folder: Path, experts: ResidentExperts | None, what: str) -> None:
        self.mapped, self.experts, self.what, self._path = mapped, experts, what, folder / _COUNTS
        self._is_new = True

    def run(self, plan: ExecutionPlan | CachedPlan) -> None:
        """Runs a plan whose weights are loaded, and counts the experts that it chose. The first begins with those that earlier
        processes chose most."""
        if self.experts is None:
            plan.bound.run()
            return
        if self._is_new:
            self.experts.restore(self._path)
        self._is_new = False
        self.experts.begin(plan.outputs)
        plan.bound.run()
        self.experts.end(plan.outputs)

    def close(self) -> None:
        """Keeps the counts."""
        if self.experts is not None and not self._is_new:
            self.experts.save(self._path)


def open_residency(
    file: GGUFFile, config: ModelConfig, wanted_gb: float | None, *, on_device: bool
) -> Residency | None:
    """Chooses which weights stay on disk: the experts, with a budget of `wanted_gb`; without one none, but of a model larger than
    the machine's memory the experts with what memory they may have, or all weights. Raises SettingError for an impossible
    budget."""
    memory, most = physical_nbytes(), None if wanted_gb is None else _checked(wanted_gb)
    if most is None and (on_device or file.nbytes <= LARGE * memory):
        return None
    if on_device:
        raise SettingError("experts_resident is for the CPU; the model runs on a device with memory of its own")
    layers, sizes = _experts_of(file, config)
    if most is None:
        rest = file.nbytes - sum(sizes) * (config.experts.n if config.experts else 0)
        most = int(LARGE * memory - rest)
    elif not layers:
        raise SettingError(f"experts_resident={wanted_gb:g}: {config.architecture} of this file has no experts")
    elif most > memory:
        raise SettingError(f"experts_resident={wanted_gb:g} GB; this machine has {memory / GB:.1f} GB of memory")
    return _opened(file, config, layers, sizes, most, asked=wanted_gb is not None)


def _opened(
    file: GGUFFile, config: ModelConfig, layers: list[int], sizes: list[int], most: int, *, asked: bool
) -> Residency:
    least = sum(sizes) * config.experts.n_used if config.experts else 0
    if asked and most < least:
        needed = f"one token chooses {least / GB:.3g} GB of them"
        raise SettingError(f"experts_resident={most / GB:g} GB is too little for this model's experts: {needed}")
    of_experts = bool(layers) and most >= least
    takes: Callable[[str], bool] = (lambda name: bool(_EXPERTS.fullmatch(name))) if of_experts else (lambda name: True)
    folder, identity = packed_folder(file)
    mapped = MappedWeights(folder, identity, takes)
    experts = None
    if of_experts:
        assert config.experts is not None
        experts = ResidentExperts(mapped, layers, config.experts.n, most, np.array(sizes, np.int64))
    return Residency(mapped, folder, experts, "experts" if of_experts else "weights")


def _checked(gb: float) -> int:
    if isinstance(gb, bool) or not isinstance(gb, (int, float)) or not math.isfinite(gb) or gb <= 0:
        raise SettingError(f"experts_resident={gb!r:.40}; wanted gigabytes above 0")
    return int(gb * GB)


def _experts_of(file: GGUFFile, config: ModelConfig) -> tuple[list[int], list[int]]:
    """The layers with experts, and the bytes that one expert of each has in the file."""
    sizes: dict[int, int] = {}
    for name, tensor in file.tensors.items():
        found = _EXPERTS.fullmatch(name)
        if found and config.experts is not None and int(found[1]) < config.n_layers:
            sizes[int(found[1])] = sizes.get(int(found[1]), 0) + tensor.nbytes // config.experts.n
    return sorted(sizes), [sizes[layer] for layer in sorted(sizes)]


def physical_nbytes() -> int:
    """The machine's memory; 2^63 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 63


def require_layers(experts: ResidentExperts, n_routers: int) -> None:
    """Raises ModelError unless every layer with experts has a router."""
    if n_routers != len(experts.layers):
        raise ModelError(f"{len(experts.layers)} layers have experts and {n_routers} choose among them; wanted as many")
