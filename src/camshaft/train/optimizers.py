"""Optimizers: the states of a parameter, and the nodes that update it: SGD, Adam, AdamW, Lion, Adafactor.

Formulas and defaults are those of torch.optim, of Lion those of Chen et al. (2023). docs/training.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from math import isfinite, prod
from typing import Any, Protocol

import numpy as np

from camshaft.errors import PlanError
from camshaft.graph import functions as f
from camshaft.graph.tensor import Tensor
from camshaft.ops.spec import TensorSpec


@dataclass(frozen=True)
class Update:
    """What an optimizer reads to update one parameter, and how it writes.

    `rate` is the learning rate in the parameter's dtype; `number` (i32) counts the steps from 1, and is 0 where the loss or the
    gradients are not finite, so that nothing may change. `is_finite` is a boolean that says so. All three are scalars.
    """

    name: str
    p: Tensor
    g: Tensor
    states: Mapping[str, Tensor]
    rate: Tensor
    number: Tensor
    is_finite: Tensor

    def write(self, state: Tensor, value: Tensor) -> None:
        """Gives a state its new value, if the step's loss and gradients are finite."""
        f.assign(state, f.where(self.is_finite, value, state))

    @property
    def count(self) -> Tensor:
        """The number of this step in the parameter's dtype."""
        return f.cast(self.number, to=_dtype(self.p))


class Optimizer(Protocol):
    """How parameters follow their gradients. An optimizer of your own has these two methods."""

    def states(self, p: TensorSpec) -> Mapping[str, TensorSpec]:
        """The states of a parameter by name; they start as zeros."""
        ...

    def update(self, now: Update) -> None:
        """Adds the nodes that update the parameter and its states."""
        ...


def _dtype(x: Tensor) -> str:
    return str(x.spec.dtype.name)


def _check(optimizer: Any, **below_1: bool) -> None:
    """Raises PlanError for a field that is not a number from 0 on, or not below 1 where it must be."""
    for field in fields(optimizer):
        value = getattr(optimizer, field.name)
        if field.name == "exempt":
            fits, wanted = isinstance(value, tuple) and all(isinstance(v, str) for v in value), "a tuple of patterns"
        elif field.type == "bool":
            fits, wanted = isinstance(value, bool), "True or False"
        else:
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
            below = below_1.get(field.name, False)
            fits = number and value >= 0 and (value < 1 or not below)
            wanted = "a number from 0 to below 1" if below else "a finite number from 0 on"
        if not fits:
            raise PlanError(f"{type(optimizer).__name__}: got {field.name}={value!r:.60}; wanted {wanted}")


class _Decaying:
    """Weight decay, from which parameters whose names match a pattern of `exempt` are exempt."""

    weight_decay: float
    exempt: tuple[str, ...]

    def decay(self, name: str) -> float:
        """The weight decay of a parameter."""
        return 0.0 if any(fnmatchcase(name, pattern) for pattern in self.exempt) else self.weight_decay

    def pulled(self, now: Update) -> Tensor:
        """The gradient with the parameter times the decay: L2 regularization."""
        decay = self.decay(now.name)
        return now.g + now.p * decay if decay else now.g

    def shrunk(self, now: Update) -> Tensor:
        """The parameter, less its part lr * decay: decoupled weight decay."""
        decay = self.decay(now.name)
        return now.p * (1.0 - now.rate * decay) if decay else now.p


@dataclass(frozen=True)
class SGD(_Decaying):
    """Stochastic gradient descent, with momentum: b = momentum b + g; p -= lr b, with `nesterov` lr (g + momentum b)."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self, momentum=True)
        if self.nesterov and not self.momentum:
            raise PlanError("SGD: got nesterov without momentum; wanted a momentum above 0")

    def states(self, p: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"momentum": p} if self.momentum else {}

    def update(self, now: Update) -> None:
        g = self.pulled(now)
        if not self.momentum:
            now.write(now.p, now.p - now.rate * g)
            return
        held = now.states["momentum"]
        moved = held * self.momentum + g
        direction = g + moved * self.momentum if self.nesterov else moved
        p = now.p - now.rate * direction
        now.write(held, moved)
        now.write(now.p, p)


@dataclass(frozen=True)
class AdamW(_Decaying):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): see the op adam_update."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self, b1=True, b2=True)

    def states(self, p: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"m": p, "v": p}

    def update(self, now: Update) -> None:
        self._update(now, now.g, self.decay(now.name))

    def _update(self, now: Update, g: Tensor, decay: float) -> None:
        m, v = now.states["m"], now.states["v"]
        b1, b2, eps = self.b1, self.b2, self.eps
        f.adam_update(now.p, m, v, g, now.rate, now.number, b1=b1, b2=b2, eps=eps, weight_decay=decay)


@dataclass(frozen=True)
class Adam(AdamW):
    """Adam (Kingma and Ba, 2015). Weight decay, if any, is L2 regularization: it is added to the gradient."""

    weight_decay: float = 0.0

    def update(self, now: Update) -> None:
        self._update(now, self.pulled(now), 0.0)


@dataclass(frozen=True)
class Lion(_Decaying):
    """Lion (Chen et al., 2023): p -= lr (sign(b1 m + (1 - b1) g) + decay p); m = b2 m + (1 - b2) g."""

    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 0.0
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self, b1=True, b2=True)

    def states(self, p: TensorSpec) -> Mapping[str, TensorSpec]:
        return {"m": p}

    def update(self, now: Update) -> None:
        m, g = now.states["m"], now.g
        step = m * self.b1 + g * (1 - self.b1)
        rate = now.rate
        signed = f.where(f.greater(step, 0.0), -rate, f.where(f.less(step, 0.0), rate, 0.0))
        p = self.shrunk(now) + signed
        moved = m * self.b2 + g * (1 - self.b2)
        now.write(m, moved)
        now.write(now.p, p)


@dataclass(frozen=True)
class Adafactor(_Decaying):
    """Adafactor (Shazeer and Stern, 2018): second moments of a matrix as a row and a column. Steps are relative to the
    parameter's root mean square, at least `eps`; `clip` limits the root mean square of an update. The memory is that of SGD.
    """

    b2_decay: float = 0.8
    eps: float = 1e-3
    clip: float = 1.0
    weight_decay: float = 0.0
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def states(self, p: TensorSpec) -> Mapping[str, TensorSpec]:
        if len(p.shape) < 2:
            return {"v": p}
        rows, columns = (*p.shape[:-1], 1), (*p.shape[:-2], 1, p.shape[-1])
        return {"rows": TensorSpec(rows, p.dtype), "columns": TensorSpec(columns, p.dtype)}

    def update(self, now: Update) -> None:
        g, count = now.g, now.count
        tiny = float(np.finfo(now.p.spec.parts[0].dtype.numpy).eps)
        # at step 0, where nothing is written, the power would be infinite
        share = f.power(f.maximum(count, 1.0), -self.b2_decay)
        square, mixed = f.square(g), {}
        for name, state in now.states.items():
            axes = {"v": (), "rows": (-1,), "columns": (-2,)}[name]
            part = f.mean(square, axes=axes, keepdims=True) if axes else square
            mixed[name] = state + share * (part - state)
        if "v" in mixed:
            estimate = mixed["v"]
        else:
            middle = f.maximum(f.mean(mixed["rows"], axes=-2, keepdims=True), tiny)
            estimate = mixed["rows"] * mixed["columns"] / middle
        step = g * f.rsqrt(f.maximum(estimate, tiny * tiny))
        size = f.maximum(_root_mean_square(step) / self.clip, 1.0)
        scale = f.maximum(_root_mean_square(now.p), self.eps) * f.minimum(now.rate, f.rsqrt(f.maximum(count, 1.0)))
        p = self.shrunk(now) - step * (scale / size)
        for name, state in now.states.items():
            now.write(state, mixed[name])
        now.write(now.p, p)


def _root_mean_square(x: Tensor) -> Tensor:
    count = prod(x.spec.bounds)
    total: Tensor = f.sum(f.square(x), axes=None)
    return f.sqrt(total * (1.0 / count))
