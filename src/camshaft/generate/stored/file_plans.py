"""FilePlans: the plans over one model file, from the plan cache or compiled; FileModel: a model that is made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from camshaft.dtypes import DType, f16, f32
from camshaft.errors import ModelError
from camshaft.formats.gguf.file import GGUFFile
from camshaft.formats.mapped import shown_value
from camshaft.generate import options as model_options
from camshaft.generate.generation import Closing
from camshaft.generate.memory.packed_folder import weight_cache
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.files.pull import resolve_model
from camshaft.ops.spec import TensorSpec
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.weights import Weights
from camshaft.process import ForkLock, thread_count

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]


class FilePlans(ABC):
    """Plans by name, compiled when first used. They share the weights, and the memory of `specs`: states, and what plans read and
    give. The caller holds a lock.

    `facts` is what the graphs depend on beside the file; `activations` is 'q8' or 'f32'."""

    def __init__(
        self, file: GGUFFile, facts: str, specs: Mapping[str, TensorSpec], *, activations: str, threads: int
    ) -> None:
        self.file, self.specs, self.threads = file, specs, threads
        self._weights, self._activations = Weights(cache=weight_cache(file)), activations
        facts = f"{facts}|{activations}|{threads}"
        self.cache = PlanCache(file, facts, self._weights, file.tensors, use=True)
        self._plans: dict[str, ExecutionPlan | CachedPlan] = {}
        self._compiled: dict[str, ExecutionPlan] = {}

    @abstractmethod
    def graph(self, name: str) -> Graph:
        """The graph of a plan."""

    @abstractmethod
    def uses(self, name: str) -> Iterable[str]:
        """The names of the arrays that a plan uses."""

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The memory of all specs."""
        return {
            name: aligned_bytes(spec.nbytes, 64).view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
            for name, spec in self.specs.items()
        }

    def plan(self, name: str) -> ExecutionPlan | CachedPlan:
        """A cached plan, or one that is compiled now, and kept for the next start."""
        if name not in self._plans:
            cached = self.cache.get(name, lambda: self._memory(name))
            self._plans[name] = self._compile(name) if cached is None else cached
        return self._plans[name]

    def _memory(self, name: str) -> dict[str, Array]:
        return {each: self.arrays[each] for each in self.uses(name)}

    def _compile(self, name: str) -> ExecutionPlan:
        from camshaft.plan.compile import compile  # not needed if all plans are cached

        graph = self.graph(name)
        memory = self._memory(name)  # after the graph: a file whose tensors contradict its metadata has failed by now
        plan = compile(graph, threads=self.threads, activations=self._activations, weights=self._weights, memory=memory)
        self._compiled[name] = plan
        self.cache.add(name, plan, memory)
        self.cache.flush()
        return plan

    def run(self, plan: ExecutionPlan | CachedPlan) -> None:
        """Run one of the plans, whose inputs are set."""
        self._weights.finish()
        plan.bound.run()

    def close(self) -> None:
        """Release the plans and their memory; have the kernels of those that were compiled here measured, for the next ones."""
        self.cache.flush()
        self.cache.measure_later(self._compiled, None, self.threads)
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        self._compiled.clear()
        self._weights.clear()
        self.__dict__.pop("arrays", None)


class FileModel(Closing):
    """A model of an architecture that no language model has, from one file. A context manager.

    path_or_name: a .gguf file of that architecture, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    activations: 'q8' quantizes the inputs of quantized matmuls to 8 bits, and 'auto', or rounds them to bf16 on a CPU with AMX;
        'f32' does not, and keeps keys in f32.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    # The file's general.architecture, with what it is in messages.
    architecture: ClassVar[str]
    kind: ClassVar[str]

    def __init__(self, path_or_name: str | Path, *, threads: int | None = None, activations: str = "auto") -> None:
        self.name, self.threads = model_options.name_of(path_or_name), thread_count(threads)
        name = model_options.activations_of(activations)
        model_file = open_model_file(resolve_model(self.name))
        self._file, self._lock, self._closed = model_file.file, ForkLock(), False
        try:
            came = self._file.metadata.get("general.architecture")
            if came != self.architecture:
                wanted = f"{self.architecture}, {self.kind}"
                raise ModelError(f"{self.name}: the architecture is {shown_value(came)}; wanted {wanted}")
            self.tokenizer = model_file.tokenizer()
            mode = model_options.compiled_activations(name, self._file.tensors.values())
            self._plans = self._planned(mode, f32 if mode == "f32" else f16)
            model_file.save(self.tokenizer)
        except BaseException:
            self._file.close()
            raise

    @abstractmethod
    def _planned(self, activations: str, form: DType) -> FilePlans:
        """Read the sizes; the plans, with keys and values in `form`."""

    def _check_open(self) -> None:
        if self._closed:
            raise ModelError(f"the model {self.name} is closed")

    def close(self) -> None:
        """Release the plans and the file; may be called twice."""
        with self._lock:
            if not self._closed:
                self._plans.close()
            self._closed = True
            self._file.close()
