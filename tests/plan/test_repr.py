"""Every object that a caller meets prints as one readable line."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import ArrayTypeError, ShapeError

LONGEST = 200


def objects() -> dict[str, object]:
    """A plan of 40 chained ops with a long name, and what hangs on it."""
    graph = cs.Graph()
    tensor = y = graph.input("x" * 300, (4, 64), "f32")
    for _ in range(20):
        y = cs.rms_norm(cs.softmax(y), np.ones(64, np.float32), eps=1e-5)
    graph.output("y", y)
    with cs.compile(graph, backend="simd", threads=1) as plan:
        schedule = plan.bound.schedule
        found = {
            "graph": graph,
            "tensor": tensor,
            "node": graph.nodes[0],
            "plan": plan,
            "choice": plan.choices[0],
            "bound": plan.bound,
            "schedule": schedule,
            "memory": plan.bound.memory_plan,
            "thunk": schedule.thunks[0],
            "variant": plan.choices[0].variant,
            "device": plan.choices[0].device,
            "op": plan.choices[0].op,
            "origin": plan.origins[0],
            "spec": graph.nodes[0].spec,
            "profile": plan.profile(runs=1, warmup=0),
        }
    jitted = cs.jit(lambda x: x + 1)
    return found | {"options": cs.Sampling(), "machine": cs.capabilities(), "table": cs.table(), "jit": jitted}


def test_objects_print_as_one_short_line() -> None:
    for name, value in objects().items():
        text = repr(value)
        assert len(text) <= LONGEST, f"{name}: {text}"
        assert "\n" not in text, name
        assert " at 0x" not in text, f"{name}: {text}"


def test_what_they_print() -> None:
    graph = cs.Graph()
    graph.output("y", cs.silu(graph.input("x", (cs.Extent("n", 6), 4), "f32")))
    with cs.compile(graph, backend="scalar", threads=1) as plan:
        assert repr(graph) == "Graph(x -> y; 1 node)"
        assert repr(graph.nodes[0]) == "Node('silu': silu(x))"
        assert repr(graph.nodes[0].op) == "Op('silu': y = x / (1 + exp(-x)))"
        assert repr(graph.nodes[0].spec.inputs[0]) == "TensorSpec(f32[n<=6, 4])"
        assert repr(plan) == "ExecutionPlan(x -> y; 1 thunk)"
        assert repr(plan.choices[0]) == "Choice(silu: row_blocks on scalar, the only one that can do it)"
    assert repr(cs.Graph()) == "Graph(no input -> no output; 0 nodes)"


def test_messages_show_the_callers_shapes() -> None:
    whole = np.ones((2, 3), np.int64)
    with pytest.raises(ShapeError, match=r"silu_multiply: got int64\[2, 3\], int64\[2, 3\]; wanted tensors of f32"):
        cs.silu_multiply(whole, whole)
    graph = cs.Graph()
    with pytest.raises(ArrayTypeError, match=r"silu\(\) got an unexpected keyword argument 'eps'"):
        cs.silu(graph.input("x", (3,), "f32"), eps=1)
