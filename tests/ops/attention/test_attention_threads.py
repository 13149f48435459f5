"""attention of few tokens on GPUs by threads: bits that do not depend on other tokens, long caches, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.backends.registry import device
from camshaft.dtypes import f32
from camshaft.emit.nvptx.module import simt_form
from camshaft.lang import ir, traversal
from camshaft.ops.attention.threads.split import VARIANT
from camshaft.ops.kernels.launch import signature
from camshaft.ops.masked.samples import sample
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import select
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.simulated_gpu import SimulatedDevice
from tests.support.quick import each_value, full, quick_of

OP = ops.get("attention")
GPUS = ["null:wgsl", "null:msl", "null:ptx"]


def run(given: ops.op.Sample, inputs=None, seed: int = 1) -> np.ndarray:
    """The variant's output for a sample, or for other inputs with the same number of keys."""
    arrays = given.inputs if inputs is None else inputs
    specs = tuple(TensorSpec(a.shape, s.dtype) for a, s in zip(arrays, given.specs or (), strict=True))
    node = node_of(OP, replace(given, inputs=tuple(arrays), specs=specs))
    assert VARIANT.supports(node, SimulatedDevice()) is None
    return run_variant(VARIANT, node, SimulatedDevice(seed=seed), arrays, given.extents)[0]


@pytest.mark.parametrize(("heads", "head_dim"), quick_of([((9, 3), 64), ((7, 1), 80), ((10, 2), 128)], [((7, 1), 80)]))
def test_a_token_has_the_bits_that_it_has_alone(heads, head_dim) -> None:
    given = sample(
        "three slots", [(i % 3, 50 + 37 * (i % 3) + i // 3) for i in range(9)], heads=heads, head_dim=head_dim
    )
    together = run(given)
    np.testing.assert_array_equal(run(given, seed=2), together)
    q, keys, values, positions, slots, table = given.inputs
    for i in (0, 4, 8):
        alone = q[i : i + 1], keys, values, positions[i : i + 1], slots[i : i + 1], table
        np.testing.assert_array_equal(run(given, alone)[0], together[i])


@pytest.mark.parametrize("position", [63, 64, full(127), full(128), 129, 4200])
@pytest.mark.parametrize("heads", [full((1, 1)), (5, 1)])
def test_a_split_of_several_tiles_keeps_the_greatest_score(position, heads) -> None:
    given = sample("long", [(0, 4200), (0, position)], heads=heads, head_dim=16, loudness=4.0)
    found = check_sample(OP, VARIANT, SimulatedDevice(), given)
    assert found.max_error <= found.tolerance


@pytest.mark.parametrize("head_dim", quick_of([1, 17, 63, 66, 126, 252], [17, 66]))
def test_heads_of_odd_sizes(head_dim) -> None:
    given = sample("odd", [(0, 70)], heads=(2, 1), head_dim=head_dim, dtype=f32)
    found = check_sample(OP, VARIANT, SimulatedDevice(), given)
    assert found.max_error <= found.tolerance


def test_large_scores_stay_finite_and_a_nan_stays_with_its_token() -> None:
    given = sample("loud", [(0, p) for p in range(60, 68)], heads=(9, 3), head_dim=64, loudness=1e4)
    assert np.isfinite(run(given)).all()
    q = given.inputs[0].copy()
    q[3] = np.nan
    out = run(given, (q, *given.inputs[1:]))
    assert np.isnan(out[3]).all()
    assert np.isfinite(np.delete(out, 3, axis=0)).all()


@pytest.mark.parametrize(("head_dim", "position"), each_value([128, 16], [20, 600]))
def test_an_infinite_value_is_not_nan(head_dim, position) -> None:
    given = sample("two", [(0, position), (0, position + 3)], heads=(2, 1), head_dim=head_dim)
    values, at = given.inputs[2].copy(), position - 2
    values[given.inputs[5][0, at // 16], 0, at % 16, 3:5] = np.inf, -np.inf
    out = run(given, (*given.inputs[:2], values, *given.inputs[3:])).reshape(2, 2, head_dim)
    np.testing.assert_array_equal(out[..., 3:5], np.broadcast_to([np.inf, -np.inf], (2, 2, 2)))
    assert np.isfinite(np.delete(out, [3, 4], axis=2)).all()


def test_a_program_waits_at_few_barriers() -> None:
    given = sample("one", [(0, 250)], heads=(9, 3), head_dim=64)
    node, target = node_of(OP, given), SimulatedDevice()
    build = VARIANT.build(node, target)
    counts = []
    for launch in build.launches:
        assert isinstance(launch, ops.op.Launch)
        form = simt_form(signature(launch, node, build).request(launch).trace(), launch.lanes or 0)
        counts.append(sum(isinstance(item, ir.Barrier) for item in traversal.walk(form.body)))
    assert counts == [5, 1]


@pytest.mark.parametrize("name", quick_of(GPUS, GPUS[:1]))
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, (9, 3), 64), full(16, (32, 8), 128)])
def test_gpus_choose_it_for_few_tokens(name, tokens, heads, head_dim) -> None:
    given = sample("some", [(0, p) for p in range(40, 40 + tokens)], heads=heads, head_dim=head_dim)
    assert select(OP, node_of(OP, given), name).variant.name == VARIANT.name


def test_others_are_refused_with_a_reason() -> None:
    def why(target=None, **changes) -> str:
        sizes = {"heads": (2, 1), "head_dim": 64} | changes
        places = [(0, p) for p in range(sizes.pop("tokens", 1))]
        asked: NodeSpec = node_of(OP, sample("some", places, **sizes))
        return VARIANT.supports(asked, target or device("null:ptx")) or ""

    assert why() == ""
    assert "threads of a workgroup" in why(cpu_device())
    assert "at most 16 tokens; got 17" in why(tokens=17)
    assert "got codes, i8" in why(form="Q8_0")
    assert "at most 256 columns" in why(head_dim=320)
    assert "at most 64 columns" in why(head_dim=65)
    assert "bytes of workgroup memory; got 2048" in why(SimulatedDevice(limits={"workgroup_memory": 2048}))
