"""Op and KernelVariant: the definition of an operation and one way to compute it. Every file in ops/ makes one Op."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from camshaft.dtypes import DType
from camshaft.errors import BackendError, ShapeError
from camshaft.extent import Extent
from camshaft.lang.kernel import Constant, Kernel
from camshaft.ops.parameters import ANY, Parameters
from camshaft.ops.rule import Rule
from camshaft.ops.spec import Dim, TensorSpec

Attrs = Mapping[str, Any]

# What a variant claims that is written in the kernel language: every kind of target. A kernel of explicit vectors, which would
# be one element's work at a time there, leaves out the scalar CPU.
EVERYWHERE = frozenset({"scalar", "simd", "c", "webgpu", "cuda", "metal", "null"})
VECTORS = EVERYWHERE - {"scalar"}


@dataclass(frozen=True)
class NodeSpec:
    """What a variant is asked to compute: the specs of inputs and outputs, and the attributes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Attrs

    @cached_property
    def key(self) -> Hashable:
        """Equal for nodes of one op that every variant treats alike, such as a model's layers."""
        return self.inputs, self.outputs, tuple(sorted(self.attrs.items()))


class Target(Protocol):
    """What a variant may ask of a device (backends/device.py has the devices)."""

    @property
    def backend(self) -> str: ...
    @property
    def lanes(self) -> int: ...
    @property
    def features(self) -> frozenset[str]: ...
    @property
    def limits(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Operand:
    """A kernel's array argument: a part of the node's input, output or scratch number `index`.

    `shape` and `dtype`, when given, are how the kernel sees the part (as many bytes). Inputs are read unless `access` says so.
    """

    kind: Literal["input", "output", "scratch"]
    index: int
    part: str = "data"
    shape: tuple[int, ...] | None = None
    access: Literal["read", "write", "update"] = "read"
    dtype: DType | None = None


def read(index: int, part: str = "data", shape: tuple[int, ...] | None = None) -> Operand:
    """Input `index`, read."""
    return Operand("input", index, part, shape)


def update(index: int, part: str = "data", shape: tuple[int, ...] | None = None) -> Operand:
    """Input `index`, read and written in place (STATE)."""
    return Operand("input", index, part, shape, "update")


def write(index: int, part: str = "data", shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> Operand:
    """Output `index`, written."""
    return Operand("output", index, part, shape, "write", dtype)


def scratch(index: int, access: Literal["read", "write", "update"], shape: tuple[int, ...] | None = None) -> Operand:
    """Scratch `index` of the build, read or written."""
    return Operand("scratch", index, "data", shape, access)


@dataclass(frozen=True)
class Cells:
    """One axis of a grid: ceil(dim / per) programs."""

    dim: Dim
    per: int = 1


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Arrays in the kernel's order; `extents` are the run-time scalars that the kernel takes after them.

    `lanes` overrides the device's lane width (a power of two). The last grid axis runs fastest.
    """

    kernel: Kernel
    arrays: tuple[Operand, ...]
    grid: tuple[Cells, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    extents: tuple[Extent, ...] = ()
    lanes: int | None = None

    @property
    def name(self) -> str:
        return self.kernel.name


@dataclass(frozen=True, eq=False)
class NativeCall:
    """A launch of code that is no kernel of ours: `llvm_ir(symbol)` has a kernel's entry ABI and calls functions by pointer.

    Its argument block: the arrays' addresses, the address of `words` (int64 constants: function addresses, sizes), then for each
    extent the address of its active value. The text holds no address, so its object is cached like a kernel's; `digest` names
    all that the text depends on.
    """

    name: str
    digest: str
    llvm_ir: Callable[[str], str]
    arrays: tuple[Operand, ...]
    words: np.ndarray[Any, np.dtype[np.int64]]
    grid: tuple[Cells, ...]
    extents: tuple[Extent, ...] = ()


@dataclass(frozen=True)
class Build:
    """What a variant makes of a node: launches in order and the scratch tensors between them."""

    launches: tuple[Launch | NativeCall, ...]
    scratch: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True)
class HostCall:
    """A variant that runs Python: function(node, inputs, outputs) on NumPy views; a visible host thunk. The views are at their
    bounds, or cut to the active extents with `active`."""

    function: Callable[[NodeSpec, Sequence[np.ndarray[Any, Any]], Sequence[np.ndarray[Any, Any]]], None]
    active: bool = False


# Values of tunables by name: rows of a tile, lanes, elements of a program.
Values = Mapping[str, int]


@dataclass(frozen=True)
class Tunables:
    """What a variant leaves open: the legal `values` of each tunable, in rising order; `defaults` gives the cost model's choice
    for a node; `build` builds with a value for each. `refusal` says why some values do not go with the node or each other."""

    values: Mapping[str, tuple[int, ...]]
    defaults: Callable[[NodeSpec, Target], Values]
    build: Callable[[NodeSpec, Target, Values], Build]
    refusal: Callable[[NodeSpec, Target, Values], str | None] = lambda node, target, values: None


@dataclass(frozen=True)
class KernelVariant:
    """One way to compute an op. `supports` gives None, or the reason why not; `cost` estimates nanoseconds on one core.
    `values` are those that were chosen for its `tunables`; the defaults hold for the others."""

    name: str
    backends: frozenset[str]
    build: Callable[[NodeSpec, Target], Build | HostCall]
    supports: Callable[[NodeSpec, Target], str | None] = lambda node, target: None
    cost: Callable[[NodeSpec, Target], float] = lambda node, target: 1.0
    tunables: Tunables | None = None
    values: Values = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with the chosen values: 'tiled columns=3 rows=8'."""
        return f"{self.name} {values_text(self.values)}".rstrip()

    def with_values(self, values: Values) -> KernelVariant:
        """This variant with these values chosen. BackendError for one that is not legal."""
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
    """The one spelling of some values: 'columns=3 rows=8'."""
    return " ".join(f"{name}={values[name]}" for name in sorted(values))


def values_of(text: str) -> Values:
    """The values that `values_text` spelled."""
    return {name: int(value) for name, _, value in (word.partition("=") for word in text.split())}


@dataclass(frozen=True)
class Sample:
    """Inputs that an op is tried on. `specs` are needed only where they do not follow from the arrays (Extents, layouts)."""

    name: str
    inputs: tuple[np.ndarray[Any, Any], ...]
    attrs: Attrs = field(default_factory=dict)
    specs: tuple[TensorSpec, ...] | None = None
    extents: Mapping[Extent, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorSample:
    """Specs that `infer` must refuse; `match` is a part of the message."""

    specs: tuple[TensorSpec, ...]
    attrs: Attrs
    match: str


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Op:
    """An operation. `infer` raises ShapeError with the op's name, what came and what was wanted.

    `reference(inputs, attrs)` computes in float64 NumPy and gives one array per output; for an op with `updates` (indexes of the
    inputs that it writes in place) it gives those inputs' new values after the outputs. `indexes` names the inputs that index
    something, with the limit that they stay under: plans check what a caller gives for them, since a kernel cannot raise.
    `tolerance` is the normalized mean squared error allowed per output dtype name. `decompose(functions, tensors, attrs)` spells
    a fused op in other ops, `functions` being graph/functions.py; `rules` say which uses of other ops it takes the place of
    (rule.py). `workload` gives what a measurement puts into some inputs, where noise and zeros say nothing. `parameters` says
    what the op's functions take.
    """

    name: str
    formula: str
    infer: Callable[[tuple[TensorSpec, ...], Attrs], tuple[TensorSpec, ...]]
    reference: Callable[[Sequence[Array], Attrs], tuple[Array, ...]]
    variants: tuple[KernelVariant, ...]
    samples: Callable[[], Iterable[Sample]]
    error_samples: Callable[[], Iterable[ErrorSample]]
    tolerance: Mapping[str, float]
    flops: Callable[[NodeSpec], float] = lambda node: 0.0
    nbytes: Callable[[NodeSpec], float] = lambda node: float(sum(s.nbytes for s in node.inputs + node.outputs))
    updates: tuple[int, ...] = ()
    indexes: Mapping[int, Callable[[NodeSpec], int]] = field(default_factory=dict)
    decompose: Callable[..., Any] | None = None
    rules: tuple[Rule, ...] = ()
    workload: Callable[[NodeSpec], Mapping[int, np.ndarray[Any, Any]]] = lambda node: {}
    parameters: Parameters = ANY

    def accepts(self, specs: tuple[TensorSpec, ...], attrs: Attrs) -> bool:
        """Whether `infer` takes these specs."""
        try:
            self.outputs(specs, attrs)
        except ShapeError:
            return False
        return True

    def outputs(self, specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
        """What `infer` makes of a caller's specs and attributes. ShapeError as there, and for an attribute of a kind that the
        rule cannot even look at: None where it compares numbers."""
        try:
            return self.infer(specs, attrs)
        except TypeError as error:
            given = ", ".join(f"{name}={value!r:.60}" for name, value in attrs.items())
            raise ShapeError(
                f"{self.name}: got the attributes {given or 'none'}; wanted such as it takes: {error}"
            ) from error


def expect(condition: bool, op: str, came: object, wanted: str) -> None:
    """Raises ShapeError '<op>: got <came>; wanted <wanted>' unless the condition holds."""
    if not condition:
        text = ", ".join(str(c) for c in came) if isinstance(came, tuple) else str(came)
        raise ShapeError(f"{op}: got {text}; wanted {wanted}")
