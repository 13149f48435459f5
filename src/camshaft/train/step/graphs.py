"""The graphs of training: a step with loss, gradients, clipping and updates; a micro-batch before its last one; the loss alone.

States: `parameters/NAME`, `optimizer/NAME/STATE`, `average/NAME`, `gradient/NAME` where micro-batches are added up, and `number`,
how many steps are done; with loss scaling those of scaling.py. They persist, and graphs share them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, f16, f32, f64, i32
from camshaft.errors import PlanError, ShapeError
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.mixed_precision import with_mixed_precision
from camshaft.ops.spec import TensorSpec
from camshaft.plan.jit import with_leaves
from camshaft.train.optimizers import Optimizer, Update
from camshaft.train.step.scaling import SCALE, SKIPPED, LossScaling
from camshaft.train.step.tree import Tree, inputs_of

Array = np.ndarray[Any, Any]
COMPUTED = {"bf16": bf16, "f16": f16}
# Greater numbers are not finite f32: a comparison that is right where infinity may not be written, as in WGSL.
_GREATEST = float(np.finfo(np.float32).max)
# What torch.nn.utils.clip_grad_norm_ adds to the norm.
_CLIP_EPS = 1e-6


@dataclass(frozen=True)
class Recipe:
    """What a step does: `loss(parameters, *batch)` is one float; the other fields are those of train.Step."""

    loss: Callable[..., Any]
    tree: Tree
    optimizer: Optimizer
    clip: float | None
    average: float | None
    micro_batches: int
    seed: int | None = None
    compute: str = "f32"
    scaling: LossScaling | None = None

    def states(self) -> dict[str, tuple[TensorSpec, Array | None]]:
        """Every state of the step by name, with what it starts as; None for zeros."""
        found: dict[str, tuple[TensorSpec, Array | None]] = {"number": (TensorSpec((), i32), None)}
        found |= {} if self.scaling is None else self.scaling.states()
        for name, spec in self.tree.specs.items():
            start = self.tree.arrays[name]
            found[f"parameters/{name}"] = spec, start
            for state, held in self.optimizer.states(spec).items():
                found[f"optimizer/{name}/{state}"] = held, None
            if self.average is not None:
                found[f"average/{name}"] = spec, start
            if self.micro_batches > 1:
                found[f"gradient/{name}"] = spec, None
        return found

    @property
    def rate_dtype(self) -> str:
        """The dtype of the learning rate: f64 if a parameter has it."""
        return "f64" if any(spec.dtype == f64 for spec in self.tree.specs.values()) else "f32"


def loss_graph(recipe: Recipe, batch: Sequence[Any]) -> Graph:
    """The loss of a batch."""
    return _forward(recipe, batch, trains=False)


def micro_batch_graph(recipe: Recipe, batch: Sequence[Any]) -> Graph:
    """The loss of a micro-batch, whose gradients are added to those of the ones before; `is_first` starts anew."""
    graph, gradients = gradient_graph(recipe, batch)
    is_first = graph.input("is_first", (), "bool")
    for name, g in gradients.items():
        total = graph.state(f"gradient/{name}", g.spec)
        f.assign(total, f.where(is_first, g, total + g))
    return graph


def step_graph(recipe: Recipe, batch: Sequence[Any]) -> Graph:
    """The whole step, or its last micro-batch: outputs `loss`, `norm`, that of all gradients before clipping, and with loss
    scaling `skips`."""
    graph, gradients = gradient_graph(recipe, batch)
    loss, rate = graph.outputs["loss"], graph.input("rate", (), recipe.rate_dtype)
    with graph.scope("step"):
        if recipe.micro_batches > 1:
            gradients = {name: graph.state(f"gradient/{name}", g.spec) + g for name, g in gradients.items()}
        if recipe.scaling is not None:
            unscaled = 1.0 / graph.states[SCALE]
            gradients = {name: g * unscaled for name, g in gradients.items()}
        norm = _norm(gradients.values())
        has_loss = f.less_equal(f.abs(loss), _GREATEST)
        is_finite = f.logical_and(has_loss, f.less_equal(norm, _GREATEST))
        count = graph.state("number", TensorSpec((), i32))
        done, counted = is_finite, count + 1
        if recipe.scaling is not None:
            counted = counted - graph.states[SKIPPED]
        _update(graph, recipe, gradients, norm, rate, f.where(is_finite, counted, 0), is_finite)
        if recipe.scaling is not None:
            skips = recipe.scaling.update(graph, is_finite, has_loss)
            done = f.logical_or(is_finite, skips)
            graph.output("skips", skips)
        f.assign(count, f.where(done, count + 1, count))
    graph.output("norm", norm)
    return graph


def _update(
    graph: Graph,
    recipe: Recipe,
    gradients: Mapping[str, Tensor],
    norm: Tensor,
    rate: Tensor,
    number: Tensor,
    is_finite: Tensor,
) -> None:
    """Clips the gradients, and updates parameters, moments and averages."""
    scale = None if recipe.clip is None else f.minimum(recipe.clip / (norm + _CLIP_EPS), 1.0)
    for name, g in gradients.items():
        p = graph.states[f"parameters/{name}"]
        states = {
            state: graph.state(f"optimizer/{name}/{state}", spec)
            for state, spec in recipe.optimizer.states(p.spec).items()
        }
        clipped = g if scale is None else g * _as(scale, p)
        with graph.scope(name):
            now = Update(name, p, clipped, states, _as(rate, p), number, is_finite)
            recipe.optimizer.update(now)
            _average(graph, recipe, now)


def gradient_graph(recipe: Recipe, batch: Sequence[Any]) -> tuple[Graph, dict[str, Tensor]]:
    """The loss and its gradients, of loss scaling times the scale, with nothing updated."""
    graph = _forward(recipe, batch, trains=True)
    loss, parameters = graph.outputs["loss"], [graph.states[f"parameters/{name}"] for name in recipe.tree.specs]
    share = np.full(loss.spec.bounds, 1 / recipe.micro_batches, loss.spec.parts[0].dtype.numpy)
    cotangent = graph.constant("share", share)
    if recipe.scaling is not None:
        cotangent = cotangent * recipe.scaling.add(graph)
    found = graph.gradients(loss, parameters, cotangent=cotangent)
    return graph, dict(zip(recipe.tree.specs, found, strict=True))


def _forward(recipe: Recipe, batch: Sequence[Any], *, trains: bool) -> Graph:
    """The loss of a batch as an output; what a step `trains` may draw what it drops."""
    graph = Graph()
    parameters = {name: graph.state(f"parameters/{name}", spec) for name, spec in recipe.tree.specs.items()}
    graph.output("loss", _loss(graph, recipe, batch, parameters, **(_seed_of(graph, recipe) if trains else {})))
    return computed_in(graph, recipe.compute)


def computed_in(graph: Graph, compute: str) -> Graph:
    """The graph of a forward pass with its results in that dtype, f32, bf16 or f16, as far as they bear it."""
    return graph if compute == "f32" else with_mixed_precision(graph, COMPUTED[compute])


def checked_compute(compute: object, scaling: object, tree: Tree) -> LossScaling | None:
    """The loss scaling of a step: f16 always has one. PlanError for another dtype, and for parameters that have f64."""
    if compute not in ("f32", *COMPUTED):
        raise PlanError(f"Step: got compute={compute!r:.60}; wanted f32, {', '.join(COMPUTED)}")
    if scaling is not None and (not isinstance(scaling, LossScaling) or compute != "f16"):
        raise PlanError(
            f"Step: got scaling={scaling!r:.60} with compute={compute}; wanted LossScaling with f16, or None"
        )
    if compute != "f32" and any(spec.dtype != f32 for spec in tree.specs.values()):
        raise PlanError(f"Step: got compute={compute} with parameters of f64; wanted f32")
    return (scaling or LossScaling()) if compute == "f16" else None


def checked_seed(seed: object) -> int | None:
    """The seed of a step. PlanError for what is none."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**64):
        raise PlanError(f"Step: got seed={seed!r:.60}; wanted an integer of 64 bits from 0 on, or None")
    return seed


def draw_of(recipe: Recipe, draw: int) -> dict[str, Array]:
    """The input of a graph with gradients that says which draw it is: another one for each micro-batch of each step."""
    return {} if recipe.seed is None else {"draw": np.array([draw % 2**32], np.uint32)}


def _seed_of(graph: Graph, recipe: Recipe) -> dict[str, Tensor]:
    """What a loss with a seed gets: the low and high 32 bits of it and the draw, u32 [3]."""
    if recipe.seed is None:
        return {}
    halves = np.array([recipe.seed % 2**32, recipe.seed >> 32], np.uint32)
    return {"seed": f.concat(graph.constant("seed", halves), graph.input("draw", (1,), "u32"), axis=0)}


def _loss(
    graph: Graph, recipe: Recipe, batch: Sequence[Any], parameters: Mapping[str, Tensor], **more: Tensor
) -> Tensor:
    """The loss of a batch's inputs, which are named as in `inputs_of`, as a scalar."""
    given = [
        graph.input(name, value.shape, as_dtype(value.dtype)) if isinstance(value, np.ndarray) else value
        for name, value in inputs_of(batch).items()
    ]
    result = recipe.loss(recipe.tree.filled(parameters), *with_leaves(tuple(batch), iter(given)), **more)
    if not isinstance(result, Tensor) or result.graph is not graph:
        raise PlanError(f"loss: got {result!r:.80}; wanted a tensor made of the parameters and the batch")
    if any(d != 1 for d in result.shape) or result.dtype not in (f32, f64):
        raise ShapeError(f"loss: got {result}; wanted one f32 or f64")
    return result if not result.shape else graph.reshape(result, ())


def _norm(gradients: Any) -> Tensor:
    """sqrt of the sum of all gradients' squares."""
    squares = [_f32(f.sum(f.square(g))) for g in gradients]
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    norm: Tensor = f.sqrt(total)
    return norm


def _f32(x: Tensor) -> Tensor:
    made: Tensor = x if x.dtype == f32 else f.cast(x, to="f32")
    return made


def _as(scalar: Tensor, p: Tensor) -> Tensor:
    """A scalar in the parameter's dtype."""
    made: Tensor = scalar if scalar.dtype == p.dtype else f.cast(scalar, to=str(p.dtype.name))
    return made


def _average(graph: Graph, recipe: Recipe, now: Update) -> None:
    """average = decay average + (1 - decay) p, of the new p."""
    if recipe.average is None:
        return
    held = graph.state(f"average/{now.name}", now.p.spec)
    now.write(held, held * recipe.average + now.p * (1 - recipe.average))
