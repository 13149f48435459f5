"""Limits, memory and absence of the CUDA backend, by a driver that is played: each error is one line. No GPU is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft.backends.cuda import device as cuda
from camshaft.backends.cuda import driver, kernel
from camshaft.backends.device import CopyCommand, Place
from camshaft.dtypes import f32
from camshaft.emit.target import GPU_TARGETS
from camshaft.errors import BackendError, MissingExtraError
from camshaft.lang import CompileRequest, ir
from tests.backends.cuda.cuda_kernels import add_one, compiled
from tests.support.devices.played_cuda import played_driver


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
    compiled(device)
    monkeypatch.setattr(kernel, "ptx_of", lambda *args: pytest.fail("the store has it"))
    assert compiled(cuda.make(0)).lanes == 128


def test_the_driver_s_log_is_in_the_error(device, fake) -> None:
    def refuse(image, count, options, values):
        values[0][:15] = b"ptxas: nonsense"
        return fake.CUresult.CUDA_ERROR_INVALID_PTX

    fake.cuModuleLoadDataEx = refuse
    with pytest.raises(BackendError, match=r"kernel add_one: cuModuleLoadDataEx: invalid ptx .*: ptxas: nonsense"):
        compiled(device)


def test_limits_refuse_kernels(device) -> None:
    arrays = (ir.ArrayParam("x", f32, (4096,)), ir.ArrayParam("out", f32, (4096,), True))
    request = CompileRequest(add_one, arrays, (), {"block": 2048}, (ir.GridDim(2),))
    wide = replace(request, lanes=2048)
    assert device.refusal(request) is None
    assert device.refusal(wide) == "a workgroup of 2048 threads; wanted at most 1024"
    with pytest.raises(BackendError, match="cannot run kernel add_one: a workgroup of 2048 threads"):
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
