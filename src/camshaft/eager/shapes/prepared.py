"""Planned and prepared calls of one shape, and the part of ArrayOp that they use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from camshaft.eager.choices import Choices
from camshaft.eager.shapes.runners import HostRunner, Runner
from camshaft.ops.arguments import Dtype, Operand
from camshaft.ops.op import Attrs, Build, NodeSpec, Op
from camshaft.selection.choice import Choice


class NoFormula(Exception):
    """The call runs something other than kernels with run-time sizes."""


class Chooser(Protocol):
    """The part of ArrayOp that a call uses."""

    op: Op
    choices: Choices
    n_inputs: int  # of an elementwise op; 0 for others

    def known(self, key: Hashable) -> Prepared | None: ...
    def once(self, key: Hashable, make: Callable[[], Prepared]) -> Prepared: ...
    def remember(self, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared) -> None: ...
    def record(self, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared, plan: Plan) -> None: ...
    def replace(self, key: Hashable, prepared: Prepared) -> None: ...


class Planned(NamedTuple):
    """A call before compilation: the node, its variant's launches and the results' shapes."""

    node: NodeSpec
    choice: Choice
    build: Build
    shapes: tuple[tuple[int, ...], ...]


Plan: TypeAlias = Callable[[Sequence[tuple[int, ...]]], Planned]


class Prepared(NamedTuple):
    """A compiled call. Inputs are cast to `inputs`, results from `computed` to `returned`."""

    run: Runner
    inputs: tuple[Dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    computed: tuple[Dtype, ...]
    returned: tuple[Dtype, ...]
    node: NodeSpec | None = None  # what it runs, if it is a single node
    # Above 0: that many calls run another variant; then the call is prepared with the chosen one.
    uses_left: int = 0

    @property
    def takes_sizes(self) -> bool:
        """Whether a call of another shape compiles nothing; many are made once."""
        return isinstance(self.run, HostRunner) and any(step.sizes for step in self.run.steps)
