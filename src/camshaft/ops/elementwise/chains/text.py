"""The text form of a chain of elementwise ops: its inputs' dtypes, a step per op, its results.

'chain f32,f32 y0=add(x0,x1) y1=softcap(y0,cap=2.5) -> y1': x0, x1 are the inputs, y0, y1 the steps' results. The text is the op's
name, so a chain's kernels, evidence and measurements are found by what it computes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from camshaft.dtypes import DTYPES, DType
from camshaft.errors import ShapeError
from camshaft.ops.op import Attrs

WORD = "chain"
T = TypeVar("T")
_STEP = re.compile(r"y(\d+)=(\w+)\(([^()]*)\)")
_VALUE = re.compile(r"([xy])(\d+)")


@dataclass(frozen=True)
class Step:
    """One op of a chain. `operands` index the inputs, then the steps' results: after 2 inputs, 2 is the first step's."""

    op: str
    operands: tuple[int, ...]
    attrs: Attrs


@dataclass(frozen=True)
class Chain:
    """A chain: its inputs' dtypes, its steps, and the indexes of the steps whose results are the chain's."""

    dtypes: tuple[DType, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    @property
    def text(self) -> str:
        """The text of this chain; equal chains have equal texts."""
        n = len(self.dtypes)
        steps = " ".join(f"y{i}={_call(step, n)}" for i, step in enumerate(self.steps))
        return f"{WORD} {','.join(d.name for d in self.dtypes)} {steps} -> {','.join(f'y{i}' for i in self.results)}"


def evaluated(chain: Chain, inputs: Sequence[T], step: Callable[[str, list[T], Attrs], T]) -> list[T]:
    """Every step's value; `step(op, operands, attrs)` computes it from earlier ones."""
    values = list(inputs)
    for part in chain.steps:
        values.append(step(part.op, [values[i] for i in part.operands], part.attrs))
    return values[len(inputs) :]


def _call(step: Step, n_inputs: int) -> str:
    operands = [f"x{i}" if i < n_inputs else f"y{i - n_inputs}" for i in step.operands]
    return f"{step.op}({','.join([*operands, *(f'{name}={step.attrs[name]!r}' for name in sorted(step.attrs))])})"


def parse(text: str) -> Chain:
    """The chain of a text. ShapeError for a text that is not a chain."""
    word, _, rest = text.partition(" ")
    dtypes, _, rest = rest.partition(" ")
    steps, arrow, results = rest.partition(" -> ")
    if word != WORD or not arrow or not all(name in DTYPES for name in dtypes.split(",")):
        raise ShapeError(f"chain: got {text!r}; wanted 'chain DTYPES STEPS -> RESULTS'")
    n = len(dtypes.split(","))
    made = tuple(_step(part, i, n) for i, part in enumerate(steps.split(" ")))
    chosen = tuple(_value(part, 0, len(made)) for part in results.split(","))
    return Chain(tuple(DTYPES[name] for name in dtypes.split(",")), made, chosen)


def _step(text: str, index: int, n_inputs: int) -> Step:
    match = _STEP.fullmatch(text)
    if match is None or int(match[1]) != index:
        raise ShapeError(f"chain: got the step {text!r}; wanted y{index}=op(operands)")
    parts = [part for part in match[3].split(",") if part]
    attrs: dict[str, Any] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if equals:
            attrs[name] = ast.literal_eval(value)
    operands = tuple(_value(part, n_inputs, index) for part in parts if "=" not in part)
    return Step(match[2], operands, MappingProxyType(attrs))


def _value(text: str, n_inputs: int, n_steps: int) -> int:
    """The index of an operand by its name: an input or an earlier step."""
    match = _VALUE.fullmatch(text)
    if match is None or int(match[2]) >= (n_inputs if match[1] == "x" else n_steps):
        raise ShapeError(f"chain: got {text!r}; wanted an input or a step before it")
    return int(match[2]) + (n_inputs if match[1] == "y" else 0)
