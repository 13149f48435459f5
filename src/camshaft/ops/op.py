"""Op and KernelVariant: the definition of an operation and one way to compute it. Every file in ops/ makes one Op."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from camshaft.dtypes import DType
from camshaft.errors import BackendError, ShapeError, shortened
from camshaft.extent import Extent
from camshaft.ops.build import Build as Build
from camshaft.ops.build import Cells as Cells
from camshaft.ops.build import Launch as Launch
from camshaft.ops.build import NativeCall as NativeCall
from camshaft.ops.build import Operand as Operand
from camshaft.ops.build import read as read
from camshaft.ops.build import scratch as scratch
from camshaft.ops.build import update as update
from camshaft.ops.build import write as write
from camshaft.ops.parameters import ANY, Parameters
from camshaft.ops.rule import Rule
from camshaft.ops.spec import Dim, TensorSpec

Attrs = Mapping[str, Any]

# The backends of a variant written in the kernel language. VECTORS is for kernels of explicit vectors: on the scalar CPU
# those would process one element at a time.
EVERYWHERE = frozenset({"scalar", "simd", "c", "webgpu", "cuda", "metal", "null"})
VECTORS = EVERYWHERE - {"scalar"}
# Lanes are the threads of a workgroup (of `null` in some of its languages).
GPUS = frozenset({"webgpu", "cuda", "metal", "null"})


@dataclass(frozen=True)
class NodeSpec:
    """A graph node as variants see it: the specs of inputs and outputs, and the attributes. `packed`: which of the op's `packs`
    are constants, whose packing is no part of a run's time."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Attrs
    packed: tuple[int, ...] = ()

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        attrs = ", ".join(f"{name}={value!r}" for name, value in self.attrs.items())
        return f"NodeSpec({shortened(f'{ins} -> {outs}; {attrs}' if attrs else f'{ins} -> {outs}')})"

    @cached_property
    def key(self) -> Hashable:
        """A cache key. Nodes of one op with equal keys get the same kernels, for example a model's layers."""
        return self.inputs, self.outputs, tuple(sorted(self.attrs.items())), self.packed

    @cached_property
    def derived(self) -> dict[str, Any]:
        """Values derived from the node that several variants need, by name, such as a product's sizes."""
        return {}


class Target(Protocol):
    """The device properties that a variant may depend on (devices: backends/device.py)."""

    @property
    def backend(self) -> str: ...
    @property
    def lanes(self) -> int: ...
    @property
    def features(self) -> frozenset[str]: ...
    @property
    def limits(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class HostCall:
    """A variant that runs Python: function(node, inputs, outputs) on NumPy views. Plans show it as a host thunk. The views
    have their bounds as shape, or the active extents if `active`."""

    function: Callable[[NodeSpec, Sequence[np.ndarray[Any, Any]], Sequence[np.ndarray[Any, Any]]], None]
    active: bool = False


# Values of tunables by name, for example rows of a tile or lanes.
Values = Mapping[str, int]


@dataclass(frozen=True)
class Tunables:
    """A variant's tunable parameters. `values` lists the legal values of each in ascending order. `defaults` returns the cost
    model's choice for a node, `build` builds with one value for each, `refusal` returns why a combination is not supported."""

    values: Mapping[str, tuple[int, ...]]
    defaults: Callable[[NodeSpec, Target], Values]
    build: Callable[[NodeSpec, Target, Values], Build]
    refusal: Callable[[NodeSpec, Target, Values], str | None] = lambda node, target, values: None

    def build_default(self, node: NodeSpec, target: Target) -> Build:
        """Builds with the default values: the `build` of a variant with these tunables."""
        return self.build(node, target, self.defaults(node, target))


@dataclass(frozen=True)
class KernelVariant:
    """One way to compute an op. `supports` returns None or the reason why not; `cost` estimates nanoseconds on one core.
    `values` are the chosen values of `tunables`; the others use their defaults. `tolerance`: the op's, where the variant's
    arithmetic is coarser."""

    name: str
    backends: frozenset[str]
    build: Callable[[NodeSpec, Target], Build | HostCall]
    supports: Callable[[NodeSpec, Target], str | None] = lambda node, target: None
    cost: Callable[[NodeSpec, Target], float] = lambda node, target: 1.0
    tunables: Tunables | None = None
    values: Values = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"KernelVariant({self.label!r} for {', '.join(sorted(self.backends))})"

    @property
    def label(self) -> str:
        """The name and the chosen values: 'tiled columns=3 rows=8'."""
        return f"{self.name} {values_text(self.values)}".rstrip()

    def with_values(self, values: Values) -> KernelVariant:
        """Returns this variant with these tunable values. BackendError for an illegal value."""
        if not values:
            return self
        tunables, legal = self.tunables, {} if self.tunables is None else self.tunables.values
        wrong = [f"{name}={value}" for name, value in values.items() if value not in legal.get(name, ())]
        if tunables is None or wrong:
            known = "; ".join(f"{name} {', '.join(map(str, found))}" for name, found in legal.items())
            raise BackendError(f"{self.name}: got {', '.join(wrong)}; wanted values of {known or 'nothing'}")
        build, refusal, defaults = tunables.build, tunables.refusal, tunables.defaults

        def chosen(node: NodeSpec, target: Target) -> Values:
            return {**defaults(node, target), **values}

        return replace(
            self,
            build=lambda node, target: build(node, target, chosen(node, target)),
            supports=lambda node, target: self.supports(node, target) or refusal(node, target, chosen(node, target)),
            values=dict(values),
        )


def values_text(values: Values) -> str:
    """Formats values as 'columns=3 rows=8'. Equal values give equal texts."""
    return " ".join(f"{name}={values[name]}" for name in sorted(values))


def values_of(text: str) -> Values:
    """Parses a text made by `values_text`."""
    return {name: int(value) for name, _, value in (word.partition("=") for word in text.split())}


@dataclass(frozen=True)
class Sample:
    """Test inputs of an op. `specs` are needed only if they do not follow from the arrays (Extents, layouts)."""

    name: str
    inputs: tuple[np.ndarray[Any, Any], ...]
    attrs: Attrs = field(default_factory=dict)
    specs: tuple[TensorSpec, ...] | None = None
    extents: Mapping[Extent, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorSample:
    """Specs that `infer` must reject; `match` is a part of the message."""

    specs: tuple[TensorSpec, ...]
    attrs: Attrs
    match: str


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NoGradient:
    """An op's `vjp` where it has no gradient; `why` completes "it has no gradient: "."""

    why: str


@dataclass(frozen=True)
class Op:
    """An operation.

    - `infer` returns the output specs. It raises ShapeError with the op's name, the value it got and what it wanted.
    - `reference(inputs, attrs)` computes in float64 NumPy and returns one array per output, then the new values of the
      inputs in `updates` (indexes of the inputs that the op writes in place).
    - `indexes` maps each input that holds indexes to their exclusive upper limit, which may be an Extent. Plans check the
      values that a caller passes and constants, because a kernel cannot raise, and calls on arrays those of ops over a paged
      cache.
    - `variants` are the ways to compute it with kernels; an op without any is computed as `decompose` says.
    - `tolerance` is the normalized mean squared error allowed per output dtype name.
    - `decompose(f, *tensors, **attrs)` returns the outputs as computed by other ops on graph tensors: one, or a tuple. `f` has
      the ops as functions (graph/functions.py). None for primitives (primitives.py).
    - `vjp(f, dy, y, *tensors, **attrs)` returns the gradients of the inputs, built from other ops on graph tensors: for each
      input the product of dy with the derivative, or None where it is zero; one alone or in a tuple. An input that was broadcast
      may get one of the broadcast shape, and any input a function that makes it, called only where it is wanted. `y` is the
      output and `dy` its gradient; of several outputs both are tuples. NotImplemented, for all inputs or returned by such a
      function, takes the gradients from `decompose`, as None in place of the rule does (graph/gradients/). `NoGradient` where
      there is none.
    - `for_gradient(node)` returns the attributes with which the op gives, after its own results, what its `vjp` reads of the
      forward pass, such as a log-sum-exp; None where it reads no more.
    - `rules` are the patterns of other ops that this op replaces (rule.py).
    - `first_use(node, variant)` is another variant with the bits of the chosen one for the node, whose kernels take sizes at run
      time: eager calls of a new shape run it and compile the chosen one when the shape comes again. With None for `variant`: with
      the bits of every variant that may be chosen, so that none need be. None where there is none.
    - `packs` are the weights that some variant packs in launches of their own. Plans run those once where the weight is a
      constant, so times of such nodes are kept apart from others'.
    - `workload` returns realistic values for the inputs whose content affects the speed.
    - `parameters` describes the arguments of the op's functions.
    - `plain` has the dtypes of the first sample's inputs and its attributes, where they are known without drawing numbers.
    """

    name: str
    formula: str
    infer: Callable[[tuple[TensorSpec, ...], Attrs], tuple[TensorSpec, ...]]
    reference: Callable[[Sequence[Array], Attrs], tuple[Array, ...]]
    samples: Callable[[], Iterable[Sample]]
    error_samples: Callable[[], Iterable[ErrorSample]]
    tolerance: Mapping[str, float]
    variants: tuple[KernelVariant, ...] = ()
    flops: Callable[[NodeSpec], float] = lambda node: 0.0
    nbytes: Callable[[NodeSpec], float] = lambda node: float(sum(s.nbytes for s in node.inputs + node.outputs))
    updates: tuple[int, ...] = ()
    packs: tuple[int, ...] = ()
    indexes: Mapping[int, Callable[[NodeSpec], Dim]] = field(default_factory=dict)
    decompose: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | NoGradient | None = None
    for_gradient: Callable[[NodeSpec], Attrs | None] = lambda node: None
    rules: tuple[Rule, ...] = ()
    workload: Callable[[NodeSpec], Mapping[int, np.ndarray[Any, Any]]] = lambda node: {}
    parameters: Parameters = ANY
    plain: tuple[tuple[DType, ...], Attrs] | None = None
    first_use: Callable[[NodeSpec, KernelVariant | None], KernelVariant | None] = lambda node, variant: None

    def __repr__(self) -> str:
        return f"Op({self.name!r}: {shortened(self.formula)})"

    def accepts(self, specs: tuple[TensorSpec, ...], attrs: Attrs) -> bool:
        """Returns whether `infer` accepts these specs."""
        try:
            self.outputs(specs, attrs)
        except ShapeError:
            return False
        return True

    def outputs(self, specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
        """Returns `infer`'s result for a caller's specs and attributes. ShapeError as there, for an empty axis, and for an
        attribute whose type makes the rule raise TypeError, such as None in a comparison of numbers."""
        try:
            found = self.infer(specs, attrs)
        except TypeError as error:
            given = ", ".join(f"{name}={value!r:.60}" for name, value in attrs.items())
            raise ShapeError(
                f"{self.name}: got the attributes {given or 'none'}; wanted such as it takes: {error}"
            ) from error
        # Copies and callers' functions, which describe no arguments, take empty tensors; no kernel does.
        if self.parameters is not ANY:
            expect(all(all(spec.bounds) for spec in specs), self.name, specs, "no empty axis")
        return found


def expect(condition: bool, op: str, came: object, wanted: str) -> None:
    """Raises ShapeError '<op>: got <came>; wanted <wanted>' unless the condition holds."""
    if not condition:
        text = ", ".join(str(c) for c in came) if isinstance(came, tuple) else str(came)
        raise ShapeError(f"{op}: got {text or 'nothing'}; wanted {wanted}")
