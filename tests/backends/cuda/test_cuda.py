"""The CUDA backend on a driver that is played: every op through it, graphs, copies and streams. No GPU is needed."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.device import CopyCommand, LaunchCommand, Place
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import check_sample, node_of
from tests.backends.cuda.cuda_kernels import compiled, places
from tests.support.active_copies import copies_follow_an_extent
from tests.support.samples import has_turn, usable

# In the quick run a tenth of the ops; tests/emit/test_simt.py has others' kernels.
CASES = [
    pytest.param(
        op,
        variant,
        id=f"{op.name}-{variant.name}",
        marks=[] if has_turn(op, "CUDA", variant) else [pytest.mark.full],
    )
    for op in ops.all_ops()
    for variant in op.variants
    if "cuda" in variant.backends
]
MOST_FLOPS = 1e5


# --- ops ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_ops_run_through_graphs(device, fake, op, variant) -> None:
    fit = usable(op, variant, device)
    few = [s for s in fit if op.flops(node_of(op, s)) <= MOST_FLOPS] or fit[:1]
    sample = next(s for s in few if not refusal_of(variant, node_of(op, s), device))
    checked = check_sample(op, variant, device, sample)
    assert checked.max_error <= checked.tolerance, sample.name
    assert "cuGraphLaunch" in fake.calls
    assert fake.calls.count("cuGraphInstantiate") == fake.calls.count("cuGraphExecDestroy")


# --- runs -------------------------------------------------------------------------------------------------------------
def test_one_graph_serves_every_length(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    x.write(np.arange(256, dtype=np.float32).view(np.uint8))
    code = compiled(device, scalar="n")
    run = device.bind([LaunchCommand("k", code, places(x, out), (0,), 1, ((0, 64),))], 1)
    for n, grid, updates in ((64, 1, 0), (256, 4, 1), (256, 4, 1), (100, 2, 2), (0, 1, 3)):
        out.write(np.zeros(1024, np.uint8))
        fake.launched.clear()
        run.submit([n])
        run.wait()
        assert fake.launched == [("add_one", grid)]
        assert fake.updates == updates
        got, done = out.read().view(np.float32), -(-n // 64) * 64
        np.testing.assert_array_equal(got[:done], np.arange(1, done + 1))
        assert not got[done:].any()
    assert fake.calls.count("cuGraphInstantiate") == 1
    run.close()


def test_a_run_allocates_compiles_and_captures_nothing(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    run = device.bind([LaunchCommand("k", compiled(device), places(x, out), (), 4)], 0)
    run.submit([])
    run.wait()
    fake.calls.clear()
    run.submit([])
    run.wait()
    assert set(fake.calls) <= {"cuCtxSetCurrent", "cuGraphLaunch", "cuEventRecord", "cuEventSynchronize"}


def test_nothing_is_made_during_capture(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    given = np.ones(1024, np.uint8)
    device.bind([CopyCommand("up", given, Place(x, 0, 1024)), LaunchCommand("k", compiled(device), places(x, out))], 0)
    inside = fake.calls[fake.calls.index("cuStreamBeginCapture") : fake.calls.index("cuStreamEndCapture")]
    assert not {name for name in inside if "Alloc" in name or "Module" in name or "Free" in name}


def test_commands_between_waits_are_branches_and_waits_join_them(device, fake) -> None:
    # out[i] = x + 1 three times from one source, side by side, then chained: any order that the edges allow is right
    code = compiled(device)
    memories = [device.allocate(1024) for _ in range(6)]
    memories[0].write(np.zeros(1024, np.uint8))

    def command(source, destination, wait):
        return LaunchCommand("k", code, places(memories[source], memories[destination]), (), 4, (), wait)

    links = [(0, 1, True), (0, 2, False), (0, 3, False), (1, 4, True), (4, 5, True)]
    run = device.bind([command(*link) for link in links], 0)
    for seed in range(8):
        fake.random.seed(seed)
        run.submit([])
        run.wait()
        tops = [m.read().view(np.float32)[0] for m in memories]
        assert tops == [0, 1, 1, 1, 2, 3]
    nodes = next(iter(fake.graphs.values()))
    assert [len(n.after) for n in nodes] == [0, 0, 0, 3, 1]


def test_uploads_are_read_at_submit_and_downloads_arrive_at_wait(device) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    given, got = np.zeros(1024, np.uint8), np.zeros(1024, np.uint8)
    commands = [
        CopyCommand("up", given, Place(x, 0, 1024)),
        LaunchCommand("k", compiled(device), places(x, out), (), 4),
        CopyCommand("down", Place(out, 0, 1024), got),
    ]
    run = device.bind(commands, 0)
    given.view(np.float32)[:] = 5
    run.submit([])
    given.view(np.float32)[:] = 7
    run.wait()
    assert (got.view(np.float32) == 6).all()
    run.submit([])
    run.submit([])
    run.wait()
    assert (got.view(np.float32) == 8).all()


@pytest.mark.parametrize("graph", [True, False])
def test_copies_follow_an_extent(device, fake, graph) -> None:
    if not graph:
        fake.fail["cuGraphInstantiate"] = "CUDA_ERROR_NOT_SUPPORTED"
    copies = copies_follow_an_extent(device, 6)
    with contextlib.nullcontext() if graph else pytest.warns(UserWarning, match="launch by launch"):
        sizes = [next(copies)]
    assert fake.copied[-3:] == sizes * 3
    for nbytes in copies:
        # the node of a graph copies one byte rather than none
        made = 3 if graph or nbytes else 0
        assert fake.copied[len(fake.copied) - made :] == [max(nbytes, 1)] * made
        sizes.append(nbytes)
    assert sizes == [240, 42, 6, 0, 78, 240]
    assert fake.updates == (15 if graph else 0), "no node is set anew whose size stays"


def test_a_failed_capture_is_reported_and_runs_launch_by_launch(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    fake.fail["cuGraphInstantiate"] = "CUDA_ERROR_NOT_SUPPORTED"
    with pytest.warns(UserWarning, match="launch by launch, as no graph was made: cuGraphInstantiate: not supported"):
        run = device.bind([LaunchCommand("k", compiled(device), places(x, out), (), 4)], 0)
    run.submit([])
    run.wait()
    assert (out.read().view(np.float32) == 1).all()
    assert "cuGraphLaunch" not in fake.calls


def test_timed_runs_have_a_time_for_each_command(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    commands = [LaunchCommand("k", compiled(device), places(x, out), (), 4)] * 3
    run = device.bind(commands, 0, timed=True)
    assert run.elapsed_ns() is None
    run.submit([])
    run.wait()
    assert run.elapsed_ns() == (2000, 2000, 2000)
    run.close()
