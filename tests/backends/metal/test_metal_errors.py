"""What the Metal backend says when Metal refuses or lacks something: compilers, pipelines, memory, runs, GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.device import CopyCommand, LaunchCommand, Place
from camshaft.backends.metal import api
from camshaft.backends.metal.device import absent, devices, make
from camshaft.errors import BackendError
from tests.backends.metal.metal_kernels import N, X, compiled, memory_of, whole
from tests.support.devices.fake_metal import FakeMetal, forget, install
from tests.support.devices.metal_harness import have_compiler
from tests.support.needs import require


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


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
