"""train.Step: a training step compiled to one schedule, whose parameters and moments stay where they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from camshaft.errors import PlanError, TrainingError
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.jit import leaves, plain_array, with_leaves
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.train.diagnosis import first_not_finite
from camshaft.train.memory import estimated_nbytes
from camshaft.train.optimizers import Optimizer
from camshaft.train.step_graph import Recipe, inputs_of, loss_graph, micro_batch_graph, step_graph
from camshaft.train.tree import tree_of

Array = np.ndarray[Any, Any]
_GRAPHS = {"loss": loss_graph, "micro-batch": micro_batch_graph, "step": step_graph}


class Step:
    """A training step: `step(*batch, lr=rate)` updates the parameters and returns the batch's loss before the update.

    `loss(parameters, *batch)` computes one float from tensors, with camshaft's ops. `parameters` is an array of f32 or f64, or a
    dict, list, tuple or dataclass of them: the first values, which are copied. Loss, gradients, clipping and update are one
    schedule, compiled once for each set of shapes and dtypes of a batch; calls after that allocate nothing but the batch's own
    arrays. Results have the same bits for any number of threads.

    `clip` limits the norm of all gradients together. `average` is the decay of a moving average of the parameters. With
    `micro_batches` a batch is computed in as many equal parts along axis 0, whose gradients are averaged. `backend`, `threads`
    and `activations` are those of camshaft.compile; with activations 'q8' products with quantized weights that do not learn round
    what they multiply to 8 bits, and gradients pass straight through the rounding.

    Raises TrainingError if the loss or a gradient is not finite, with the step and the tensor; the parameters are then those of
    the step before.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        parameters: Any,
        optimizer: Optimizer,
        *,
        clip: float | None = None,
        average: float | None = None,
        micro_batches: int = 1,
        backend: str | None = None,
        threads: int | None = None,
        activations: str = "f32",
    ) -> None:
        _check(loss, optimizer, clip, average, micro_batches)
        self._recipe = Recipe(loss, tree_of(parameters), optimizer, clip, average, micro_batches)
        self._starts = self._recipe.states()
        self._memory: dict[str, Array | DeviceArray] = {}
        self._plans: dict[Any, ExecutionPlan] = {}
        self._weights = Weights()
        self._backend, self._threads, self._activations = backend, threads, activations
        self.gradient_norm = math.nan

    def __repr__(self) -> str:
        count = sum(a.size for a in self._recipe.tree.arrays.values())
        return f"Step({count} parameters; {self._recipe.optimizer}; {self.number} steps done)"

    @property
    def number(self) -> int:
        """How many steps are done."""
        return int(self._read("number"))

    @property
    def parameters(self) -> Any:
        """The parameters: copies, in the structure of those that were given."""
        return self._tree("parameters")

    @property
    def averages(self) -> Any:
        """The moving averages of the parameters. PlanError without `average`."""
        if self._recipe.average is None:
            raise PlanError("averages: got a step without `average`; wanted its decay, such as average=0.999")
        return self._tree("average")

    def filled(self, arrays: Mapping[str, Array]) -> Any:
        """These arrays by the parameters' names, in the structure of the parameters."""
        return self._recipe.tree.filled(arrays)

    @property
    def states(self) -> dict[str, Array]:
        """Copies of all that a step leaves for the next one, by name: what a checkpoint needs."""
        return {name: self._read(name) for name in self._lasting}

    @states.setter
    def states(self, values: Mapping[str, Array]) -> None:
        for name in self._lasting:
            if name not in values:
                raise PlanError(f"states: got none for {name!r}; wanted all of {len(self._lasting)}")
        if more := sorted(set(values) - set(self._lasting)):
            raise PlanError(f"states: got {', '.join(more[:3])}, which this step does not have")
        for name in self._lasting:
            spec, _ = self._starts[name]
            value, dtype = np.asarray(values[name]), spec.parts[0].dtype.numpy
            if value.shape != spec.shape or value.dtype != dtype:
                raise PlanError(f"states: {name!r} is {value.dtype} {list(value.shape)}; wanted {spec}")
        for name in self._lasting:
            self._starts[name] = self._starts[name][0], np.array(values[name])
            if name in self._memory:
                self._write(name)

    def __call__(self, *batch: Any, lr: float) -> float:
        if isinstance(lr, bool) or not isinstance(lr, (int, float, np.number)) or not 0 <= lr < math.inf:
            raise PlanError(f"step: got lr={lr!r:.60}; wanted a finite number from 0 on")
        parts = self._parts(_plain(batch))
        losses = []
        for i, part in enumerate(parts):
            is_last = i == len(parts) - 1
            plan = self._plan("step" if is_last else "micro-batch", part)
            more: dict[str, Any] = {"is_first": np.bool_(i == 0)}
            if is_last:
                more = {"rate": np.asarray(lr, plan.inputs["rate"].dtype)}
            outputs = plan.run({**_arrays(part), **more}, view=True)
            losses.append(float(outputs["loss"]))
            norm = float(outputs["norm"]) if is_last else 0.0
            if not math.isfinite(losses[-1]) or not math.isfinite(norm):
                self._stop(part, losses[-1], norm)
        self.gradient_norm = norm
        return sum(losses) / len(losses)

    def evaluate(self, *batch: Any) -> float:
        """The loss of a batch; nothing is updated."""
        return float(self.plan_of_loss(*batch).run(_arrays(_plain(batch)), view=True)["loss"])

    def plan(self, *batch: Any) -> ExecutionPlan:
        """The plan of the step for such a batch, or of its last micro-batch; see plan.explain()."""
        return self._plan("step", self._parts(_plain(batch))[-1])

    def plans_of(self, *batch: Any) -> list[ExecutionPlan]:
        """The plans that run for such a batch: of the step, and of the micro-batches before its last one."""
        parts = self._parts(_plain(batch))
        return [
            self._plan("step", parts[-1]),
            *(self._plan("micro-batch", part) for part in parts[:1] if len(parts) > 1),
        ]

    def plan_of_loss(self, *batch: Any) -> ExecutionPlan:
        """The plan that evaluates such a batch."""
        return self._plan("loss", _plain(batch))

    @property
    def plans(self) -> list[ExecutionPlan]:
        """The plans that were compiled so far."""
        return list(self._plans.values())

    def estimated_nbytes(self, *batch: Any) -> int:
        """About how much memory the plans for such a batch hold; nothing is compiled."""
        part = self._parts(_plain(batch))[-1]
        found = estimated_nbytes(step_graph(self._recipe, part))
        if self._recipe.micro_batches > 1:  # its plan has an arena of its own; the rest is shared
            graph = micro_batch_graph(self._recipe, part)
            found += estimated_nbytes(graph, temporaries_alone=True)
        return found

    def close(self) -> None:
        """Releases the plans and their memory. What is read afterwards are the last values."""
        self._starts = {name: (spec, self._read(name)) for name, (spec, _) in self._starts.items()}
        self._memory.clear()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- memory ----------------------------------------------------------------------------------------------------------
    @property
    def _lasting(self) -> list[str]:
        return [name for name in self._starts if not name.startswith("gradient/")]

    def _tree(self, kind: str) -> Any:
        tree = self._recipe.tree
        return tree.filled({name: self._read(f"{kind}/{name}") for name in tree.arrays})

    def _read(self, name: str) -> Array:
        if name not in self._memory:
            spec, start = self._starts[name]
            return np.zeros(spec.shape, spec.parts[0].dtype.numpy) if start is None else start.copy()
        found = self._memory[name]
        return found.read() if isinstance(found, DeviceArray) else found.copy()

    def _write(self, name: str) -> None:
        """Writes what a state starts as to its memory."""
        _, start = self._starts[name]
        there = self._memory[name]
        if isinstance(there, DeviceArray):
            there.write(np.zeros(there.shape, there.spec.parts[0].dtype.numpy) if start is None else start)
        else:
            there[...] = 0 if start is None else start

    # --- plans -----------------------------------------------------------------------------------------------------------
    def _parts(self, batch: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The micro-batches. PlanError for an axis 0 that does not divide into them."""
        count = self._recipe.micro_batches
        if count == 1:
            return [tuple(batch)]
        arrays = _arrays(batch)
        for name, a in arrays.items():
            if a.ndim < 1 or len(a) % count or not len(a):
                raise PlanError(
                    f"step: {name} is {list(a.shape)}; wanted {count} micro-batches of equal size along axis 0"
                )
        found, _ = leaves(tuple(batch))
        names = list(inputs_of(batch))
        parts = []
        for i in range(count):
            cut = [
                arrays[n][i * (len(arrays[n]) // count) : (i + 1) * (len(arrays[n]) // count)] if n in arrays else value
                for n, value in zip(names, found, strict=True)
            ]
            parts.append(with_leaves(tuple(batch), iter(cut)))
        return parts

    def _plan(self, kind: str, batch: Sequence[Any]) -> ExecutionPlan:
        given = inputs_of(batch)
        key = kind, tuple((n, v.shape, v.dtype) if isinstance(v, np.ndarray) else (n, v) for n, v in given.items())
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._compiled(_GRAPHS[kind](self._recipe, batch))
        return found

    def _compiled(self, graph: Graph) -> ExecutionPlan:
        """The plan of a graph, whose states are those of the plans before."""
        memory = {name: there for name, there in self._memory.items() if name in graph.states}
        options: dict[str, Any] = {"backend": self._backend, "threads": self._threads, "activations": self._activations}
        plan = compile(graph, **options, memory=memory, weights=self._weights)
        for name, there in plan.states.items():
            if name not in self._memory:
                self._memory[name] = there
                self._write(name)
        return plan

    def _stop(self, batch: Sequence[Any], loss: float, norm: float) -> None:
        """Raises TrainingError with the first tensor that is not finite."""
        what = (
            f"the loss is {loss}"
            if not math.isfinite(loss)
            else f"the loss is {loss:g}, the norm of the gradients {norm}"
        )
        found = first_not_finite(self._recipe, batch, self._compiled)
        raise TrainingError(
            f"step {self.number + 1}: {what}; {found}; wanted finite numbers. The parameters are those after step {self.number}"
        )


def _plain(batch: Sequence[Any]) -> tuple[Any, ...]:
    """A batch whose arrays, of any library, are NumPy's."""
    found, _ = leaves(tuple(batch))
    made: tuple[Any, ...] = with_leaves(tuple(batch), map(plain_array, found))
    return made


def _arrays(batch: Sequence[Any]) -> dict[str, Array]:
    return {name: value for name, value in inputs_of(batch).items() if isinstance(value, np.ndarray)}


def _check(loss: object, optimizer: object, clip: object, average: object, micro_batches: object) -> None:
    if not callable(loss):
        raise PlanError(f"Step: got the loss {loss!r:.80}; wanted a function of parameters and a batch")
    if not callable(getattr(optimizer, "update", None)) or not callable(getattr(optimizer, "states", None)):
        raise PlanError(f"Step: got the optimizer {optimizer!r:.80}; wanted one such as train.AdamW()")
    for name, value, most in (("clip", clip, math.inf), ("average", average, 1.0)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < most):  # type: ignore[operator]  # a number
            wanted = "a number above 0" if name == "clip" else "a decay between 0 and 1"
            raise PlanError(f"Step: got {name}={value!r:.60}; wanted {wanted}, or None")
    if type(micro_batches) is not int or micro_batches < 1:
        raise PlanError(f"Step: got micro_batches={micro_batches!r:.60}; wanted 1 or more")
