"""Compile LLVM IR to PTX for NVIDIA GPUs."""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm

from camshaft.emit.target import GpuTarget
from camshaft.errors import BackendError

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
