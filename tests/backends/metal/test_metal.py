"""The Metal backend on a fake of PyObjC's module that runs kernels for real: order, copies, what a run may do."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.device import CopyCommand, LaunchCommand, Place
from camshaft.backends.metal.device import absent, devices, make
from camshaft.dtypes import f32
from camshaft.errors import BackendError
from camshaft.lang import kernel
from tests.backends.metal.metal_kernels import N, X, compiled, floats, memory_of, whole
from tests.support.active_copies import ROWS, copies_follow_an_extent
from tests.support.devices.fake_metal import FakeDevice, FakeMetal, FakeOldOptions, forget, install
from tests.support.devices.metal_harness import have_compiler
from tests.support.needs import require


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


@kernel
def shifted(k, x, out, by):
    for c in k.lanes(N):
        out[c] = x[c] + by.to(f32)


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


# --- which there are -------------------------------------------------------------------------------------------------
def test_gpus_are_listed_by_name_and_number(monkeypatch):
    install(monkeypatch, FakeMetal(FakeDevice("A"), FakeDevice("B")))
    assert absent() is None
    assert [(d.name, d.description, d.absent) for d in devices()] == [("metal", "A", None), ("metal:1", "B", None)]
    assert make(1).space == "metal:1"
    with pytest.raises(BackendError, match="no device metal:2; Metal has 2 here"):
        make(2)
    forget()
