"""Benchmarks through the plan executor: what they run and on which inputs; timings are not checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops, tune
from camshaft.dtypes import f16, f32, i32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.quantized.packed.packing import interleaved
from camshaft.ops.spec import TensorSpec, bound
from camshaft.plan.memory.allocate import HUGE_PAGE
from camshaft.tune import inputs as cold
from camshaft.tune.benchmark import Candidate, benchmark_kernel, benchmark_round_robin, plan_of
from camshaft.tune.inputs import input_sets, inputs_for
from camshaft.tune.rounds import BenchmarkConfig
from tests.support.quick import full

QUICK = BenchmarkConfig(runs=3, least_runs=2, budget_s=0.1, sample_ns=20_000, warmup_s=0.01, threads=2)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last-level cache of 8 MB: copies that pass that of a server take half a gigabyte."""
    monkeypatch.setattr(cold, "last_cache_nbytes", lambda: 8 << 20)


def add(n: int) -> tuple[Op, NodeSpec]:
    x = TensorSpec((n,), f32)
    return ops.get("add"), NodeSpec((x, x), (x,), {})


def candidate(op: Op, node: NodeSpec) -> Candidate:
    return Candidate(op, node, op.variants[0], "simd")


@pytest.mark.parametrize("is_cold", [full(False), True])
def test_a_kernel_is_timed(is_cold: bool) -> None:
    timing = benchmark_kernel(candidate(*add(1 << 18)), config=BenchmarkConfig(**vars(QUICK) | {"cold": is_cold}))
    assert 0 < timing.min_ns <= timing.median_ns
    assert 2 <= len(timing.samples_ns) <= 3
    assert timing.uses >= 1


def test_several_are_timed_on_the_inputs_given() -> None:
    op, node = add(1000)
    args = [np.full(1000, 2.0, np.float32), np.full(1000, 3.0, np.float32)]
    timings = benchmark_round_robin([candidate(op, node)] * 2, args, QUICK)
    assert len(timings) == 2
    assert benchmark_round_robin([], args, QUICK) == []


def test_the_plan_of_a_candidate_computes_the_node_as_often_as_it_says() -> None:
    op, node = add(100)
    sets = input_sets(op, node, inputs_for(op, node), cold=False)
    with plan_of(candidate(op, node), sets, 5, 2) as plan:
        plan.bound.run()
        assert [t.op for t in plan.bound.schedule.thunks] == ["add"] * 5
        assert all(plan.bound.schedule.waits[1:])  # each use writes where the last one did


def test_constants_are_packed_before_the_samples() -> None:
    specs = TensorSpec((64, 32), f32), TensorSpec((48, 32), f32)
    op, attrs = ops.get("matmul"), {"transpose_b": True}
    plain = NodeSpec(specs, op.infer(specs, attrs), attrs)
    (blocked,) = (v for v in op.variants if v.name == "blocked")
    sets = input_sets(op, plain, inputs_for(op, plain), cold=False)
    for node, thunks in ((plain, 2), (replace(plain, packed=(1,)), 1)):
        with plan_of(Candidate(op, node, blocked, "simd"), sets, 3, 1) as plan:
            plan.bound.run()
            schedule = plan.bound.schedule
            assert len(schedule.thunks) == 3 * thunks
            assert all(schedule.waits[thunks::thunks])  # each use waits for the one before


def test_cold_uses_read_copies_that_pass_twice_the_last_cache() -> None:
    op, node = add(1 << 18)
    sets = input_sets(op, node, inputs_for(op, node), cold=True)
    addresses = {memory.ctypes.data for inputs in sets for memory in inputs}
    assert len(addresses) == 2 * len(sets)
    assert len(sets) * op.nbytes(node) >= cold.CACHES_READ * cold.last_cache_nbytes()


def test_small_inputs_stay_warm() -> None:
    x, w = TensorSpec((1, 512), f32), interleaved(TensorSpec((4096, 512), BLOCK_FORMATS["Q4_0"]))
    op = ops.get("quantized_matmul")
    node = NodeSpec((x, w), op.infer((x, w), {}), {})
    assert cold.large_inputs(node) == (1,)
    sets = input_sets(op, node, inputs_for(op, node), cold=True)
    assert len({id(inputs[0]) for inputs in sets}) == 1
    assert len({id(inputs[1]) for inputs in sets}) == len(sets) > 1


def test_large_inputs_are_in_huge_pages_as_weights_are() -> None:
    large, small = (TensorSpec((n,), f32) for n in (1 << 20, 1 << 10))
    assert cold.memory_of(np.ones(1 << 20, np.float32), large).ctypes.data % HUGE_PAGE == 0
    assert cold.memory_of(np.ones(1 << 10, np.float32), small).view(np.float32).sum() == 1 << 10


def test_copies_take_no_more_than_half_a_gigabyte() -> None:
    op, node = add(1 << 26)
    assert cold.n_copies(op, node) == 1


def test_inputs_that_index_stay_under_their_limits() -> None:
    for op in ops.all_ops():
        if not op.indexes or op.name in ("attention", "kv_cache_update", "kv_cache_quantize"):
            continue
        sample = next(iter(op.samples()))
        specs = sample.specs or tuple(TensorSpec(a.shape, i32 if a.dtype == np.int32 else f32) for a in sample.inputs)
        node = NodeSpec(specs, op.infer(specs, sample.attrs), sample.attrs)
        args = inputs_for(op, node)
        for index, limit in op.indexes.items():
            assert 0 <= args[index].min() <= args[index].max() < bound(limit(node)), op.name


def test_attention_is_measured_on_tokens_that_follow_each_other_in_one_slot() -> None:
    heads = {"heads": 4, "kv_heads": 2, "head_dim": 16, "scale": 0.25, "length": 128}
    cache, tokens = TensorSpec((16, 2, 16, 16), f16), 6
    places = (TensorSpec((tokens,), i32), TensorSpec((tokens,), i32), TensorSpec((2, 8), i32))
    op, specs = ops.get("attention"), (TensorSpec((tokens, 64), f32), cache, cache, *places)
    args = inputs_for(op, NodeSpec(specs, op.infer(specs, heads), heads))
    assert args[3].tolist() == list(range(58, 64))
    assert set(args[4].tolist()) == {0}
    assert sorted(args[5].reshape(-1).tolist()) == list(range(16))


def test_the_names_of_the_package_are_there() -> None:
    for name in tune.__all__:
        assert getattr(tune, name).__name__ == name
    with pytest.raises(AttributeError, match=r"camshaft\.tune has no 'abacus'"):
        tune.abacus  # noqa: B018
