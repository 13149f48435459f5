"""Rewrite rules: which uses of other ops an op takes the place of. graph/passes/rewrite.py applies them.

A rule stands beside the op that it introduces. It looks at the graph through `Uses` and returns a `Match`; what the match
builds goes where the matched use stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.op import Op


class Stage(IntEnum):
    """When a rule is applied."""

    FUSE = 0
    TILES = 1
    QUANTIZE = 2
    QUANTIZED_RESULT = 3
    GATED_PRODUCT = 4
    ROUNDED_RESULT = 5
    ROUND = 6

    def is_applied(self, activations: str) -> bool:
        """Whether an activation mode allows what the rules of the stage change in results: 'f32' nothing, 'q8' codes of 8 bits,
        'bf16' those and, for many tokens, bf16 in tiles."""
        if self is Stage.FUSE:
            return True
        return activations == "bf16" if self is Stage.TILES else activations != "f32"


class Value(Protocol):
    """A tensor of a graph: `kind` is input, state, constant, view or value."""

    @property
    def spec(self) -> TensorSpec: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


class Use(Protocol):
    """One use of an op in a graph."""

    @property
    def op(self) -> Op: ...
    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def outputs(self) -> Sequence[Any]: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def device(self) -> str | None: ...
    @property
    def name(self) -> str: ...


class Uses(Protocol):
    """The queries that a rule may make of the graph."""

    def readers(self, value: Any) -> Sequence[Use]:
        """The uses that read a tensor or a view of it, in program order."""

    def maker(self, value: Any) -> Use | None:
        """The use whose output the tensor is; None for inputs, states, constants and views."""

    def is_output(self, value: Any) -> bool:
        """Whether the caller reads the tensor, or a view of it."""


class Builder(Protocol):
    """Adds uses to the new graph. Tensors it takes are of the old graph or made by it."""

    def apply(self, op: Op | str, inputs: Sequence[Any], attrs: Mapping[str, Any], name: str) -> tuple[Any, ...]:
        """The outputs of one more use."""

    def once(self, op: Op | str, inputs: Sequence[Any], attrs: Mapping[str, Any], name: str) -> tuple[Any, ...]:
        """As `apply`, but the same op on the same inputs, attributes and device is added once per stage."""


@dataclass(frozen=True)
class Match:
    """`build` gives the new tensor for each old one that it replaces; `removed` are uses that are then no longer needed."""

    build: Callable[[Builder], Mapping[Any, Any]]
    removed: tuple[Use, ...] = ()


@dataclass(frozen=True)
class Rule:
    """`find(use, uses)` is asked for every use of an op named in `roots`; None means that the rule does not apply."""

    stage: Stage
    roots: tuple[str, ...]
    find: Callable[[Use, Uses], Match | None]
