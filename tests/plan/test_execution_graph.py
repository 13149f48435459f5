"""ExecutionGraph: the bytes of the canonical plan under every sync strategy, and what is refused, in one line each."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import interpret, memory_for, thunk_lists

import camshaft as cs
from camshaft.backends import registry
from camshaft.dtypes import f32
from camshaft.errors import CamshaftError
from camshaft.ops.spec import TensorSpec
from camshaft.plan.execution_node import ExecutionNode
from camshaft.plan.hazards import hazards
from camshaft.plan.memory import make_schedule
from camshaft.plan.node_order import SYNCS, order_nodes
from camshaft.plan.schedule import Lifetime, Thunk
from tests.support.fake_device import FakeDevice, Fakes, pass_for_null
from tests.support.needs import require

DIM = 24
TOKENS = cs.Extent("tokens", 40)
RNG = np.random.default_rng(5)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(FakeDevice("fake:0"), FakeDevice("fake:1")).install(monkeypatch)


def canonical(n: int) -> bytes:
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32")
    h = cs.silu(cs.matmul(cs.rms_norm(x, W, eps=1e-5), M, transpose_b=True))
    graph.output("y", cs.add(h, x))
    with cs.compile(graph, backend="scalar", threads=1) as plan:
        return plan.run(x=X[:n])["y"].tobytes()


def placed(places: tuple[str, str, str, str]) -> cs.ExecutionGraph:
    """The same block, every node on its own device, copies where values cross, all dependencies stated."""
    graph = cs.ExecutionGraph()
    x = graph.input("x", (TOKENS, DIM), "f32")
    seats: dict[tuple[object, str], ExecutionNode] = {}

    def at(value: cs.Tensor | ExecutionNode, home: str, device: str) -> cs.Tensor | ExecutionNode:
        hosts = ("cpu:scalar", "cpu")
        if home == device or (home in hosts and device in hosts):
            return value
        if (value, device) not in seats:
            after = [value] if isinstance(value, ExecutionNode) else []
            if home not in hosts and device not in hosts:
                value = at(value, home, "cpu")
                after = [value]
            seats[value, device] = graph.copy(value, device, after=after)
        return seats[value, device]

    def node(op: str, place: int, value: cs.Tensor | ExecutionNode, home: str, *more: object, **attrs: object):
        here = at(value, home, places[place])
        return graph.node(op, here, *more, device=places[place], after=asked(here, *more), **attrs)

    h = node("rms_norm", 0, x, "cpu", W, eps=1e-5)
    h = node("matmul", 1, h, places[0], M, transpose_b=True)
    h = node("silu", 2, h, places[1])
    h = node("add", 3, h, places[2], at(x, "cpu", places[3]))
    graph.output("y", at(h, places[3], "cpu"))
    return graph


def asked(*operands: object) -> list[ExecutionNode]:
    return [operand for operand in operands if isinstance(operand, ExecutionNode)]


PLACES = [
    ("cpu:scalar",) * 4,
    ("fake:0",) * 4,
    ("fake:0", "cpu:scalar", "fake:1", "fake:0"),
    ("fake:1", "fake:0", "cpu:scalar", "fake:1"),
]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("sync", SYNCS)
def test_every_strategy_and_place_gives_the_bytes_of_the_canonical_plan(places: tuple, sync: str) -> None:
    with placed(places).compile(sync=sync, threads=2) as plan:
        for n in (40, 7, 0):
            assert plan.run(x=X[:n])["y"].tobytes() == canonical(n)
        assert plan.submit(x=X[:5]).result(30)["y"].tobytes() == canonical(5)


def test_a_graph_over_the_cpu_and_webgpu_agrees_with_the_cpu() -> None:
    reason = registry.backend_named("webgpu").absent()
    require(reason is None, f"webgpu: {reason}")
    wanted = np.frombuffer(canonical(7), np.float32).reshape(7, DIM)
    for sync in SYNCS:
        with placed(("webgpu", "cpu", "webgpu", "cpu")).compile(sync=sync, threads=2) as plan:
            plan.run(x=-X)
            np.testing.assert_allclose(plan.run(x=X[:7])["y"], wanted, atol=1e-5)
            assert sum(t.kind == "copy" for t in plan.bound.schedule.thunks) == 4


def branches(**options: object) -> tuple[cs.ExecutionGraph, dict[str, ExecutionNode]]:
    """Two independent branches a1 -> a2 and b1 -> b2 and their sum, on the CPU."""
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    nodes = {}
    for branch in "ab":
        nodes[f"{branch}1"] = graph.node("silu", x, name=f"{branch}1")
        nodes[f"{branch}2"] = graph.node("silu", nodes[f"{branch}1"], name=f"{branch}2", after=[f"{branch}1"])
    nodes["sum"] = graph.node("add", nodes["a2"], nodes["b2"], name="sum", after=["a2", "b2"], **options)
    graph.output("y", nodes["sum"])
    return graph, nodes


def waits(plan: cs.ExecutionPlan) -> dict[str, bool]:
    schedule = plan.bound.schedule
    return {thunk.name: wait for thunk, wait in zip(schedule.thunks, schedule.waits, strict=True)}


def test_strategies_wait_where_they_say() -> None:
    graph, _ = branches()
    for sync, wanted in {
        "hazards": {"a1": False, "a2": True, "b1": False, "b2": True, "sum": True},
        "each": {"a1": False, "a2": True, "b1": True, "b2": True, "sum": True},
        "explicit": {"a1": False, "a2": True, "b1": False, "b2": True, "sum": True},
    }.items():
        with graph.compile(sync=sync, threads=1) as plan:
            assert waits(plan) == wanted, sync


def test_a_dependency_that_no_byte_asks_for_makes_a_wait_and_moves_a_node() -> None:
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    late = graph.node("silu", x, name="late", after=["early"])
    early = graph.node("silu", x, name="early", device="cpu:scalar")
    for name, node in (("late", late), ("early", early)):
        graph.output(name, node)
    for sync in SYNCS:
        with graph.compile(sync=sync, threads=1) as plan:
            assert waits(plan) == {"early": False, "late": True}
            assert "after early" in plan.explain()


@pytest.mark.parametrize("sync", SYNCS)
def test_a_dependency_between_devices_is_waited_for(sync: str) -> None:
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    outs = {}
    before = ()
    for device in ("fake:0", "fake:1"):
        up = graph.copy(x, device, name=f"up {device}", after=before)
        made = graph.node("silu", up, device=device, name=f"silu {device}", after=[up])
        outs[device] = made
        before = (made,)
    for device, made in outs.items():
        graph.output(device, graph.copy(made, "cpu", name=f"down {device}", after=[made, *outs.values()]))
    with graph.compile(sync=sync, threads=1) as plan:
        first, second, *_ = plan.bound.segments
        assert (first.device, second.device, second.after) == ("fake:0", "fake:1", (0,))
        y = plan.run(x=X[:4])
        assert y["fake:0"].tobytes() == y["fake:1"].tobytes() != X[:4].tobytes()


def test_halves_of_a_buffer_are_written_side_by_side_and_read_after_both() -> None:
    graph = cs.ExecutionGraph()
    x = graph.input("x", (8, DIM), "f32")
    whole = graph.buffer("whole", (8, DIM), "f32")
    halves = [
        graph.node("silu", graph.rows(x, 4 * i, 4 * i + 4), into=[graph.rows(whole, 4 * i, 4 * i + 4)], name=f"half{i}")
        for i in range(2)
    ]
    sums = graph.node("add", whole, x, after=halves, name="sum")
    graph.output("y", sums)
    for sync, second in (("hazards", False), ("explicit", False), ("each", True)):
        with graph.compile(sync=sync, threads=2) as plan:
            assert waits(plan) == {"half0": False, "half1": second, "sum": True}
            y = plan.run(x=X[:8])["y"]
    np.testing.assert_allclose(y, X[:8] / (1 + np.exp(-X[:8])) + X[:8], atol=1e-5)


def test_states_copies_into_them_and_custom_functions() -> None:
    def count(total: np.ndarray, x: np.ndarray) -> None:
        total += x

    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    total = graph.state("total", TensorSpec((4, DIM), f32))
    there = graph.state("there", TensorSpec((4, DIM), f32), device="fake:0")
    counted = graph.custom(count, [total, x], [], updates=[0], name="count")
    kept = graph.copy(total, into=there, after=[counted])
    graph.output(
        "twice",
        graph.copy(graph.node("add", there, there, device="fake:0", after=[kept], name="sum"), "cpu", after=["sum"]),
    )
    for sync in SYNCS:
        with graph.compile(sync=sync, threads=1) as plan:
            plan.run(x=X[:4])
            assert np.array_equal(plan.run(x=X[:4])["twice"], 4 * X[:4])
            assert np.array_equal(plan.states["there"].read(), 2 * X[:4])


def test_inputs_and_outputs_on_a_device_are_the_callers(fakes: Fakes) -> None:
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32", device="fake:0")
    graph.output("y", graph.node("silu", x, device="fake:0"))
    with graph.compile(threads=1) as plan:
        plan.away["x"].write(X[:4])
        assert plan.run() == {}
        np.testing.assert_allclose(plan.away["y"].read(), X[:4] / (1 + np.exp(-X[:4])), atol=1e-5)
        assert plan.bound.segments[0].device == "fake:0"


def missing_dependency() -> None:
    graph, nodes = branches()
    c1 = graph.node("silu", graph.input("z", (4, DIM), "f32"), name="c1")
    graph.output("w", graph.node("multiply", c1, nodes["a1"], name="c2", after=[c1]))
    graph.compile(sync="explicit")


def read_reversed() -> None:
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    made = graph.node("silu", x, name="made", after=["reader"])
    graph.output("made", made)
    graph.output("y", graph.node("silu", made, name="reader"))
    graph.compile(sync="explicit")


def circle() -> None:
    graph = cs.ExecutionGraph()
    x = graph.input("x", (4, DIM), "f32")
    a = graph.node("silu", x, name="a", after=["c"])
    b = graph.node("silu", a, name="b")
    graph.node("silu", x, name="c", after=[b])
    graph.compile()


def alone() -> tuple[cs.ExecutionGraph, cs.Tensor]:
    graph = cs.ExecutionGraph()
    return graph, graph.input("x", (4, DIM), "f32")


def compiled(build: Callable[[cs.ExecutionGraph, cs.Tensor], object], **options: object) -> Callable[[], object]:
    def make() -> object:
        graph, x = alone()
        build(graph, x)
        return graph.compile(**options)

    return make


REFUSED: dict[str, Callable[[], object]] = {
    r"'c2' reads bytes \[0, 384\) of 'a1', which 'a1' writes, and nothing orders them": missing_dependency,
    "'reader' reads made, which no node before it writes": read_reversed,
    "the order goes in a circle: 'a' after 'c' after 'b' after 'a'": circle,
    "'s' after 's'": compiled(lambda g, x: g.node("silu", x, name="s", after=["s"])),
    "'silu' comes after 'gone', which is no node of it; it has silu": compiled(
        lambda g, x: g.node("silu", x, after=["gone"])
    ),
    "comes after 'a1' of another graph": compiled(lambda g, x: g.node("silu", x, after=[branches()[1]["a1"]])),
    "'silu' runs on fake:0, but its input 0, x lies on host; wanted a copy there": compiled(
        lambda g, x: g.node("silu", x, device="fake:0")
    ),
    "'silu' runs on host, but its input 0, copy lies on fake:0": compiled(
        lambda g, x: g.node("silu", g.copy(x, "fake:0"))
    ),
    "'silu' runs on host, but its output there lies on fake:0": compiled(
        lambda g, x: g.node("silu", x, into=[g.buffer("there", (4, DIM), "f32", "fake:0")])
    ),
    "'copy.2' goes from fake:0 to fake:1; wanted two copies, by way of the cpu": compiled(
        lambda g, x: g.copy(g.copy(x, "fake:0"), "fake:1")
    ),
    "got h\\[1:3\\] at byte 96; wanted a multiple of 256": compiled(
        lambda g, x: g.node("silu", g.rows(g.copy(x, "fake:0", name="h"), 1, 3), device="fake:0")
    ),
    "no backend or device 'gpu'": compiled(lambda g, x: g.node("silu", x, device="gpu")),
    "got sync 'never'; wanted one of hazards, each, explicit": compiled(lambda g, x: None, sync="never"),
    "no op 'sill'; wanted one of rms_norm": compiled(lambda g, x: g.node("sill", x)),
    "matmul: got .*; wanted": compiled(lambda g, x: g.node("matmul", x, x)),
    "a node 's' already": compiled(lambda g, x: [g.node("silu", x, name="s") for _ in "12"]),
    "'silu' writes x; wanted a state or a buffer, no input": compiled(lambda g, x: g.node("silu", x, into=[x])),
    r"silu: got memory for f32\[2, 24\]; wanted it for f32\[4, 24\]": compiled(
        lambda g, x: g.node("silu", x, into=[g.buffer("b", (2, DIM), "f32")])
    ),
    "wanted a tensor or node of this execution graph": compiled(lambda g, x: g.node("silu", alone()[1])),
    r"wanted its node\('silu', \.\.\.\)": compiled(lambda g, x: cs.silu(x)),
    "'none' has 0 outputs; wanted a node with one": compiled(
        lambda g, x: g.node("silu", g.custom(print, [x], [], name="none"))
    ),
    r"rows: got \[3, 5\) of f32\[4, 24\]": compiled(lambda g, x: g.rows(x, 3, 5)),
    "output 'y' is x\\[1:2\\]; wanted a whole tensor": compiled(lambda g, x: g.output("y", g.rows(x, 1, 2))),
    "goes to a device or into a tensor": compiled(lambda g, x: g.copy(x)),
    "'silu' reads b, which no node before it writes": compiled(lambda g, x: g.node("silu", g.buffer("b", (4,), "f32"))),
    "memory for z, which it does not name": compiled(lambda g, x: None, memory={"z": X}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_one_clear_line(words: str) -> None:
    with pytest.raises(CamshaftError, match=words) as caught:
        REFUSED[words]()
    assert "\n" not in str(caught.value)


def test_an_op_without_a_kernel_where_it_was_placed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pass_for_null(FakeDevice("null", backend="null"), monkeypatch)
    monkeypatch.setattr(device, "refusal", lambda kernel, *args: f"null has no {kernel.name}")
    graph, x = alone()
    graph.node("silu", graph.copy(x, "null"), device="null")
    with pytest.raises(CamshaftError, match=r"silu of .*no kernel can do it: .*null has no "):
        graph.compile(threads=1)


def ordered(thunks: list[Thunk], keep: Callable[[int, int], bool]) -> list[tuple[str, list[str]]]:
    """Each thunk as a node after all earlier ones that it conflicts with, as far as `keep` has it."""
    after: list[set[int]] = [set() for _ in thunks]
    for hazard in hazards([thunk.uses for thunk in thunks]):
        if keep(hazard.first, hazard.second):
            after[hazard.second].add(hazard.first)
    return [(t.name, [thunks[i].name for i in sorted(earlier)]) for t, earlier in zip(thunks, after, strict=True)]


@given(thunk_lists(), st.sampled_from(SYNCS), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_any_order_that_the_strategy_allows_gives_the_same_bytes(thunks: list[Thunk], sync: str, seed: int) -> None:
    """The nodes come shuffled; their dependencies alone, or with bytes, bring back an order that gives program order's bytes."""
    nodes = ordered(thunks, lambda a, b: True)
    shuffled = list(range(len(thunks)))
    if sync == "explicit":
        random.Random(seed).shuffle(shuffled)
    order = order_nodes([nodes[i] for i in shuffled], [[thunks[i]] for i in shuffled], sync)
    line = [thunks[shuffled[number]] for number in order.numbers]
    schedule, memory = make_schedule(line, after=order.after, before=order.before)
    if order.before is not None:
        assert all(order.before[i] for i, wait in enumerate(schedule.waits) if wait), (
            "memory that is shared asks for no wait"
        )
    in_order = memory_for(schedule.buffers, None, 0)
    mixed = memory_for(schedule.buffers, memory.offsets, memory.arena_nbytes)
    for _ in range(2):
        interpret(thunks, [True] * len(thunks), in_order, lambda programs: None)
        interpret(line, schedule.waits, mixed, random.Random(seed).shuffle)
        for buffer in schedule.buffers:
            if buffer.lifetime is not Lifetime.TEMP:
                assert np.array_equal(in_order[buffer], mixed[buffer])


@given(thunk_lists(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_dependency_that_is_left_out_is_refused_where_no_other_way_orders_it(
    thunks: list[Thunk], data: st.DataObject
) -> None:
    pairs = [(a, name) for name, after in ordered(thunks, lambda a, b: True) for a in after]
    if not pairs:
        return
    gone = data.draw(st.sampled_from(pairs))
    number = {thunk.name: i for i, thunk in enumerate(thunks)}
    nodes = ordered(thunks, lambda a, b: (thunks[a].name, thunks[b].name) != gone)
    reached, todo = set(), [gone[1]]
    while todo:
        for earlier in nodes[number[todo.pop()]][1]:
            if earlier not in reached:
                reached.add(earlier)
                todo.append(earlier)
    items = [[thunk] for thunk in thunks]
    if gone[0] in reached:
        order_nodes(nodes, items, "explicit")
    else:
        with pytest.raises(CamshaftError, match=f"'{gone[1]}' .*which '{gone[0]}' .*nothing orders them"):
            order_nodes(nodes, items, "explicit")
