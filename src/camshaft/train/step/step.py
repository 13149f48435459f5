"""train.Step: a training step compiled to one schedule, whose parameters and moments stay where they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from camshaft.errors import PlanError, TrainingError
from camshaft.graph.graph import Graph
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.memory.allocate import give_back_free_memory
from camshaft.plan.memory.weights import Weights
from camshaft.train.memory import estimated_nbytes
from camshaft.train.optimizers import Optimizer
from camshaft.train.step.diagnosis import first_not_finite
from camshaft.train.step.graphs import (
    Recipe,
    checked_compute,
    checked_seed,
    draw_of,
    loss_graph,
    micro_batch_graph,
    step_graph,
)
from camshaft.train.step.scaling import SCALE, SKIPPED, LossScaling
from camshaft.train.step.states import States
from camshaft.train.step.tree import arrays_of, inputs_of, micro_batches_of, plain, tree_of

Array = np.ndarray[Any, Any]
_GRAPHS = {"loss": loss_graph, "micro-batch": micro_batch_graph, "step": step_graph}


class Step:
    """A training step: `step(*batch, lr=rate)` updates the parameters and returns the batch's loss before the update.

    `loss(parameters, *batch)` computes one float from tensors, with camshaft's ops. `parameters` is an array of f32 or f64, or a
    dict, list, tuple or dataclass of them: the first values, which are copied. Loss, gradients, clipping and update are one
    schedule, compiled once for each set of shapes and dtypes of a batch; calls after that allocate nothing but the batch's own
    arrays. Results have the same bits for any number of threads.

    `clip` limits the norm of all gradients together. `average` is the decay of a moving average of the parameters. With
    `micro_batches` a batch is computed in as many equal parts along axis 0, whose gradients are averaged. With a `seed`, steps
    give the loss a keyword argument `seed` too, u32 [3], for camshaft.dropout: another one for each micro-batch of each step;
    `evaluate` does not. `backend`, `threads` and `activations` are those of camshaft.compile; with activations "q8" products with
    quantized weights round what they multiply to 8 bits, and gradients pass straight through the rounding.

    With `compute` "bf16" or "f16" what gradients need of the forward pass is kept in 16 bits, and so are gradients on the way;
    parameters, their gradients and moments stay f32. With f16 the loss is scaled as `scaling` says, and a step whose gradients
    overflow is skipped: it counts as done, and `skipped` says how many were.

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
        seed: int | None = None,
        compute: str = "f32",
        scaling: LossScaling | None = None,
        backend: str | None = None,
        threads: int | None = None,
        activations: str = "f32",
    ) -> None:
        _check(loss, optimizer, clip, average, micro_batches)
        tree = tree_of(parameters)
        numbers = checked_seed(seed), compute, checked_compute(compute, scaling, tree)
        recipe = Recipe(loss, tree, optimizer, clip, average, micro_batches, *numbers)
        self._recipe = replace(recipe, tree=tree.emptied())
        self._states = States(recipe.states(), self._recipe.tree)
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
        return int(self._states.read("number"))

    @property
    def parameters(self) -> Any:
        """The parameters: copies, in the structure of those that were given."""
        return self._states.tree("parameters")

    @property
    def averages(self) -> Any:
        """The moving averages of the parameters. PlanError without `average`."""
        if self._recipe.average is None:
            raise PlanError("averages: got a step without `average`; wanted its decay, such as average=0.999")
        return self._states.tree("average")

    @property
    def skipped(self) -> int:
        """How many of the steps were skipped, as their gradients overflowed f16."""
        return 0 if self._recipe.scaling is None else int(self._states.read(SKIPPED))

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step is multiplied by: 1 but with f16."""
        return 1.0 if self._recipe.scaling is None else float(self._states.read(SCALE))

    def filled(self, arrays: Mapping[str, Array]) -> Any:
        """These arrays by the parameters' names, in the structure of the parameters."""
        return self._recipe.tree.filled(arrays)

    @property
    def states(self) -> dict[str, Array]:
        """Copies of all that a step leaves for the next one, by name: what a checkpoint needs."""
        return self._states.copies()

    @states.setter
    def states(self, values: Mapping[str, Array]) -> None:
        self._states.set(values)

    def __call__(self, *batch: Any, lr: float) -> float:
        if isinstance(lr, bool) or not isinstance(lr, (int, float, np.number)) or not 0 <= lr < math.inf:
            raise PlanError(f"step: got lr={lr!r:.60}; wanted a finite number from 0 on")
        parts = self._parts(batch)
        first = 0 if self._recipe.seed is None else self.number * len(parts)
        losses = []
        for i, part in enumerate(parts):
            is_last = i == len(parts) - 1
            plan = self._plan("step" if is_last else "micro-batch", part)
            more: dict[str, Any] = {"is_first": np.bool_(i == 0)}
            if is_last:
                more = {"rate": np.asarray(lr, plan.inputs["rate"].dtype)}
            outputs = plan.run({**arrays_of(part), **more, **draw_of(self._recipe, first + i)}, view=True)
            losses.append(float(outputs["loss"]))
            norm = float(outputs["norm"]) if is_last else 0.0
            skips = bool(outputs["skips"]) if is_last and self._recipe.scaling is not None else False
            if not skips and (not math.isfinite(losses[-1]) or not math.isfinite(norm)):
                self._stop(part, losses[-1], norm, first + i)
        self.gradient_norm = norm
        return sum(losses) / len(losses)

    def evaluate(self, *batch: Any) -> float:
        """The loss of a batch; nothing is updated."""
        return float(self.plan_of_loss(*batch).run(arrays_of(plain(batch)), view=True)["loss"])

    def plan(self, *batch: Any) -> ExecutionPlan:
        """The plan of the step for such a batch, or of its last micro-batch; see plan.explain()."""
        return self._plan("step", self._parts(batch)[-1])

    def plans_of(self, *batch: Any) -> list[ExecutionPlan]:
        """The plans that run for such a batch: of the step, and of the micro-batches before its last one."""
        parts = self._parts(batch)
        return [
            self._plan("step", parts[-1]),
            *(self._plan("micro-batch", part) for part in parts[:1] if len(parts) > 1),
        ]

    def plan_of_loss(self, *batch: Any) -> ExecutionPlan:
        """The plan that evaluates such a batch."""
        return self._plan("loss", plain(batch))

    @property
    def plans(self) -> list[ExecutionPlan]:
        """The plans that were compiled so far."""
        return list(self._plans.values())

    def estimated_nbytes(self, *batch: Any) -> int:
        """About how much memory the plans for such a batch hold; nothing is compiled."""
        part = self._parts(batch)[-1]
        found = estimated_nbytes(step_graph(self._recipe, part))
        if self._recipe.micro_batches > 1:  # its plan has an arena of its own; the rest is shared
            graph = micro_batch_graph(self._recipe, part)
            found += estimated_nbytes(graph, temporaries_alone=True)
        return found

    def close(self) -> None:
        """Releases the plans and their memory. What is read afterwards are the last values."""
        self._states.release()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _parts(self, batch: Sequence[Any]) -> list[tuple[Any, ...]]:
        return micro_batches_of(plain(batch), self._recipe.micro_batches)

    def _plan(self, kind: str, batch: Sequence[Any]) -> ExecutionPlan:
        given = inputs_of(batch)
        key = kind, tuple((n, v.shape, v.dtype) if isinstance(v, np.ndarray) else (n, v) for n, v in given.items())
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._compiled(_GRAPHS[kind](self._recipe, batch))
        return found

    def _compiled(self, graph: Graph) -> ExecutionPlan:
        """The plan of a graph, whose states are those of the plans before."""
        memory = self._states.memory_of(graph)
        options: dict[str, Any] = {"backend": self._backend, "threads": self._threads, "activations": self._activations}
        plan = compile(graph, **options, memory=memory, weights=self._weights)
        self._states.adopt(plan)
        give_back_free_memory()
        return plan

    def _stop(self, batch: Sequence[Any], loss: float, norm: float, draw: int) -> None:
        """Raises TrainingError with the first tensor that is not finite."""
        what = (
            f"the loss is {loss}"
            if not math.isfinite(loss)
            else f"the loss is {loss:g}, the norm of the gradients {norm}"
        )
        found = first_not_finite(self._recipe, batch, self._compiled, draw)
        raise TrainingError(
            f"step {self.number + 1}: {what}; {found}; wanted finite numbers. The parameters are those after step {self.number}"
        )


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
