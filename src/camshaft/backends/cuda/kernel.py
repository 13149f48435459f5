"""Compile kernels to PTX through LLVM, cache it, and load it with the NVIDIA driver."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from camshaft.backends.cuda.driver import DriverError, bindings, driver_call
from camshaft.emit.nvptx.module import emit
from camshaft.emit.target import GpuTarget
from camshaft.errors import BackendError
from camshaft.lang.kernel import language_digest
from camshaft.lang.simt.form import SimtKernel
from camshaft.store.files import digest_of
from camshaft.store.store import store

LOG_NBYTES = 8192
# The camshaft files that PTX depends on, besides lang/.
_SOURCES = "emit/*.py", "emit/llvm/**/*.py", "emit/nvptx/**/*.py", "backends/cuda/kernel.py"


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A kernel loaded into a device's context, with `lanes` threads per workgroup. Parameters: emit/nvptx/module.py."""

    name: str
    lanes: int
    function: Any = field(repr=False)
    module: Any = field(repr=False)


def ptx_text(signature: str, target: GpuTarget, make: Callable[[], SimtKernel]) -> tuple[str, str]:
    """Returns the kernel's symbol and PTX, from the store if it has them. `signature` identifies the result of `make`."""
    key = digest_of(signature, target.key(), llvm.llvm_version_info, language_digest(*_SOURCES))
    symbol = f"camshaft_{key[:24]}"
    data = store().objects.get(key)
    if data is None:
        data = ptx_of(make(), target, symbol).encode()
        store().objects.put(key, data)
    return symbol, data.decode()


def ptx_of(kernel: SimtKernel, target: GpuTarget, symbol: str) -> str:
    """Returns the PTX of a kernel."""
    return ptx(emit(kernel, target, symbol), target)


def load(name: str, symbol: str, text: str) -> CudaKernel:
    """Assembles PTX with the driver and loads it into the current context. BackendError with the driver's log."""
    options = bindings().CUjit_option
    log = bytearray(LOG_NBYTES)
    given = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    try:
        module = driver_call("cuModuleLoadDataEx", text.encode() + b"\0", len(given), given, [log, LOG_NBYTES])
    except DriverError as error:
        words = log.split(b"\0")[0].decode(errors="replace").strip()
        raise BackendError(f"kernel {name}: {error}{': ' + words if words else ''}") from error
    function = driver_call("cuModuleGetFunction", module, symbol.encode())
    lanes = re.search(r"^\.reqntid (\d+)", text, re.MULTILINE)
    if lanes is None:
        raise BackendError(f"kernel {name}: its PTX names no size of a workgroup")
    return CudaKernel(name, int(lanes.group(1)), function, module)


TRIPLE = "nvptx64-nvidia-cuda"


@functools.cache
def _initialized() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def ptx(llvm_ir: str, target: GpuTarget) -> str:
    """Compiles LLVM IR text to PTX. BackendError with LLVM's message if the IR does not parse or verify."""
    _initialized()
    try:
        module = llvm.parse_assembly(llvm_ir)
        module.verify()
    except RuntimeError as error:
        raise BackendError(f"LLVM refused a module: {error}") from error
    machine = _machine(target)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # threads already act as vector lanes, and ptxas unrolls loops
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        module, llvm.create_pass_builder(machine, options)
    )
    return str(machine.emit_assembly(module))


def _machine(target: GpuTarget) -> Any:
    found = llvm.Target.from_triple(TRIPLE)
    return found.create_target_machine(cpu=target.processor, features=f"+ptx{target.ptx}", opt=2)
