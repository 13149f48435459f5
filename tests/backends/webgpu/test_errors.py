"""What goes wrong with a WebGPU device, in one clear line each; nothing is swallowed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from camshaft.backends.device import CopyCommand
from camshaft.backends.registry import device as registered
from camshaft.backends.webgpu import native as native_module
from camshaft.backends.webgpu.adapters import adapters
from camshaft.backends.webgpu.device import WebGpuDevice, devices
from camshaft.backends.webgpu.kernel import WebGpuKernel, make_shader
from camshaft.dtypes import f16, f32, f64
from camshaft.errors import BackendError, MissingExtraError
from camshaft.lang import CompileRequest, ir, kernel
from tests.backends.webgpu.webgpu_kernels import N, add_kernel, add_rows, launch, own_device, the_device, whole


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, as drivers are looked for once a process."""
    paths = os.pathsep.join(path for path in sys.path if path)
    whole_env = os.environ | {"PYTHONPATH": paths} | env
    return subprocess.run([sys.executable, "-c", code], env=whole_env, capture_output=True, text=True, timeout=120)


def test_without_the_extra_its_name(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(
        MissingExtraError, match=r"the backend 'webgpu' needs the package 'wgpu': pip install 'camshaft\[webgpu\]'"
    ):
        native_module.native.__wrapped__()


@pytest.mark.full
def test_without_a_driver_the_package_that_has_one() -> None:
    the_device()
    code = (
        "from camshaft.backends.webgpu.device import absent, devices, make\nprint(absent()); print(devices()[0].absent)"
    )
    nowhere = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES"), os.devnull)
    done = run_python(f"{code}\nmake(0)", **nowhere)
    assert done.stdout.splitlines()[0].startswith("no adapter: wgpu finds no driver")
    assert "mesa-vulkan-drivers" in done.stdout.splitlines()[1]
    assert done.stderr.splitlines()[-1].startswith("camshaft.errors.BackendError: webgpu is absent: no adapter")


@pytest.mark.full
def test_looking_for_adapters_prints_nothing() -> None:
    the_device()
    done = run_python("from camshaft.backends.webgpu.device import make; make(0).allocate(16).read()")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_devices_are_listed_with_limits_and_indexes_past_them_refused() -> None:
    the_device()
    infos = devices()
    assert [info.name for info in infos] == ["webgpu", *[f"webgpu:{i}" for i in range(1, len(infos))]]
    assert infos[0].absent is None
    assert infos[0].limits["alignment"] >= 64
    with pytest.raises(BackendError, match=rf"no device webgpu:{len(infos)}; webgpu is .*"):
        registered(f"webgpu:{len(infos)}")
    assert registered("webgpu:0") is registered("webgpu")


def test_a_buffer_is_counted_in_whole_words() -> None:
    device, words = the_device(), the_device().limits["buffer"] // 4 * 4
    what = rf"^webgpu: a buffer of {words + 1} bytes \({words + 4} in whole words\); the largest of .*\d$"
    with pytest.raises(BackendError, match=what):
        device.allocate(words + 1)


def test_a_lost_device_says_so_everywhere() -> None:
    device = own_device()
    memory, kernel = device.allocate(N * 4), add_kernel(device)
    array = np.zeros(N * 4, np.uint8)
    run = device.bind([launch(kernel, *[whole(memory)] * 3), CopyCommand("out", whole(memory), array)], 0)
    run.submit([])
    device.close()
    for call in (
        run.wait,
        lambda: run.submit([]),
        memory.read,
        lambda: memory.write(array),
        lambda: device.allocate(16),
        lambda: device.bind([CopyCommand("c", array, whole(memory))], 0),
    ):
        with pytest.raises(BackendError, match=r"^webgpu: the device was lost: "):
            call()
    run.close()


def test_an_error_without_a_call_of_its_own_is_raised_at_wait() -> None:
    device = own_device()
    run = device.bind([], 0)
    run.submit([])
    n = device.native
    text = n.ffi.new("char[]", b"something broke later")
    view = n.struct("WGPUStringView", data=text, length=21)
    device.faults.error(n.ffi.NULL, n.lib.WGPUErrorType_Internal, view.pointer[0], n.ffi.NULL, n.ffi.NULL)
    with pytest.raises(BackendError, match="webgpu: running: something broke later"):
        run.wait()
    run.submit([])  # it was said once
    run.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS bounds memory only on Linux")
def test_out_of_device_memory_says_how_much_was_asked_for() -> None:
    if the_device().adapter.kind != "cpu":
        pytest.skip("memory of the device is not this process's")
    code = """
import resource
from camshaft.backends.webgpu.device import make
device = make(0)
device.allocate(64).read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
try:
    device.allocate(1 << 30)
except Exception as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(device.allocate(1 << 20).read().nbytes)
"""
    done = run_python(code)
    first, second = done.stdout.splitlines()
    assert first == "BackendError webgpu: out of device memory: a buffer of 1073741824 bytes"
    assert second == str(1 << 20)  # and the device goes on


def test_what_the_compiler_says_comes_with_the_line_of_wgsl() -> None:
    device = the_device()
    text = "@compute @workgroup_size(1)\nfn wrong() { let x = 1u + 2.5f; }"
    with pytest.raises(BackendError, match=r"(?s)webgpu: kernel wrong is not WGSL that compiles.*wrong:2:") as caught:
        make_shader(device, "wrong", text)
    assert "let x = 1u + 2.5f;" in str(caught.value)
    module = dataclasses.replace(add_kernel(device).module(frozenset()), entry="another")
    broken = WebGpuKernel(device, "broken", (False, False, True), lambda read_only: module)
    with pytest.raises(BackendError, match="kernel another makes no pipeline"):
        broken.pipeline(frozenset())


def arrays_of(dtype):
    return tuple(ir.ArrayParam(name, dtype, (1, N), name == "out") for name in ("x", "y", "out"))


@kernel
def through_scratch(k, x, out, *, n):
    kept = k.scratch(f32, n)
    for c in k.lanes(n):
        kept[c] = x[0, c]
    k.barrier()
    for c in k.lanes(n):
        out[0, c] = k.gather(kept, n - 1 - c)


@pytest.mark.parametrize(
    ("limits", "lanes", "words"),
    [
        ({"bindings": 3}, None, "4 storage bindings; the adapter has at most 3"),
        ({"lanes": 16}, 32, "32 threads in a workgroup; the adapter has at most 16"),
    ],
)
def test_limits_refuse_a_kernel_with_the_reason(limits, lanes, words) -> None:
    device, request = own_device(**limits), CompileRequest(add_rows, arrays_of(f32), (), {"n": N}, lanes=lanes)
    assert words in (device.refusal(request) or "")
    with pytest.raises(BackendError, match=f"webgpu cannot run kernel add_rows: .*{words}"):
        device.compile(request)
    assert the_device().refusal(request) is None


def test_workgroup_memory_past_the_limit_is_refused() -> None:
    arrays = tuple(ir.ArrayParam(name, f32, (1, 1000), name == "out") for name in ("x", "out"))
    request = CompileRequest(through_scratch, arrays, (), {"n": 1000})
    words = "4000 bytes of workgroup memory; the adapter has at most 2048"
    assert words in (own_device(workgroup_memory=2048).refusal(request) or "")
    assert the_device().refusal(request) is None


def test_an_element_type_that_wgsl_lacks_is_refused() -> None:
    reason = the_device().refusal(CompileRequest(add_rows, arrays_of(f64), (), {"n": N}))
    assert reason is not None
    assert "f64" in reason or "64" in reason


def test_a_kernel_for_f16_runs_or_says_what_the_adapter_lacks() -> None:
    the_device()
    adapter = dataclasses.replace(adapters()[0], features=adapters()[0].features - {"shader-f16"})
    device, request = WebGpuDevice("webgpu", adapter), CompileRequest(add_rows, arrays_of(f16), (), {"n": N})
    reason = device.refusal(request)
    assert reason is None or "shader-f16" in reason
    if reason is None:  # packed words do it
        assert device.compile(request).module(frozenset()).requires == set()
