"""graph.custom: a caller's function, Python or native, as a node of plans on one device and on several."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.backends.cpu.compile import compile_module, load_object
from camshaft.dtypes import f32
from camshaft.errors import PlanError, ShapeError
from camshaft.ops.spec import TensorSpec
from tests.support.devices.fake_device import FakeDevice, Fakes

TOKENS = cs.Extent("tokens", 32)
X = np.random.default_rng(2).normal(size=(32, 8)).astype(np.float32)

# Program p doubles row p of 8 floats; args: in, out, number of active rows.
DOUBLE_ROWS = """
define void @double_rows(ptr %args, i64 %first, i64 %last) {
entry:
  %in = load ptr, ptr %args
  %out.at = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %out.at
  br label %head
head:
  %p = phi i64 [ %first, %entry ], [ %next, %body ]
  %more = icmp slt i64 %p, %last
  br i1 %more, label %body, label %done
body:
  %from = getelementptr <8 x float>, ptr %in, i64 %p
  %x = load <8 x float>, ptr %from, align 4
  %y = fadd <8 x float> %x, %x
  %to = getelementptr <8 x float>, ptr %out, i64 %p
  store <8 x float> %y, ptr %to, align 4
  %next = add i64 %p, 1
  br label %head
done:
  ret void
}
"""


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(FakeDevice("fake:0"), FakeDevice("fake:1")).install(monkeypatch)


def between(function: object, place: str | None, **options: Any) -> cs.Graph:
    """silu on `place`, then the function, then an add on `place`."""
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, 8), "f32")
    with graph.on(place):
        h = cs.silu(x)
        (y,) = graph.custom(function, [h], [((TOKENS, 8), "f32")], name="mine", **options)
        graph.output("y", cs.add(y, x))
    return graph


@pytest.mark.parametrize("place", [None, "fake:0"])
def test_a_python_function_sees_the_active_elements(place: str | None) -> None:
    shapes = []

    def double(x: np.ndarray, y: np.ndarray) -> None:
        shapes.append((x.shape, y.shape, x.flags.writeable))
        y[:] = 2 * x

    with cs.compile(between(double, place), threads=2) as plan:
        for n in (5, 32, 0):
            np.testing.assert_allclose(plan.run(x=X[:n])["y"], 2 * X[:n] / (1 + np.exp(-X[:n])) + X[:n], atol=1e-5)
        thunk = next(t for t in plan.bound.schedule.thunks if t.op == "mine")
        assert (thunk.kind, thunk.device) == ("host", "host")
        assert "mine: mine/function (host), 1 programs; the caller's own function" in plan.explain()
        copies = [t.name for t in plan.bound.schedule.thunks if t.kind == "copy"]
        assert ("silu → host" in copies) == ("mine → fake:0" in copies) == (place is not None)
    assert shapes == [((n, 8), (n, 8), False) for n in (5, 32, 0)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("place", [None, "fake:0"])
def test_native_code_is_split_among_workers(place: str | None, threads: int) -> None:
    library = load_object(compile_module(DOUBLE_ROWS))
    address = library.address("double_rows")
    functions = (address, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address))
    for function in functions:
        with cs.compile(between(function, place, programs=TOKENS), threads=threads) as plan:
            thunk = next(t for t in plan.bound.schedule.thunks if t.op == "mine")
            assert (thunk.kind, thunk.programs.bound, len(thunk.extents)) == ("kernel", 32, 1)
            for n in (7, 32):
                np.testing.assert_allclose(plan.run(x=X[:n])["y"], 2 * X[:n] / (1 + np.exp(-X[:n])) + X[:n], atol=1e-5)


def test_a_function_updates_a_state_that_a_device_reads() -> None:
    def count(x: np.ndarray, total: np.ndarray) -> None:
        total += x

    graph = cs.Graph()
    x, total = graph.input("x", (4, 8), "f32"), graph.state("total", TensorSpec((4, 8), f32))
    assert graph.custom(count, [x, total], [], updates=[1], name="count") == ()
    with graph.on("fake:0"):
        graph.output("twice", cs.add(total, total))
    with cs.compile(graph, threads=1) as plan:
        plan.run(x=X[:4])
        np.testing.assert_allclose(plan.run(x=X[:4])["twice"], 4 * X[:4], rtol=1e-6)
        np.testing.assert_allclose(plan.states["total"], 2 * X[:4], rtol=1e-6)


def test_what_a_function_raises_comes_out_of_run() -> None:
    def fail(x: np.ndarray, y: np.ndarray) -> None:
        raise KeyError("not today")

    with cs.compile(between(fail, "fake:0"), threads=1) as plan, pytest.raises(KeyError, match="not today"):
        plan.run(x=X)


@pytest.mark.parametrize("function", [lambda x, y: x * 2, lambda x, y: (None, x + 1), lambda x, y: x.sum()])
def test_what_a_function_returns_instead_of_writing_it_is_no_silent_loss(function: Any) -> None:
    with cs.compile(between(function, None), threads=1) as plan, pytest.raises(PlanError, match="to write its outputs"):
        plan.run(x=X)


def test_a_function_may_return_what_it_wrote() -> None:
    with cs.compile(between(lambda x, y: np.multiply(x, 2, out=y), None), threads=1) as plan:
        written = plan.run(x=X)
    with cs.compile(between(lambda x, y: np.copyto(y, x * 2), None), threads=1) as plan:
        copied = plan.run(x=X)
    assert all(np.array_equal(written[name], copied[name]) for name in copied)


def test_a_function_pointer_of_cffi_is_native_code() -> None:
    ffi = pytest.importorskip("cffi").FFI()
    ffi.cdef("double sin(double);")
    found = ffi.dlopen(None).sin
    graph, x = graph_and_input()
    graph.custom(found, [x], [x.spec], programs=4)  # never run: it has another signature
    call = graph.nodes[-1].op.call
    assert (call.address, call.programs) == (int(ffi.cast("uintptr_t", found)), 4)


def test_no_pass_takes_a_function_away() -> None:
    calls = []
    graph = cs.Graph()
    x = graph.input("x", (4, 8), "f32")
    h = cs.add(x, x)
    (seen,) = graph.custom(lambda a, b: calls.append(1) or b.__setitem__(..., a), [h], [h.spec], name="seen")
    graph.output("y", cs.rms_norm(seen, np.ones(8, np.float32), eps=1e-5))
    with cs.compile(graph, activations="q8", threads=1) as plan:
        plan.run(x=X[:4])
        assert [t.op for t in plan.bound.schedule.thunks] == ["add", "seen", "rms_norm"]
    assert calls == [1]


def graph_and_input() -> tuple[cs.Graph, cs.Tensor]:
    graph = cs.Graph()
    return graph, graph.input("x", (4, 8), "f32")


@pytest.mark.parametrize(
    ("function", "outputs", "options", "words"),
    [
        (3.5, [((4, 8), "f32")], {}, "mine: got 3.5; wanted a function, or native code"),
        (print, [((4, 8), "f99")], {}, "f99"),
        (print, [7], {}, r"mine: got the output 7; wanted a TensorSpec or \(shape, dtype\)"),
        (print, [], {"updates": [1]}, r"mine: got updates \[1\]; wanted indexes of its 1 inputs"),
        (print, [], {"updates": [0]}, "mine: updates input 0, x, in place; wanted a state"),
        (print, [((-4, 8), "f32")], {}, r"mine's output: got the shape \(-4, 8\); wanted a list of integers"),
        (print, [], {"programs": 4}, "mine: got 4 programs; a Python function runs once"),
        (print, [], {"programs": 1.5}, "mine: got 1.5 programs; wanted a whole number or an Extent"),
        (0, [], {}, "mine: got address 0x0 with 1 programs"),
    ],
)
def test_what_cannot_be_a_node_is_refused(
    function: object, outputs: list[Any], options: dict[str, Any], words: str
) -> None:
    graph, x = graph_and_input()
    with pytest.raises(ShapeError, match=words):
        graph.custom(function, [x], outputs, name="mine", **options)


def test_inputs_of_another_graph_or_none_are_refused() -> None:
    graph, _ = graph_and_input()
    for other in (graph_and_input()[1], X):
        with pytest.raises(ShapeError, match=r"mine: got .*wanted tensors of this graph"):
            graph.custom(print, [other], [], name="mine")
