"""Faulty external dispatchers: without methods, without a name, with wrong return values."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import BackendError
from camshaft.ops import get
from camshaft.selection.kernel_dispatch import BY_KEYWORD, METHODS, TAKES, KernelDispatch, dispatched
from camshaft.validation.validate import node_of
from tests.support.samples import samples

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def run(dispatcher: Any) -> np.ndarray:
    graph = cs.Graph()
    x = graph.input("x", (2, 4), "f32")
    graph.output("y", cs.add(x, x))
    with cs.compile(graph, threads=1, dispatcher=dispatcher) as plan:
        return plan.run(x=X)["y"].copy()


def fill(a: Any, b: Any, out: Any) -> None:
    out.array[:] = a.array + b.array


class Adder:
    name = "adder"
    add = staticmethod(fill)


def test_an_object_with_one_method_computes_that_op() -> None:
    assert np.array_equal(run(SimpleNamespace(name="one", add=fill)), X + X)


@pytest.mark.parametrize(
    ("dispatcher", "words"),
    [
        (3, "got 3; wanted an object with any of mul_mat, rms_norm, add, mul, silu, copy, rope, attention"),
        (SimpleNamespace(name="none"), "wanted an object with any of"),
        (Adder, "wanted an object with any of"),
        (SimpleNamespace(add=fill), "got SimpleNamespace with the name None; wanted a string"),
        (SimpleNamespace(add=fill, name=""), "with the name ''; wanted a string"),
    ],
)
def test_what_is_no_dispatcher_is_refused(dispatcher: Any, words: str) -> None:
    with pytest.raises(BackendError, match=f"^dispatcher: .*{words}"):
        run(dispatcher)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            lambda a, b, out: a.array + b.array,
            "it returned ndarray; wanted None, an exception or text, and the result in",
        ),
        (lambda a, b, out: False, "it returned bool; wanted None"),
        (lambda a, b, out: "not today", "not today"),
        (lambda a, b, out: ValueError("nor tomorrow"), "nor tomorrow"),
    ],
)
def test_what_a_method_gives_back_is_an_error_in_one_line(method: Any, words: str) -> None:
    with pytest.raises(BackendError, match=f"^mine.add: {words}"):
        run(SimpleNamespace(name="mine", add=method))


def attention_nodes() -> dict[str, tuple[Any, tuple[np.ndarray, ...]]]:
    """A sample of attention over a plain cache and one over a quantized cache, by whether it has scales."""
    op = get("attention")
    plain = [s for s in samples(op.name) if set(s.attrs) <= set(TAKES["attention"])]
    return {"quantized" if len(s.inputs) > 6 else "plain": (node_of(op, s), s.inputs) for s in plain}


def test_a_dispatcher_gets_no_attention_with_options() -> None:
    op = get("attention")
    dispatcher = SimpleNamespace(name="mine", attention=lambda *buffers, **named: None)
    (windowed, *_) = [s for s in samples(op.name) if s.attrs.get("window")]
    assert dispatched(dispatcher, op, node_of(op, windowed)) is None


@pytest.mark.parametrize("kind", ["plain", "quantized"])
def test_scales_of_a_quantized_cache_come_by_name_and_out_is_always_the_seventh(kind: str) -> None:
    op, (node, inputs) = get("attention"), attention_nodes()[kind]
    seen: dict[str, Any] = {}

    def attention(
        q: Any, k_cache: Any, v_cache: Any, positions: Any, slots: Any, block_table: Any, out: Any, **named: Any
    ) -> None:
        seen.update(named, out=out, block_table=block_table)

    choice = dispatched(SimpleNamespace(name="mine", attention=attention), op, node)
    made = [np.zeros(spec.bounds, np.float32) for spec in node.outputs]
    choice.variant.build(node, choice.device).function(node, inputs, made)
    assert seen["out"].array is made[0]
    assert seen["block_table"].array is inputs[5]
    scales = {name: seen[name].array for name in ("k_scales", "v_scales") if name in seen}
    assert list(scales.values()) == list(inputs[6:])
    assert set(seen) - set(scales) == {"out", "block_table", *node.attrs}


def test_a_method_that_knows_of_no_scales_is_refused_for_a_quantized_cache_only() -> None:
    def attention(q, k_cache, v_cache, positions, slots, block_table, out, *, heads, kv_heads, head_dim, scale, length):  # type: ignore[no-untyped-def]
        return None

    mine = SimpleNamespace(name="mine", attention=attention)
    nodes = attention_nodes()
    assert dispatched(mine, get("attention"), nodes["plain"][0]) is not None
    with pytest.raises(
        BackendError, match=r"^mine.attention\(q, .*unexpected keyword argument 'k_scales'; wanted .* k_scales=, v_"
    ):
        dispatched(mine, get("attention"), nodes["quantized"][0])


def test_a_method_with_other_parameters_is_refused_before_it_runs() -> None:
    with pytest.raises(BackendError, match=r"^mine.add\(a, out\): too many positional arguments; wanted .* 3 buffers"):
        run(SimpleNamespace(name="mine", add=lambda a, out: None))


def test_the_protocol_takes_what_nodes_pass() -> None:
    """Each op's first sample binds to the protocol's own signature."""
    for name, method in METHODS.items():
        node = node_of(get(name), samples(name)[0])
        n_leading, keywords = BY_KEYWORD.get(name, (len(node.inputs), ()))
        stated = inspect.signature(getattr(KernelDispatch, method))
        stated.bind(None, *node.inputs[:n_leading], *node.outputs, **dict.fromkeys((*keywords, *node.attrs)))
