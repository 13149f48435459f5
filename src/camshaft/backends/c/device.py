"""The device "cpu:c": kernels emitted as C and built by the C compiler of the machine."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass, field

from camshaft.backends.c.compilers import Compiler, absent, find_compiler
from camshaft.backends.c.load import build, load
from camshaft.backends.cpu.compile import host_target
from camshaft.backends.cpu.device import CpuKernel, HostDevice, cached_object, host_kernel
from camshaft.backends.cpu.features import names
from camshaft.backends.device import DeviceInfo
from camshaft.emit.c.module import emit
from camshaft.emit.refusal import refusal
from camshaft.errors import BackendError
from camshaft.lang import CompileRequest
from camshaft.lang.kernel import language_digest
from camshaft.store.files import digest_of
from camshaft.store.kernels import UNNAMED, CachedKernel

# The camshaft files that the C text depends on, besides lang/.
_SOURCES = ("emit/*.py", "emit/c/*.py", "emit/c_family/*.py", "emit/llvm/**/*.py", "backends/c/*.py")


@dataclass(frozen=True, repr=False)
class CDevice(HostDevice):
    """The CPU through a C compiler. Programs have one lane and explicit vectors of any width."""

    compiler: Compiler = field(kw_only=True)

    def refusal(self, request: CompileRequest) -> str | None:
        """Returns what C lacks for the kernel, by the instruction table, or None. KernelError for an invalid kernel."""
        return refusal(request.trace(), "c")

    def compile(self, request: CompileRequest) -> CpuKernel:
        """Returns the kernel's machine code from memory or the store; otherwise traces, verifies, emits and compiles it.

        BackendError with the compiler's first error and its C line.
        """
        options = digest_of(self.compiler.key(), _machine_key())
        first = digest_of(request.key(), options)

        def make() -> CachedKernel:
            build_text = functools.partial(build, self.compiler)
            return cached_object(first, lambda: emit(request.trace(), UNNAMED), options, build_text)

        return host_kernel(request.kernel.name, first, make, load)


@functools.cache
def _machine_key() -> str:
    host = host_target()
    return digest_of(host.triple, host.cpu, host.features, language_digest(*_SOURCES))


def make(index: int = 0) -> CDevice:
    """Returns the device. BackendError without a C compiler or for an index other than 0."""
    if index != 0:
        raise BackendError(f"no device 'cpu:c:{index}': there is one CPU")
    features = names(host_target().features)
    return CDevice("cpu:c", "c", 1, features, platform.machine().lower(), compiler=find_compiler())


def devices() -> tuple[DeviceInfo, ...]:
    """Returns the row of `camshaft devices`."""
    reason = absent()
    description = "the CPU through C" if reason is not None else f"the CPU through C: {find_compiler().version}"
    return (DeviceInfo("cpu:c", "c", description, reason),)
