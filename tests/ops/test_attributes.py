"""Attributes and inputs of any kind: an op takes them or refuses them in a line, never by an error of Python's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.errors import CamshaftError, ShapeError
from camshaft.ops.op import Op
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import specs_of
from tests.support.samples import samples

ODD_VALUES = ("x", None, -1, 2.5, float("nan"), [1], (), {}, 1 << 70, b"a")


@pytest.mark.parametrize("name", sorted(ops.NAMES))
def test_odd_attributes_and_inputs_are_taken_or_refused_in_a_line(name: str) -> None:
    op = ops.get(name)
    sample = samples(name)[0]
    specs = specs_of(sample)
    tries = [(specs, {**sample.attrs, attr: value}) for attr in sample.attrs for value in ODD_VALUES]
    tries += [(other, sample.attrs) for other in ((), specs[:-1], specs + specs[:1], specs[::-1])]
    for given, attrs in (*tries, (specs, {})):
        made = outcome(op, given, attrs)
        assert "\n" not in made if isinstance(made, str) else all(isinstance(spec, TensorSpec) for spec in made)


@pytest.mark.parametrize("name", sorted(ops.NAMES))
def test_an_empty_axis_is_refused_in_a_line(name: str) -> None:
    op, sample = ops.get(name), samples(name)[0]
    specs = specs_of(sample)
    for i, spec in enumerate(specs):
        for axis in range(len(spec.shape)):
            empty = replace(spec, shape=(*spec.shape[:axis], 0, *spec.shape[axis + 1 :]))
            assert isinstance(outcome(op, (*specs[:i], empty, *specs[i + 1 :]), dict(sample.attrs)), str), (i, axis)


def outcome(op: Op, specs: tuple[TensorSpec, ...], attrs: dict[str, object]) -> tuple[TensorSpec, ...] | str:
    """What comes out, or what is said."""
    try:
        return op.outputs(specs, attrs)
    except CamshaftError as error:
        return str(error)


X, W = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4), np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "match"),
    [
        ("rms_norm", (X, W), {"eps": "x"}, "^rms_norm: got eps='x'; wanted a number$"),
        ("rms_norm", (X, W), {"eps": True}, "^rms_norm: got eps=True; wanted a number$"),
        ("rms_norm", (X, W), {"eps": 1e-5, "epsilon": 1}, "unexpected keyword argument 'epsilon'"),
        ("softcap", (X,), {"cap": None}, "^softcap: got cap=None; wanted a number$"),
        ("moe_softmax_topk", (X,), {"top_k": 2.0}, "^moe_softmax_topk: got top_k=2.0; wanted a whole number$"),
        ("sum", (X,), {"axis": 0, "keepdims": "no"}, "^sum: got keepdims='no'; wanted True or False$"),
    ],
)
def test_graphs_and_tables_refuse_an_attribute_in_one_way(
    name: str, inputs: tuple[np.ndarray, ...], attrs: dict[str, object], match: str
) -> None:
    graph = cs.Graph()
    tensor = graph.input("x", X.shape, "f32")
    for given in (inputs, (tensor, *inputs[1:])):
        with pytest.raises(ShapeError, match=match):
            getattr(cs, name)(*given, **attrs)


def test_a_size_for_which_there_is_no_memory_is_refused_by_name() -> None:
    row, column = np.broadcast_to(np.float32(0), (1, 1 << 30)), np.broadcast_to(np.float32(0), (1 << 30, 1))
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (
            lambda: cs.tile(X, reps=(10**9, 10**9)),
            r"^tile: got f32\[3000000000, 4000000000\] of 48000000000000000000 bytes; wanted at most",
        ),
        (
            lambda: cs.pad(X, pad_width=((0, 10**30), (0, 0))),
            r"^pad: the result f32\[10{29}3, 4\] needs 160{28}48 bytes",
        ),
        (
            lambda: cs.add(row, column),
            r"^add: the result f32\[1073741824, 1073741824\] needs 4611686018427387904 bytes",
        ),
    )
    for call, match in calls:
        with pytest.raises(MemoryError, match=match) as error:
            call()
        assert isinstance(error.value, CamshaftError)
    graph = cs.Graph()
    with pytest.raises(
        ShapeError, match=r"^input 'x': got f32\[4611686018427387904, 4\] of 73786976294838206464 bytes;"
    ):
        graph.input("x", (1 << 62, 4), "f32")
    x = graph.input("x", X.shape, "f32")
    with pytest.raises(MemoryError, match=r"^pad: got f32\[10{29}3, 4\] of 160{28}48 bytes; wanted at most"):
        cs.pad(x, pad_width=((0, 10**30), (0, 0)))


def test_activations_take_integers_as_exp_does() -> None:
    x = np.array([-2, 0, 3], np.int8)
    for name in ("leaky_relu", "elu", "hard_swish", "mish", "gelu", "softplus"):
        function, tensor = getattr(cs, name), cs.Graph().input("x", x.shape, "i8")
        assert function(x).dtype == cs.exp(x).dtype == function(tensor).dtype.numpy, name
        np.testing.assert_array_equal(function(x), function(x.astype(np.float16)))


def test_graphs_take_the_attributes_dtypes_and_axes_that_arrays_take() -> None:
    half, bf16 = X.astype(np.float16), X.astype("bfloat16")
    ids = np.array([[0, 1], [2, 3], [1, 1]], np.int32)
    calls = (
        ("rms_norm", (X, W), {"eps": np.float32(1e-5), "offset": np.int64(1)}),
        ("softmax", (X,), {"axis": 0}),
        ("layer_norm", (np.ones((4, 3), np.float16), np.ones(4, np.float32), W), {"eps": 1e-5, "axis": -2}),
        ("silu_multiply", (half, half), {}),
        ("norm_gate", (half, W.astype("bfloat16"), half), {"eps": 1e-5}),
        ("logit_bias", (bf16, ids, bf16[:, :2]), {}),
        ("softmax_sample", (bf16, np.ones(3, np.float32), *_settings()), {"draws": np.int32(2)}),
        ("moe_softmax_topk", (bf16,), {"top_k": 2}),
    )
    for name, inputs, attrs in calls:
        wanted = getattr(cs, name)(*inputs, **attrs)
        graph = cs.Graph()
        made = getattr(cs, name)(*(graph.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(inputs)), **attrs)
        for found, want in zip(*(y if isinstance(y, tuple) else (y,) for y in (made, wanted)), strict=True):
            assert (found.shape, found.dtype.numpy) == (want.shape, want.dtype), name


def _settings() -> tuple[np.ndarray, ...]:
    return np.ones(3, np.int32), np.ones(3, np.float32), np.zeros(3, np.float32), np.ones((3, 3), np.uint32)
