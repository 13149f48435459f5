"""Attributes and inputs of any kind: an op takes them or refuses them in a line, never by an error of Python's own."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.errors import CamshaftError, ShapeError
from camshaft.ops.op import Op
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import specs_of

ODD_VALUES = ("x", None, -1, 2.5, float("nan"), [1], (), {}, 1 << 70, b"a")


@pytest.mark.parametrize("name", sorted(ops.NAMES))
def test_odd_attributes_and_inputs_are_taken_or_refused_in_a_line(name: str) -> None:
    op = ops.get(name)
    sample = next(iter(op.samples()))
    specs = specs_of(sample)
    tries = [(specs, {**sample.attrs, attr: value}) for attr in sample.attrs for value in ODD_VALUES]
    tries += [(other, sample.attrs) for other in ((), specs[:-1], specs + specs[:1], specs[::-1])]
    for given, attrs in (*tries, (specs, {})):
        made = outcome(op, given, attrs)
        assert "\n" not in made if isinstance(made, str) else all(isinstance(spec, TensorSpec) for spec in made)


def outcome(op: Op, specs: tuple[TensorSpec, ...], attrs: dict[str, object]) -> tuple[TensorSpec, ...] | str:
    """What comes out, or what is said."""
    try:
        return op.outputs(specs, attrs)
    except CamshaftError as error:
        return str(error)


def test_graphs_and_tables_say_which_attribute_it_was() -> None:
    graph = cs.Graph()
    x, w = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    for call in (
        lambda: cs.rms_norm(graph.input("x", (3, 4), "f32"), w, eps="x"),
        lambda: cs.table().rms_norm(x, w, eps="x"),
    ):
        with pytest.raises(
            ShapeError, match=r"^rms_norm: got the attributes eps='x'; wanted such as it takes: '>' not supp"
        ):
            call()
