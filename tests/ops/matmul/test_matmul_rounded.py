"""Products that round results as they store them: the bits of f32 sums rounded afterwards, and no memory for those sums."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from camshaft import dtypes
from camshaft.backends.cpu.device import cpu_device
from camshaft.eager.array_op import ArrayOp
from camshaft.eager.shapes.runners import HostRunner
from camshaft.eager.shapes.shaped_call import prepare
from camshaft.extent import Extent
from camshaft.graph import functions
from camshaft.graph.graph import Graph
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks import block_sizes, blocked
from camshaft.ops.matmul.matmul import OP
from camshaft.ops.spec import TensorSpec
from camshaft.plan.compile import compile
from camshaft.selection.select import select
from camshaft.validation.run import run_variant
from tests.support.quick import each_value

VARIANTS = {v.name: v for v in OP.variants}
BF16, F16 = ml_dtypes.bfloat16, np.float16
# Three parts of the depth for blocked and paired, ragged in every direction.
PARTED = {"packed": 0, "part": 128, "block": 32, "group": 64}
WAYS = (
    ("lanes", {}),
    ("tiled", {}),
    ("blocked", PARTED),
    ("blocked", {}),
    ("bf16_dot", PARTED),
    ("bf16_dot", PARTED | {"packed": block_sizes.PACKED_INSIDE}),
    ("bf16_dot", {}),
    ("skinny", {}),
)


def operands(m: int, k: int, n: int, dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(m + k + n)
    return [rng.normal(size=shape).astype(np.float32).astype(dtype) for shape in ((m, k), (k, n))]


def node(specs: tuple[TensorSpec, ...], attrs: dict) -> ops.NodeSpec:
    return ops.NodeSpec(specs, OP.infer(specs, attrs), attrs)


def both(arrays: list[np.ndarray], to: str, attrs: dict, rows: Extent | None = None) -> list[ops.NodeSpec]:
    """The product in f32, and rounded; `rows` in the place of a's."""
    a, b = (TensorSpec(x.shape, dtypes.as_dtype(x.dtype)) for x in arrays)
    specs = (a if rows is None else TensorSpec((rows, a.shape[1]), a.dtype), b)
    return [node(specs, attrs), node(specs, {**attrs, "to": to})]


@pytest.mark.parametrize(
    ("way", "stored", "shape"),
    each_value(WAYS, [(BF16, False), (BF16, True), (F16, False)], [(67, 530, 150), (3, 530, 131)]),
)
def test_the_bits_are_those_of_f32_sums_rounded(way, stored, shape) -> None:
    (name, values), (dtype, transposed) = way, stored
    a, b = operands(*shape, dtype)
    arrays, attrs = [a, b.T.copy() if transposed else b], {"transpose_b": True} if transposed else {}
    if transposed and values:
        values = {**values, "packed": block_sizes.PACKED}
    wide, short = both(arrays, dtypes.as_dtype(np.dtype(dtype)).name, attrs)
    device, variant = cpu_device("simd"), VARIANTS[name].with_values(values)
    absent = variant.supports(short, device)
    if absent is not None:
        assert variant.supports(wide, device) == absent
        return
    (sums,), (found,) = (run_variant(variant, each, device, arrays, {}) for each in (wide, short))
    assert found.dtype == dtype
    assert found.tobytes() == sums.astype(dtype).tobytes()


def test_rows_past_an_active_extent_are_left_alone_while_sums_wait() -> None:
    rows, (a, b) = Extent("rows", 67), operands(67, 300, 70, BF16)
    wide, short = both([a, b], "bf16", {}, rows)
    device = cpu_device("simd")
    variant = VARIANTS["blocked"].with_values(PARTED)
    (sums,), (found,) = (run_variant(variant, each, device, [a, b], {rows: 41}) for each in (wide, short))
    assert found[:41].tobytes() == sums[:41].astype(BF16).tobytes()
    assert len(set(found[41:].tobytes())) == 1


@pytest.mark.parametrize("shape", [(64, 64, 64), (4096, 16, 4096), (300, 2100, 500)])
def test_a_call_has_no_launch_and_no_memory_for_f32_sums(shape) -> None:
    wide, short = both(operands(*shape, BF16), "bf16", {})
    plain = select(OP, short, "simd").variant.build(wide, cpu_device("simd"))
    prepared = prepare(ArrayOp(OP, "simd"), operands(*shape, BF16), {})
    assert isinstance(prepared.run, HostRunner)
    assert prepared.computed == prepared.returned == (np.dtype(BF16),)
    assert len(prepared.run.steps) == len(plain.launches)
    assert sum(prepared.run.scratch_nbytes) <= sum(spec.nbytes for spec in plain.scratch)


def test_a_plans_arena_holds_the_rounded_result_alone() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((200, 64), (64, 300), (300, 8)))
    found = {}
    for to in ("f32", "bf16"):
        graph = Graph()
        x, w, v = (graph.input(name, given.shape, "f32") for name, given in (("a", a), ("b", b), ("c", c)))
        graph.output("y", functions.matmul(functions.matmul(x, w, to=to), v))
        with compile(graph, threads=1, backend="simd") as plan:
            found[to] = (
                plan.bound.memory_plan.arena_nbytes,
                len(plan.bound.schedule.thunks),
                plan.run(a=a, b=b, c=c)["y"],
            )
    assert found["f32"][0] - found["bf16"][0] == 2 * 200 * 300
    assert found["f32"][1] == found["bf16"][1]
    assert np.abs(found["f32"][2] - found["bf16"][2]).mean() < 2.0**-8 * np.abs(found["f32"][2]).mean()


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (512, 9000, 4864), (16, 4096, 4096), (5000, 20000, 33)])
def test_waiting_sums_fit_a_programs_scratch(shape, dtype) -> None:
    target = replace(cpu_device("simd"), lanes=16)
    m, k, n = shape
    short = node((TensorSpec((m, k), dtype), TensorSpec((k, n), dtype)), {"to": dtype.name})
    assert blocked.refusal(short, target, blocked.defaults(short, target)) is None
    made = blocked.BLOCKED.build(short, target).launches[-1].constants
    sums = made["panels"] * made["vectors"] * 16
    copied = (made["part"] + 32) * made["copied"]
    assert 4 * made["block"] * made["tile"] * (sums + copied) <= MAX_SCRATCH_NBYTES
