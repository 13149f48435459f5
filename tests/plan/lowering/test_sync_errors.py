"""What a graph that places and orders its nodes is refused for: each in one clear line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from placed_graphs import DIM, X, branches

import camshaft as cs
from camshaft.errors import CamshaftError
from camshaft.plan.memory.device_memory import DeviceArray
from tests.support.devices.fake_device import FakeDevice, Fakes, pass_for_null


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(FakeDevice("fake:0"), FakeDevice("fake:1")).install(monkeypatch)


def missing_dependency() -> None:
    graph, nodes = branches()
    c1 = graph.node("silu", graph.input("z", (4, DIM), "f32"), name="c1")
    graph.output("w", graph.node("multiply", c1, nodes["a1"], name="c2", after=[c1]))
    cs.compile(graph, sync="explicit")


def read_reversed() -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32")
    made = graph.node("silu", x, name="made", after=["reader"])
    graph.output("made", made)
    graph.output("y", graph.node("silu", made, name="reader"))
    cs.compile(graph, sync="explicit")


def circle() -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32")
    a = graph.node("silu", x, name="a", after=["c"])
    b = graph.node("silu", a, name="b")
    graph.node("silu", x, name="c", after=[b])
    cs.compile(graph, sync="hazards")


def given_elsewhere() -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32", on="cpu")
    cs.compile(graph, memory={"x": DeviceArray.zeros(FakeDevice("fake:0"), x.spec)})


def alone() -> tuple[cs.Graph, cs.Tensor]:
    graph = cs.Graph()
    return graph, graph.input("x", (4, DIM), "f32")


def compiled(
    build: Callable[[cs.Graph, cs.Tensor], object], sync: str | None = "hazards", **options: object
) -> Callable[[], object]:
    def make() -> object:
        graph, x = alone()
        build(graph, x)
        return cs.compile(graph, sync=sync, **options)

    return make


REFUSED: dict[str, Callable[[], object]] = {
    r"'c2' reads bytes \[0, 384\) of 'a1', which 'a1' writes, and nothing orders them": missing_dependency,
    "'reader' reads made, which no node before it writes": read_reversed,
    "the order goes in a circle: 'a' after 'c' after 'b' after 'a'": circle,
    "'s' after 's'": compiled(lambda g, x: g.node("silu", x, name="s", after=["s"])),
    "'silu' comes after 'gone', which is not a node of the graph; it has silu": compiled(
        lambda g, x: g.node("silu", x, after=["gone"])
    ),
    "'silu' got after the value 'a1' .* of another graph": compiled(
        lambda g, x: g.node("silu", x, after=[branches()[1]["a1"]])
    ),
    "'silu' runs on fake:0, but its input 0, x is on host; wanted a copy there": compiled(
        lambda g, x: g.node("silu", x, on="fake:0")
    ),
    "'silu' runs on host, but its input 0, copy is on fake:0": compiled(
        lambda g, x: g.node("silu", g.copy(x, "fake:0"))
    ),
    "'silu' runs on host, but its output there is on fake:0": compiled(
        lambda g, x: g.node("silu", x, into=[g.buffer("there", (4, DIM), "f32", "fake:0")])
    ),
    "'copy' goes from fake:0 to fake:1; wanted two copies, through the cpu": compiled(
        lambda g, x: g.copy(g.copy(x, "fake:0"), "fake:1")
    ),
    "got h\\[1:3\\] at byte 96; wanted a multiple of 256": compiled(
        lambda g, x: g.node("silu", g.rows(g.copy(x, "fake:0", name="h"), 1, 3), on="fake:0")
    ),
    "no backend or device 'gpu'": compiled(lambda g, x: g.node("silu", x, on="gpu")),
    "got sync 'never'; wanted one of hazards, each, explicit": compiled(lambda g, x: None, sync="never"),
    "no op 'sill'; did you mean silu": compiled(lambda g, x: g.node("sill", x)),
    "matmul: got .*; wanted": compiled(lambda g, x: g.node("matmul", x, x)),
    "'t' comes after 's', of which there are 2": compiled(
        lambda g, x: [g.node("silu", x, name=name, after=["s"] * (name == "t")) for name in "sst"]
    ),
    "'silu' writes x; wanted a state or a buffer, no input": compiled(lambda g, x: g.node("silu", x, into=[x])),
    r"silu: got memory for f32\[2, 24\]; wanted it for f32\[4, 24\]": compiled(
        lambda g, x: g.node("silu", x, into=[g.buffer("b", (2, DIM), "f32")])
    ),
    "wanted tensors of this graph": compiled(lambda g, x: g.node("silu", alone()[1])),
    r"silu: got f64\[0\]; wanted no empty axis": compiled(
        lambda g, x: g.node("silu", g.custom(print, [x], [], name="none"))
    ),
    "activations 'q8' with sync 'each'; wanted f32": compiled(lambda g, x: None, sync="each", activations="q8"),
    "'silu' comes after others, and there is no sync; wanted one of hazards, each, explicit": compiled(
        lambda g, x: [cs.silu(x), g.node("silu", x, after=["silu"])], sync=None
    ),
    "'copy' is a copy, and there is no sync": compiled(lambda g, x: g.copy(x, "cpu"), sync=None),
    "'silu' writes into given memory, and there is no sync": compiled(
        lambda g, x: g.node("silu", x, into=[g.buffer("b", (4, DIM), "f32")]), sync=None
    ),
    r"'silu' reads x\[1:3\], and there is no sync": compiled(lambda g, x: g.node("silu", g.rows(x, 1, 3)), sync=None),
    r"rows: got \[3, 5\) of f32\[4, 24\]": compiled(lambda g, x: g.rows(x, 3, 5)),
    "output 'y' is x\\[1:2\\]; wanted a whole tensor": compiled(lambda g, x: g.output("y", g.rows(x, 1, 2))),
    r"got the shape \(-4, 8\); wanted a list of integers, 0 or more": compiled(
        lambda g, x: g.buffer("b", (-4, 8), "f32")
    ),
    "got the shape 4; wanted a list": compiled(lambda g, x: g.reshape(x, 4)),
    r"rows: got \[0.0, 2.0\)": compiled(lambda g, x: g.rows(x, 0.0, 2.0)),
    "'silu' got after='ab'; wanted a list of tensors or names of nodes": compiled(
        lambda g, x: g.node("silu", x, after="ab")
    ),
    r"got after=the value 'a' f32\[4, 24\]; wanted a list": compiled(
        lambda g, x: g.node("silu", x, after=g.node("silu", x, name="a"))
    ),
    r"comes after the input 'x' f32\[4, 24\], which no node makes": compiled(lambda g, x: g.node("silu", x, after=[x])),
    "'silu' writes a; wanted a state or a buffer, no value": compiled(
        lambda g, x: g.node("silu", x, into=[g.node("silu", x, name="a")])
    ),
    "output 'y' is b, which no node writes": compiled(lambda g, x: g.output("y", g.buffer("b", (4, DIM), "f32"))),
    "no backend or device ''": compiled(lambda g, x: g.copy(x, "")),
    r"state 's': got \(4, 8\); wanted a TensorSpec": compiled(lambda g, x: g.state("s", (4, 8))),
    "memory for 'x' came as NoneType; wanted an array": compiled(lambda g, x: None, memory={"x": None}),
    "goes to a device or into a tensor": compiled(lambda g, x: g.copy(x)),
    "'silu' reads b, which no node before it writes": compiled(lambda g, x: g.node("silu", g.buffer("b", (4,), "f32"))),
    "memory for 'x' is on fake:0; wanted it on host": given_elsewhere,
    "memory for z, which the graph does not name": compiled(lambda g, x: None, memory={"z": X}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_one_clear_line(words: str) -> None:
    with pytest.raises(CamshaftError, match=words) as caught:
        REFUSED[words]()
    assert "\n" not in str(caught.value)


def test_an_op_without_a_kernel_where_it_was_placed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pass_for_null(FakeDevice("null", backend="null"), monkeypatch)
    monkeypatch.setattr(device, "refusal", lambda request: f"null has no {request.kernel.name}")
    graph, x = alone()
    graph.node("silu", graph.copy(x, "null"), on="null")
    with pytest.raises(CamshaftError, match=r"silu of .*no kernel can do it: .*null has no "):
        cs.compile(graph, sync="hazards", threads=1)
