"""The graphs of training: a step with loss, gradients, clipping and updates; a micro-batch before its last one; the loss alone.

States: `parameters/NAME`, `optimizer/NAME/STATE`, `average/NAME`, `gradient/NAME` where micro-batches are added up, and `number`,
how many steps are done. They persist, and graphs share them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f32, f64, i32
from camshaft.errors import PlanError, ShapeError
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.spec import TensorSpec
from camshaft.plan.jit import leaves, paths, with_leaves
from camshaft.train.optimizers import Optimizer, Update
from camshaft.train.step.tree import Tree

Array = np.ndarray[Any, Any]
# Greater numbers are no finite f32: a comparison that is right where infinity may not be written, as in WGSL.
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

    def states(self) -> dict[str, tuple[TensorSpec, Array | None]]:
        """Every state of the step by name, with what it starts as; None for zeros."""
        found: dict[str, tuple[TensorSpec, Array | None]] = {"number": (TensorSpec((), i32), None)}
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
    graph = Graph()
    graph.output("loss", _loss(graph, recipe, batch, _parameters(graph, recipe)))
    return graph


def micro_batch_graph(recipe: Recipe, batch: Sequence[Any]) -> Graph:
    """The loss of a micro-batch, whose gradients are added to those of the ones before; `is_first` starts anew."""
    graph = Graph()
    loss, gradients = _with_gradients(graph, recipe, batch)
    is_first = graph.input("is_first", (), "bool")
    for name, g in gradients.items():
        total = graph.state(f"gradient/{name}", g.spec)
        f.assign(total, f.where(is_first, g, total + g))
    graph.output("loss", loss)
    return graph


def step_graph(recipe: Recipe, batch: Sequence[Any]) -> Graph:
    """The whole step, or its last micro-batch: outputs `loss` and `norm`, that of all gradients before clipping."""
    graph = Graph()
    rate = graph.input("rate", (), recipe.rate_dtype)
    loss, gradients = _with_gradients(graph, recipe, batch)
    parameters = {name: graph.states[f"parameters/{name}"] for name in gradients}
    with graph.scope("step"):
        if recipe.micro_batches > 1:
            gradients = {name: graph.state(f"gradient/{name}", g.spec) + g for name, g in gradients.items()}
        norm = _norm(gradients.values())
        is_finite = f.logical_and(f.less_equal(f.abs(loss), _GREATEST), f.less_equal(norm, _GREATEST))
        count = graph.state("number", TensorSpec((), i32))
        number = f.where(is_finite, count + 1, 0)
        scale = None if recipe.clip is None else f.minimum(recipe.clip / (norm + _CLIP_EPS), 1.0)
        for name, g in gradients.items():
            p = parameters[name]
            states = {
                state: graph.state(f"optimizer/{name}/{state}", spec)
                for state, spec in recipe.optimizer.states(p.spec).items()
            }
            clipped = g if scale is None else g * _as(scale, p)
            with graph.scope(name):
                now = Update(name, p, clipped, states, _as(rate, p), number, is_finite)
                recipe.optimizer.update(now)
                _average(graph, recipe, now)
        f.assign(count, f.where(is_finite, count + 1, count))
    graph.output("loss", loss)
    graph.output("norm", norm)
    return graph


def gradient_graph(recipe: Recipe, batch: Sequence[Any]) -> tuple[Graph, Mapping[str, Tensor]]:
    """The loss and its gradients, with nothing updated."""
    graph = Graph()
    loss, gradients = _with_gradients(graph, recipe, batch)
    graph.output("loss", loss)
    return graph, gradients


def _parameters(graph: Graph, recipe: Recipe) -> dict[str, Tensor]:
    return {name: graph.state(f"parameters/{name}", spec) for name, spec in recipe.tree.specs.items()}


def _with_gradients(graph: Graph, recipe: Recipe, batch: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
    parameters = _parameters(graph, recipe)
    loss = _loss(graph, recipe, batch, parameters, **_seed_of(graph, recipe))
    share = np.full(loss.spec.bounds, 1 / recipe.micro_batches, loss.spec.parts[0].dtype.numpy)
    found = graph.gradients(loss, list(parameters.values()), cotangent=graph.constant("share", share))
    return loss, dict(zip(parameters, found, strict=True))


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


def inputs_of(batch: Sequence[Any]) -> dict[str, Any]:
    """The leaves of a batch by their paths, such as batch[0]."""
    found, structure = leaves(tuple(batch))
    return dict(zip(paths(structure, "batch"), found, strict=True))


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
