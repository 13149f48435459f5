"""The Metal backend on a fake of PyObjC's module that runs kernels for real: order, copies, errors, what a run may do."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.device import CopyCommand, LaunchCommand, Place
from camshaft.backends.metal import api
from camshaft.backends.metal.device import absent, devices, make
from camshaft.dtypes import f32
from camshaft.errors import BackendError
from camshaft.lang import CompileRequest, ir, kernel
from tests.support.active_copies import ROWS, copies_follow_an_extent
from tests.support.devices.fake_metal import FakeDevice, FakeMetal, FakeOldOptions, forget, install
from tests.support.devices.metal_harness import have_compiler
from tests.support.needs import require


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


N = 200


@kernel
def doubled(k, x, out):
    for c in k.lanes(k.program(0) * 50, k.program(0) * 50 + 50):
        out[c] = x[c] + x[c]


@kernel
def shifted(k, x, out, by):
    for c in k.lanes(N):
        out[c] = x[c] + by.to(f32)


@pytest.fixture
def fake(monkeypatch):
    """The one GPU of a fake Metal."""
    made = FakeDevice()
    with monkeypatch.context() as patch:
        install(patch, FakeMetal(made))
        yield made
    forget()


def compiled(device, function=doubled, grid=4, scalars=()):
    params = (ir.ArrayParam("x", f32, (N,)), ir.ArrayParam("out", f32, (N,), True))
    return device.compile(CompileRequest(function, params, tuple(scalars), {}, (ir.GridDim(grid),)))


def memory_of(device, values):
    memory = device.allocate(4 * len(values))
    memory.write(values.view(np.uint8))
    return memory


def floats(memory):
    return memory.read().view(np.float32)


def whole(memory):
    return Place(memory, 0, memory.nbytes)


X = np.arange(N, dtype=np.float32)


def test_waits_order_launches_within_one_command_buffer(fake):
    device = make(0)
    code, a, b, c = compiled(device), memory_of(device, X), device.allocate(4 * N), device.allocate(4 * N)
    commands = [LaunchCommand("one", code, (whole(a), whole(b)), constant=4)]
    commands += [LaunchCommand("two", code, (whole(b), whole(c)), constant=4)]
    run = device.bind(commands, 0)
    before = fake.calls.copy()
    run.submit([])
    run.wait()
    np.testing.assert_array_equal(floats(c), 4 * X)
    assert fake.calls - before == {"command_buffer": 1, "commit": 1, "dispatch": 2, "barrier": 1}


def test_launches_that_do_not_wait_share_a_stretch(fake):
    device = make(0)
    code, a = compiled(device), memory_of(device, X)
    outs = [device.allocate(4 * N) for _ in range(3)]
    commands = [LaunchCommand("n", code, (whole(a), whole(o)), constant=4, wait=False) for o in outs]
    run = device.bind(commands, 0)
    run.submit([])
    run.wait()
    assert fake.calls["barrier"] == 0
    for out in outs:
        np.testing.assert_array_equal(floats(out), 2 * X)


def test_run_time_scalars_and_extents_come_anew_with_each_run(fake):
    device = make(0)
    add, twice = compiled(device, shifted, 1, ("by",)), compiled(device)
    a, b, c = memory_of(device, X), device.allocate(4 * N), device.allocate(4 * N)
    commands = [LaunchCommand("shift", add, (whole(a), whole(b)), scalars=(1,))]
    commands += [LaunchCommand("some", twice, (whole(b), whole(c)), constant=1, factors=((0, 50),))]
    run = device.bind(commands, 2)
    buffers = fake.calls["buffer"], fake.calls["library"], fake.calls["pipeline"]
    for active in ([200, 5], [60, -7], [0, 9]):
        c.write(np.zeros(4 * N, np.uint8))
        run.submit(active)
        run.wait()
        done = -(-active[0] // 50) * 50
        np.testing.assert_array_equal(floats(c), np.where(np.arange(N) < done, 2 * (X + active[1]), 0))
    assert buffers == (fake.calls["buffer"], fake.calls["library"], fake.calls["pipeline"])


def test_copies_go_in_across_and_out(fake):
    device = make(0)
    code, a, b, c = compiled(device), device.allocate(4 * N), device.allocate(4 * N), device.allocate(4 * N)
    given, got = X.copy(), np.zeros(400, np.uint8)
    commands = [CopyCommand("in", given.view(np.uint8), whole(a))]
    commands += [LaunchCommand("twice", code, (whole(a), whole(b)), constant=4)]
    commands += [CopyCommand("across", Place(b, 0, 400), Place(c, 400, 400))]
    commands += [CopyCommand("out", Place(c, 400, 400), got)]
    run = device.bind(commands, 0)
    for offset in (0, 10):
        given[:] = X + offset
        run.submit([])
        given[:] = -1  # read before submit returned
        run.wait()
        np.testing.assert_array_equal(got.view(np.float32), 2 * (X[:100] + offset))
    run.close()
    with pytest.raises(BackendError, match="submitted after close"):
        run.submit([])


@pytest.mark.parametrize("row_nbytes", [12, 6, 1])
def test_copies_follow_an_extent(fake, row_nbytes):
    before = 0
    for nbytes in copies_follow_an_extent(make(0), row_nbytes):
        words = min(-(-nbytes // 4) * 4, ROWS * row_nbytes)
        assert fake.calls["copied_nbytes"] - before == 3 * words
        before = fake.calls["copied_nbytes"]


def test_unified_memory_is_seen_without_a_copy(fake):
    device = make(0)
    assert device.limits["unified"] == 1
    code, a, b = compiled(device), device.allocate(4 * N), device.allocate(4 * N)
    assert not a.array().any()
    a.array().view(np.float32)[:] = X
    run = device.bind([LaunchCommand("twice", code, (whole(a), whole(b)), constant=4)], 0)
    view = b.array().view(np.float32)
    run.submit([])
    assert not view.any(), "nothing has run before wait"
    run.wait()
    np.testing.assert_array_equal(view, 2 * X)


def test_a_timed_run_has_each_commands_time(fake):
    device = make(0)
    code, a, b = compiled(device), memory_of(device, X), device.allocate(4 * N)
    commands = [LaunchCommand("twice", code, (whole(a), whole(b)), constant=4)] * 2
    run = device.bind(commands, 0, timed=True)
    assert run.elapsed_ns() is None
    run.submit([])
    run.wait()
    assert run.elapsed_ns() == (1000, 1000)
    assert device.bind(commands, 0).elapsed_ns() is None


def test_a_kernel_is_compiled_once_without_fast_math(fake):
    device = make(0)
    assert compiled(device) is compiled(device)
    assert fake.calls["library"] == 1
    assert fake.options == [{"math_mode": 0}]


def test_before_macos_15_fast_math_is_turned_off_by_its_old_name(fake, monkeypatch):
    monkeypatch.setattr(FakeMetal, "MTLCompileOptions", FakeOldOptions)
    compiled(make(0))
    assert fake.options == [{"fast_math": False}]


def test_two_submits_may_be_under_way(fake):
    device = make(0)
    code, a, b = compiled(device, shifted, 1, ("by",)), memory_of(device, X), device.allocate(4 * N)
    run = device.bind([LaunchCommand("shift", code, (whole(a), whole(b)), scalars=(0,))], 1)
    back = device.bind([LaunchCommand("shift", code, (whole(b), whole(a)), scalars=(0,))], 1)
    run.submit([3])
    back.submit([4])
    run.submit([5])
    run.wait()
    np.testing.assert_array_equal(floats(b), X + 12)
    assert device.queue.pending == []


# --- errors ----------------------------------------------------------------------------------------------------------
def test_the_compilers_words_are_passed_on(fake, monkeypatch):
    device = make(0)
    monkeypatch.setattr("camshaft.backends.metal.device.emit", broken)
    with pytest.raises(
        BackendError, match=r"kernel doubled: metal does not compile it: program_source:1:2: error: as asked$"
    ):
        compiled(device)


def broken(kernel_, target):
    from camshaft.emit.msl.context import MslModule

    return MslModule("#error as asked", "doubled", 64, 2, 0, 0)


def test_a_pipeline_with_room_for_fewer_threads_is_an_error(fake):
    fake.pipeline_threads = 32
    with pytest.raises(
        BackendError, match="kernel doubled wants 64 threads a threadgroup; its registers leave room for 32"
    ):
        compiled(make(0))


def test_memory_that_is_not_there_says_how_much_was_asked_for(fake):
    device = make(0)
    with pytest.raises(BackendError, match="metal: 2147483648 bytes asked for; one buffer has at most 1073741824"):
        device.allocate(2 << 30)
    fake.memory = 1000
    with pytest.raises(BackendError, match="metal is out of memory: 4096 bytes asked for"):
        device.allocate(4096)
    memory = device.allocate(64)
    with pytest.raises(BackendError, match=r"a write of bytes \[60, 68\) of 64"):
        memory.write(np.zeros(8, np.uint8), 60)
    with pytest.raises(BackendError, match=r"a read of bytes \[-4, 4\) of 64"):
        memory.read(-4, 8)
    memory.close()
    with pytest.raises(BackendError, match="memory of 64 bytes on metal is used after close"):
        memory.read()


def test_a_failed_run_has_metals_words(fake):
    device = make(0)
    code, a, b = compiled(device), memory_of(device, X), device.allocate(4 * N)
    run = device.bind([LaunchCommand("twice", code, (whole(a), whole(b)), constant=4)], 0)
    run.submit([])
    fake.failing = True
    with pytest.raises(BackendError, match="metal failed a run: Caused GPU Timeout Error"):
        run.wait()


def test_commands_that_do_not_fit_are_refused_when_bound(fake):
    device, other = make(0), make(0)
    code, a = compiled(device), memory_of(device, X)
    with pytest.raises(BackendError, match="twice got 1 arrays and 0 scalars; kernel doubled takes 2 and 0"):
        device.bind([LaunchCommand("twice", code, (whole(a),))], 0)
    with pytest.raises(BackendError, match="'twice' got memory that is not this device's"):
        device.bind([LaunchCommand("twice", code, (whole(a), whole(other.allocate(4 * N))))], 0)
    with pytest.raises(BackendError, match=r"\'twice\' got a place of bytes \[4, 804\) of 800"):
        device.bind([LaunchCommand("twice", code, (whole(a), Place(a, 4, 800)))], 0)
    with pytest.raises(BackendError, match="'in' of 8 and 800 bytes"):
        device.bind([CopyCommand("in", np.zeros(8, np.uint8), whole(a))], 0)
    with pytest.raises(BackendError, match="'in' from an array to an array"):
        device.bind([CopyCommand("in", np.zeros(8, np.uint8), np.zeros(8, np.uint8))], 0)
    with pytest.raises(BackendError, match=r"metal: active extents \[1\]; wanted 0"):
        device.bind([], 0).submit([1])


# --- which there are -------------------------------------------------------------------------------------------------
def test_gpus_are_listed_by_name_and_number(monkeypatch):
    install(monkeypatch, FakeMetal(FakeDevice("A"), FakeDevice("B")))
    assert absent() is None
    assert [(d.name, d.description, d.absent) for d in devices()] == [("metal", "A", None), ("metal:1", "B", None)]
    assert make(1).space == "metal:1"
    with pytest.raises(BackendError, match="no device metal:2; Metal has 2 here"):
        make(2)
    forget()


@pytest.mark.parametrize(
    ("system", "present", "reason"),
    [
        ("Linux", True, "Metal is on macOS only"),
        (
            "Darwin",
            False,
            "the backend 'metal' needs the package 'pyobjc-framework-Metal': pip install 'camshaft[metal]'",
        ),
    ],
)
def test_absence_has_one_clear_line(monkeypatch, system, present, reason):
    install(monkeypatch, FakeMetal(), system)
    if not present:
        monkeypatch.setattr(api, "find_spec", lambda name: None)
    assert absent() == reason
    assert [(d.name, d.absent) for d in devices()] == [("metal", reason)]
    with pytest.raises(BackendError, match="backend 'metal' is absent"):
        make(0)
    forget()
