"""camshaft.<op> is one function: computed at once on arrays, a node where a tensor is among its inputs."""

from __future__ import annotations

import timeit
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.backends import registry
from camshaft.errors import ShapeError

A, B = (np.random.default_rng(i).normal(size=(3, 4)).astype(np.float32) for i in (1, 2))


def test_arrays_are_computed_at_once_as_the_table_does() -> None:
    assert np.array_equal(cs.add(A, B), A + B)
    assert np.array_equal(cs.add(A, 1), A + np.float32(1))
    assert cs.add(2, 3) == 5
    assert np.array_equal(cs.sum(A, axis=1), cs.table().sum(A, axis=1))
    out = np.empty_like(A)
    assert cs.multiply(A, B, out=out) is out
    assert cs.multiply(A, B, out) is out
    assert np.array_equal(out, A * B)
    np.testing.assert_allclose(cs.rms_norm(A, B[0], eps=1e-5), cs.table().rms_norm(A, B[0], eps=1e-5))
    assert np.array_equal(cs.concat(A, B, axis=1), np.concatenate((A, B), 1))
    assert np.array_equal(cs.slice(A, starts=(1, 0), sizes=(2, 2), steps=(1, 3)), A[1:3, ::3])


class Foreign:
    """An array of another library."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return B


def test_a_tensor_among_the_inputs_makes_a_node_and_the_others_constants() -> None:
    graph = cs.Graph()
    x = graph.input("x", (3, 4), "f32")
    graph.output("y", cs.add(Foreign(), cs.multiply(2, cs.subtract(x, A), name="twice")))
    assert [node.name for node in graph.nodes] == ["subtract", "twice", "add"]
    with cs.compile(graph) as plan:
        np.testing.assert_allclose(plan.run(x=B)["y"], B + 2 * (B - A), rtol=1e-6)


def test_numpys_axis_is_known_on_tensors_too() -> None:
    graph = cs.Graph()
    x = graph.input("x", (3, 4), "f32")
    assert cs.sum(x, axis=1).shape == cs.sum(x, axes=(1,)).shape == (3,)
    assert cs.argmax(x, axis=0).shape == (4,)


def test_the_override_that_holds_here_is_obeyed() -> None:
    with cs.backend("scalar"):
        assert np.array_equal(cs.maximum(A, B), np.maximum(A, B))
        assert cs.table().maximum.__self__.override == "scalar"
        assert cs.table().maximum.__self__._plain
    if registry.backend_named("metal").absent():
        with pytest.raises(cs.CamshaftError), cs.backend("metal"):
            cs.maximum(A, B)


def test_wrong_arguments_are_refused_in_both_forms() -> None:
    x = cs.Graph().input("x", (3, 4), "f32")
    for function in (lambda: cs.add(A, B, bogus=1), lambda: cs.add(x, B, bogus=1)):
        with pytest.raises(ShapeError, match="bogus"):
            function()
    with pytest.raises(TypeError):
        cs.add(A)
    with pytest.raises(AttributeError, match="no op 'tangle'"):
        cs.tangle(A)


def test_the_function_costs_little_more_than_the_tables() -> None:
    def best(code: str) -> float:
        return min(timeit.repeat(code, globals={"cs": cs, "table": cs.table, "a": A, "b": B}, number=2000, repeat=25))

    cs.add(A, B), cs.table().add(A, B)
    assert best("cs.add(a, b)") < 3 * best("table().add(a, b)")


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_are_moved_and_added_as_in_numpy(dtype: type) -> None:
    parts = np.random.default_rng(6).normal(size=(2, 3, 4, 5))
    z = (parts[0] + 1j * parts[1]).astype(dtype)
    calls = (
        ("add", (z, 1j), {}, z + 1j),
        ("multiply", (2.0, z), {}, 2.0 * z),
        ("copy", (z[:, 0, ::2],), {}, z[:, 0, ::2]),
        ("transpose", (z[:, ::2],), {"axes": (1, -1, 0)}, z[:, ::2].transpose(1, -1, 0)),
        ("slice", (z,), {"starts": (2, 0, 1), "sizes": (2, None, 2), "steps": (-1, 1, 2)}, z[2:0:-1, :, 1:4:2]),
        ("concat", (z, z[:, :, :2]), {"axis": -1}, np.concatenate([z, z[:, :, :2]], -1)),
        ("gather", (z, np.array([2, 0])), {}, z[[2, 0]]),
    )
    for name, inputs, attrs, wanted in calls:
        graph = cs.Graph()
        made = [
            graph.input(f"x{i}", x.shape, x.dtype) if isinstance(x, np.ndarray) else x for i, x in enumerate(inputs)
        ]
        tensor = getattr(cs, name)(*made, **attrs)
        assert (tensor.shape, tensor.dtype.numpy) == (wanted.shape, wanted.dtype), name
        found = getattr(cs, name)(*inputs, **attrs)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, wanted)
    for name, attrs in (("concat", {"axis": 3}), ("concat", {"axis": -4}), ("transpose", {"axes": (0, 1, 3)})):
        with pytest.raises(ShapeError, match=r"ax[ei]s"):
            getattr(cs, name)(*((z, z) if name == "concat" else (z,)), **attrs)
