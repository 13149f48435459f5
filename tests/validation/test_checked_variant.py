"""Answers and registration of external variants are checked; each fault is a clear one-line error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.registry import device
from camshaft.dtypes import f32
from camshaft.errors import BackendError, ShapeError
from camshaft.ops.op import KernelVariant, NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import cost_on, refusal_on

ADD = ops.get("add")
SPEC = TensorSpec((3, 7), f32)
NODE = NodeSpec((SPEC, SPEC), (SPEC,), {})
OWN = next(variant for variant in ADD.variants if "simd" in variant.backends)


def fail(node: NodeSpec, target: object) -> Any:
    raise IndexError("list index out of range")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"supports": fail}, "^add/mine: supports raised IndexError: list index out of range$"),
        (
            {"supports": lambda node, target: False},
            "^add/mine: supports returned False; wanted None or the reason as text$",
        ),
        ({"supports": lambda node, target: True}, "^add/mine: supports returned True; wanted None"),
    ],
)
def test_a_truth_is_no_reason(how: dict[str, Any], words: str) -> None:
    with pytest.raises(BackendError, match=words):
        refusal_on(ADD, replace(OWN, name="mine", **how), NODE, device("cpu"))
    assert refusal_on(ADD, OWN, NODE, device("cpu")) is None
    refusing = replace(OWN, supports=lambda node, target: "not on Sundays")
    assert refusal_on(ADD, refusing, NODE, device("cpu")) == "not on Sundays"


def test_a_build_that_fails_names_its_variant() -> None:
    with pytest.raises(BackendError, match=r"^add/mine: build raised IndexError: list index out of range$"):
        refusal_on(ADD, replace(OWN, name="mine", build=fail), NODE, device("null:wgsl"))


def test_a_camshaft_error_is_left_as_it_is() -> None:
    def refuse(node: NodeSpec, target: object) -> str | None:
        raise ShapeError("not such a shape")

    with pytest.raises(ShapeError, match=r"^not such a shape$"):
        refusal_on(ADD, replace(OWN, supports=refuse), NODE, device("cpu"))


@pytest.mark.parametrize("found", [float("nan"), float("inf"), -1.0, None, "3"])
def test_a_cost_can_be_compared(found: Any) -> None:
    with pytest.raises(BackendError, match=r"^add/mine: cost returned .*; wanted nanoseconds, 0 or more$"):
        cost_on(ADD, replace(OWN, name="mine", cost=lambda node, target: found), NODE, device("cpu"))
    assert cost_on(ADD, replace(OWN, cost=lambda node, target: 3), NODE, device("cpu")) == 3.0


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        (3, "got 3; wanted a KernelVariant with a name"),
        (replace(OWN, name=""), "wanted a KernelVariant with a name"),
        (replace(OWN, name="mine", backends="simd"), "mine is for 'simd'; wanted a frozenset of backends' names"),
        (replace(OWN, name="mine", backends=frozenset()), "wanted a frozenset of backends' names"),
        (replace(OWN, name="mine", backends=frozenset({"cpu"})), "for the device 'cpu'; wanted its backend, 'simd'"),
        (replace(OWN, name="mine", backends=frozenset({"webgpu:1"})), "'webgpu:1'; wanted its backend, 'webgpu'"),
    ],
)
def test_a_variant_that_nobody_could_choose_is_not_registered(variant: KernelVariant, words: str) -> None:
    before = ops.variants_of(ADD)
    with pytest.raises(BackendError, match=f"^register_variant: .*{words}"):
        cs.register_variant("add", variant)
    assert ops.variants_of(ADD) == before


def test_a_module_that_registers_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_registered", {})
    cs.register_variant("add", replace(OWN, name="mine", cost=lambda node, target: 0.0), "no_such")
    graph = cs.Graph()
    x = graph.input("x", (3, 7), "f32")
    graph.output("y", cs.add(x, x))
    with pytest.raises(BackendError, match="module no_such, which registers a variant, cannot be imported"):
        cs.compile(graph, threads=1)
