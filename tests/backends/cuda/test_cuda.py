"""The CUDA backend on a driver that is played: every op through it, graphs, errors in one line each. No GPU is needed."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cuda import device as cuda
from camshaft.backends.cuda import driver, kernel
from camshaft.backends.device import CopyCommand, LaunchCommand, Place
from camshaft.dtypes import f32
from camshaft.emit.target import GPU_TARGETS
from camshaft.errors import BackendError, MissingExtraError
from camshaft.lang import Array, CompileRequest, Tracer, ir
from camshaft.lang import kernel as a_kernel
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import check_sample, node_of
from tests.support.active_copies import copies_follow_an_extent
from tests.support.devices.played_cuda import played_driver
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


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A fake driver in place of the real one; cached answers about it are dropped afterwards."""
    yield played_driver(monkeypatch, tmp_path)
    cuda.absent.cache_clear()


@pytest.fixture
def device(fake):
    return cuda.make(0)


@a_kernel
def add_one(k: Tracer, x: Array, out: Array, *, block: int) -> None:
    # out[i] = x[i] + 1
    for i in k.lanes(k.program(0) * block, (k.program(0) + 1) * block):
        out[i] = x[i] + 1.0


def _compiled(device, n=256, scalar=None, block=64):
    arrays = (ir.ArrayParam("x", f32, (n,)), ir.ArrayParam("out", f32, (n,), True))
    grid = (ir.GridDim(n // block),) if scalar is None else (ir.GridDim(1, scalar, block),)
    return device.compile(CompileRequest(add_one, arrays, () if scalar is None else (scalar,), {"block": block}, grid))


def _places(*memories):
    return tuple(Place(m, 0, m.nbytes) for m in memories)


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
    code = _compiled(device, scalar="n")
    run = device.bind([LaunchCommand("k", code, _places(x, out), (0,), 1, ((0, 64),))], 1)
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
    run = device.bind([LaunchCommand("k", _compiled(device), _places(x, out), (), 4)], 0)
    run.submit([])
    run.wait()
    fake.calls.clear()
    run.submit([])
    run.wait()
    assert set(fake.calls) <= {"cuCtxSetCurrent", "cuGraphLaunch", "cuEventRecord", "cuEventSynchronize"}


def test_nothing_is_made_during_capture(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    given = np.ones(1024, np.uint8)
    device.bind(
        [CopyCommand("up", given, Place(x, 0, 1024)), LaunchCommand("k", _compiled(device), _places(x, out))], 0
    )
    inside = fake.calls[fake.calls.index("cuStreamBeginCapture") : fake.calls.index("cuStreamEndCapture")]
    assert not {name for name in inside if "Alloc" in name or "Module" in name or "Free" in name}


def test_commands_between_waits_are_branches_and_waits_join_them(device, fake) -> None:
    # out[i] = x + 1 three times from one source, side by side, then chained: any order that the edges allow is right
    code = _compiled(device)
    memories = [device.allocate(1024) for _ in range(6)]
    memories[0].write(np.zeros(1024, np.uint8))

    def command(source, destination, wait):
        return LaunchCommand("k", code, _places(memories[source], memories[destination]), (), 4, (), wait)

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
        LaunchCommand("k", _compiled(device), _places(x, out), (), 4),
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
        run = device.bind([LaunchCommand("k", _compiled(device), _places(x, out), (), 4)], 0)
    run.submit([])
    run.wait()
    assert (out.read().view(np.float32) == 1).all()
    assert "cuGraphLaunch" not in fake.calls


def test_timed_runs_have_a_time_for_each_command(device, fake) -> None:
    x, out = device.allocate(1024), device.allocate(1024)
    commands = [LaunchCommand("k", _compiled(device), _places(x, out), (), 4)] * 3
    run = device.bind(commands, 0, timed=True)
    assert run.elapsed_ns() is None
    run.submit([])
    run.wait()
    assert run.elapsed_ns() == (2000, 2000, 2000)
    run.close()


# --- memory and kernels -------------------------------------------------------------------------------------------------
def test_memory_is_zeroed_bounded_and_closed(device) -> None:
    memory = device.allocate(100)
    assert not memory.read().any()
    memory.write(np.full(4, 9, np.uint8), 96)
    assert memory.read(96).tolist() == [9] * 4
    with pytest.raises(BackendError, match=r"a write of bytes \[98, 102\) of 100"):
        memory.write(np.zeros(4, np.uint8), 98)
    with pytest.raises(BackendError, match=r"a place of bytes \[64, 128\) of 100"):
        device.bind([CopyCommand("c", Place(memory, 64, 64), Place(memory, 0, 64))], 0)
    memory.close()
    with pytest.raises(BackendError, match="was closed"):
        memory.read()


def test_out_of_memory_says_how_much(monkeypatch, tmp_path) -> None:
    played_driver(monkeypatch, tmp_path, memory=1 << 20)
    with pytest.raises(BackendError, match=r"cuda: no memory for 2097152 bytes; \d+ of its 1048576 bytes are free"):
        cuda.make(0).allocate(2 << 20)
    cuda.absent.cache_clear()


def test_ptx_is_kept_between_processes(device, fake, monkeypatch) -> None:
    _compiled(device)
    monkeypatch.setattr(kernel, "ptx_of", lambda *args: pytest.fail("the store has it"))
    assert _compiled(cuda.make(0)).lanes == 128


def test_the_driver_s_log_is_in_the_error(device, fake) -> None:
    def refuse(image, count, options, values):
        values[0][:15] = b"ptxas: nonsense"
        return fake.CUresult.CUDA_ERROR_INVALID_PTX

    fake.cuModuleLoadDataEx = refuse
    with pytest.raises(BackendError, match=r"kernel add_one: cuModuleLoadDataEx: invalid ptx .*: ptxas: nonsense"):
        _compiled(device)


def test_limits_refuse_kernels(device) -> None:
    arrays = (ir.ArrayParam("x", f32, (4096,)), ir.ArrayParam("out", f32, (4096,), True))
    request = CompileRequest(add_one, arrays, (), {"block": 2048}, (ir.GridDim(2),))
    wide = replace(request, lanes=2048)
    assert device.refusal(request) is None
    assert device.refusal(wide) == "a workgroup of 2048 threads; wanted at most 1024"
    with pytest.raises(BackendError, match="cannot have kernel add_one: a workgroup of 2048 threads"):
        device.compile(wide)


# --- absent ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"version": 11080}, "the NVIDIA driver is of CUDA 11.8; wanted 12.0 or newer"),
        ({"count": 0}, "the NVIDIA driver sees no GPU"),
    ],
    ids=["old driver", "no GPU"],
)
def test_absence_is_one_line(monkeypatch, tmp_path, facts, match) -> None:
    played_driver(monkeypatch, tmp_path, **facts)
    assert cuda.absent() == match
    assert [info.absent for info in cuda.devices()] == [match]
    with pytest.raises(BackendError, match=match):
        cuda.make(0)
    cuda.absent.cache_clear()


def test_gpus_that_are_too_old_or_not_there(monkeypatch, tmp_path) -> None:
    played_driver(monkeypatch, tmp_path, capability=(7, 5))
    assert cuda.devices()[0].absent == "compute capability 7.5; wanted 8.0 or newer"
    with pytest.raises(BackendError, match=r"'cuda' is absent: compute capability 7\.5"):
        cuda.make(0)
    with pytest.raises(BackendError, match="'cuda:3' is absent: the NVIDIA driver sees 1 GPUs"):
        cuda.make(3)
    cuda.absent.cache_clear()


def test_missing_driver_and_extra(monkeypatch) -> None:
    class NoDriver:
        def cuInit(self, flags):
            raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(driver, "bindings", NoDriver)
    assert "no NVIDIA driver is installed" in driver.absent_reason()

    def missing():
        raise MissingExtraError(driver.PACKAGE, driver.EXTRA, "the backend 'cuda'")

    monkeypatch.setattr(driver, "bindings", missing)
    assert "camshaft[cuda]" in driver.absent_reason()


def test_targets_follow_gpu_and_driver() -> None:
    named = {name: target.processor for name, target in GPU_TARGETS.items()}
    assert named == {name: name for name in GPU_TARGETS}
    for capability, version, wanted in (
        ((8, 0), 12000, "sm_80"),
        ((8, 9), 13000, "sm_80"),
        ((9, 0), 12000, "sm_90a"),
        ((10, 0), 12080, "sm_100"),
        ((10, 0), 12040, "sm_80"),
        ((12, 0), 13000, "sm_80"),
    ):
        assert cuda.target_of(capability, version).processor == wanted
