"""Compile LLVM IR text to an object for this CPU, and load objects."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from camshaft.backends.cpu.features import host_features, usable
from camshaft.errors import BackendError
from camshaft.process import awaited
from camshaft.settings import setting

llvm_lock = awaited(threading.RLock())  # LLVM's passes and loaders are not thread-safe

# LLVM inserts calls to C functions (memset for a clearing loop, fmaf if there is no such instruction). They go through the
# GOT: the linker's alternative, a stub, needs memory that llvmlite's memory manager did not reserve.
MODULE_FLAGS = '!llvm.module.flags = !{!90001}\n!90001 = !{i32 7, !"RtLibUseGOT", i32 1}\n'


@dataclass(frozen=True)
class HostTarget:
    """The machine that objects are compiled for: LLVM's triple, CPU name and feature string, and LLVM's version."""

    triple: str
    cpu: str
    features: str
    llvm_version: str
    llvmlite_version: str


@functools.cache
def host_target() -> HostTarget:
    """Returns the target for this process's CPU, with every feature that kernels may use.

    SettingError if the CPU lacks features of the level in CAMSHAFT_CPU_FEATURES.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    version = ".".join(str(part) for part in llvm.llvm_version_info)
    found = llvm.get_host_cpu_features().flatten()
    features = ",".join(part for part in (found, *(f"+{name}" for name in sorted(host_features()))) if part)
    features = usable(features, setting("cpu_features"))
    return HostTarget(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, version, llvmlite.__version__)


def _new_target_machine(host: HostTarget, opt: int) -> Any:
    # Kernels request 512-bit vectors explicitly; LLVM must not split them into halves.
    return llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.cpu, features=host.features, opt=opt, reloc="pic", codemodel="small", jit=True
    )


@functools.cache
def _target_machine(host: HostTarget, opt: int) -> Any:
    """The machine of all compilations, made once: LLVM takes 0.7 ms to set up the CPU's tables."""
    return _new_target_machine(host, opt)


def compile_module(llvm_ir: str, *, vectorize: bool = True, opt: int = 2) -> bytes:
    """Compiles LLVM IR text to a relocatable object for this CPU. `vectorize` enables LLVM's loop and SLP vectorizers.

    BackendError with LLVM's message if the IR does not parse or verify.
    """
    with llvm_lock:
        machine = _target_machine(host_target(), opt)
        return bytes(machine.emit_object(optimized(llvm_ir, machine, vectorize=vectorize, opt=opt)))


def assembly(llvm_ir: str, *, vectorize: bool = True, opt: int = 2) -> str:
    """Returns the assembly text that `compile_module` would assemble, for debugging. Errors as there."""
    with llvm_lock:
        machine = _target_machine(host_target(), opt)
        return str(machine.emit_assembly(optimized(llvm_ir, machine, vectorize=vectorize, opt=opt)))


def optimized(llvm_ir: str, machine: Any, *, vectorize: bool, opt: int) -> Any:
    """Parses the IR and runs LLVM's passes for the target machine. Errors as `compile_module`. The caller holds `llvm_lock`."""
    try:
        module = llvm.parse_assembly(f"{llvm_ir}\n{MODULE_FLAGS}")
        module.verify()
    except RuntimeError as error:
        raise BackendError(f"LLVM refused a module: {error}") from error
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=opt)
    options.loop_vectorization = options.slp_vectorization = vectorize
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    # Inline a kernel's program into the loop over programs first. LLVM's default order simplifies it before and after inlining,
    # which takes a third longer and gives the same code.
    first = llvm.create_new_module_pass_manager()
    first.add_always_inliner_pass()
    first.run(module, passes)
    passes.getModulePassManager().run(module, passes)
    return module


@dataclass
class NativeLibrary:
    """Loaded objects. Their code stays mapped for the lifetime of this value."""

    engine: Any = field(repr=False)

    def address(self, name: str) -> int:
        """Returns the address of an exported function. BackendError if there is none with that name."""
        address = self.engine.get_function_address(name)
        if not address:
            raise BackendError(f"the loaded objects have no function {name!r}")
        return int(address)


def load_object(data: bytes) -> NativeLibrary:
    """Maps and links an object made by `compile_module`. BackendError if LLVM cannot read it."""
    with llvm_lock:
        return _add(_new_library(), data)


def load_kernel(data: bytes) -> NativeLibrary:
    """Maps an object into the library that all kernels share and that is never unloaded. Exported names must be unique in
    the process.

    Takes 0.03 ms; `load_object` takes 1.3 ms, mostly for LLVM's set-up.
    """
    with llvm_lock:
        return _add(_kernels(), data)


def process_symbol(name: str) -> int | None:
    """Returns the address of a symbol of this process, as objects that are loaded here see it; None if there is none.

    LLVM looks into the process once it has made an engine, and finds nothing before.
    """
    with llvm_lock:
        _kernels()
        address: int | None = llvm.address_of_symbol(name)
    return address


@functools.cache
def _kernels() -> NativeLibrary:
    return _new_library()


def _new_library() -> NativeLibrary:
    empty = llvm.parse_assembly("")
    empty.triple = host_target().triple
    # llvmlite's memory manager allocates an object's code and constants together. LLVM's own allocates them separately, and
    # aborts if they are over 2 GB apart, which happens once large mappings fill the address space.
    return NativeLibrary(llvm.create_mcjit_compiler(empty, _new_target_machine(host_target(), 2), use_lmm=True))


def _add(library: NativeLibrary, data: bytes) -> NativeLibrary:
    try:
        library.engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        library.engine.finalize_object()
    except RuntimeError as error:
        raise BackendError(f"an object does not load: {error}") from error
    return library
