"""What the table test cannot say of elementwise ops and reductions: how exact long sums are, and what shares a kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import f32
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant


def computed(name, *arrays, backend="simd", **attrs):
    op = ops.get(name)
    specs = tuple(TensorSpec(a.shape, f32) for a in arrays)
    node = NodeSpec(specs, op.infer(specs, attrs), attrs)
    return run_variant(op.variants[0], node, cpu_device(backend), arrays)[0]


@pytest.mark.full
@pytest.mark.parametrize("backend", ["scalar", "simd"])
def test_a_sum_of_ten_million_is_as_exact_as_numpys(backend):
    x = np.random.default_rng(0).random(10**7, np.float32)
    truth = math.fsum(x.tolist())
    ours = abs(float(computed("sum", x, backend=backend)) - truth)
    assert ours <= max(abs(float(x.sum()) - truth), truth * 2.0**-24)


def test_columns_are_summed_as_exactly():
    x = np.random.default_rng(1).random((10**6, 3), np.float32)
    truth = x.sum(0, dtype=np.float64)
    np.testing.assert_allclose(computed("sum", x, axes=0), truth, rtol=2.0**-23)


def test_operands_that_step_alike_are_one_axis():
    """A flat kernel serves any shape: what remains of equal shapes is one axis, of a bias a row."""
    from camshaft.ops.kernels.strides import iteration, strides_of

    def walked(*shapes):
        specs = [TensorSpec(s, f32) for s in shapes]
        return iteration(shapes[0], [strides_of(spec, shapes[0]) for spec in specs])

    flat = walked((2, 3, 5), (2, 3, 5))
    assert (flat.middle, flat.columns, flat.strides) == ((), 30, ((0, 1), (0, 1)))
    bias = walked((2, 3, 5), (5,))
    assert (bias.middle, bias.columns, bias.strides) == ((6,), 5, ((0, 5, 1), (0, 0, 1)))
    column = walked((2, 3, 5), (3, 1))
    assert (column.middle, column.columns) == ((2, 3), 5)
    tokens = Extent("tokens", 16)
    assert walked((tokens,), (tokens,)).columns == tokens
    assert walked((tokens, 5), (tokens, 5)).outer == tokens


def test_a_row_op_of_any_rank_needs_a_kernel_that_takes_inner():
    from camshaft.ops.norm.frame import row_op
    from camshaft.ops.norm.residual_norm import OP, one_row_per_program

    fields = {"name": "sums", "formula": "", "kernel": one_row_per_program, "inputs": {"x": "rc"}, "numpy": np.add}
    assert row_op(**fields, rank=2, flops=OP.flops, decompose=OP.decompose).name == "sums"
    with pytest.raises(ValueError, match="sums: its kernel takes no `inner`; wanted that, or rank=2"):
        row_op(**fields)


def test_a_row_op_takes_the_defaults_of_its_parameters():
    from camshaft.ops.norm import rms_norm
    from camshaft.ops.norm.frame import row_op
    from camshaft.ops.parameters import Attribute, Parameters

    op = row_op(
        name="unit_rms",
        formula="",
        kernel=rms_norm.one_row_per_program,
        inputs={"x": "rc", "w": "c"},
        numpy=rms_norm._reference,
        positive={"eps": 1e-5},
        finite={"offset": 1.0},
        parameters=Parameters("x w", (Attribute("eps", "float", 0.5), Attribute("offset", "float", 1.0))),
        flops=rms_norm.OP.flops,
        decompose=rms_norm.OP.decompose,
    )
    specs = TensorSpec((2, 8), f32), TensorSpec((8,), f32)
    assert op.infer(specs, {}) == (specs[0],)
    (launched,) = op.variants[0].build(NodeSpec(specs, (specs[0],), {}), cpu_device("simd")).launches
    assert (launched.constants["eps"], launched.constants["offset"]) == (0.5, 1.0)
    ones = np.ones((2, 8))
    np.testing.assert_allclose(op.reference([ones, ones[0]], {})[0], 2 * ones / np.sqrt(1.5))
    with pytest.raises(ShapeError, match=r"unit_rms: got 0\.0; wanted eps above 0"):
        op.infer(specs, {"eps": 0.0})
