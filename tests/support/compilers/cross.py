"""Compile LLVM IR text to an ELF object or assembly for another CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from camshaft.backends.cpu.compile import llvm_lock, optimized
from camshaft.emit.target import CpuTarget
from camshaft.errors import BackendError
from tests.support.compilers.stored import key_of, stored


@dataclass(frozen=True)
class CrossTarget:
    """A CPU by LLVM's names. `features` (LLVM's names) are added to those of `cpu`; the emitter uses only `features`."""

    triple: str
    cpu: str
    features: frozenset[str]

    @property
    def architecture(self) -> str:
        return self.triple.split("-")[0]

    def at(self, lanes: int) -> CpuTarget:
        """Returns the emitter's target with this number of lanes."""
        return CpuTarget(self.architecture, lanes, self.features)


def compile_for(target: CrossTarget, llvm_ir: str, *, vectorize: bool = True, opt: int = 2) -> bytes:
    """The relocatable object of LLVM IR, from the store if it was compiled before.

    BackendError with LLVM's message if the triple is unknown or the IR does not parse or verify.
    """
    return _stored("object", target, llvm_ir, vectorize, opt)


def assembly_for(target: CrossTarget, llvm_ir: str, *, vectorize: bool = True, opt: int = 2) -> str:
    """The assembly text that `compile_for` would assemble. Stored, and errors, as there."""
    return _stored("assembly", target, llvm_ir, vectorize, opt).decode()


def _stored(kind: str, target: CrossTarget, llvm_ir: str, vectorize: bool, opt: int) -> bytes:
    # the features in order: a set's own differs from process to process
    key = key_of(kind, target.triple, target.cpu, *sorted(target.features), f"{vectorize} {opt}", llvm_ir)
    return stored(key, lambda: _made(kind, target, llvm_ir, vectorize, opt))


def _made(kind: str, target: CrossTarget, llvm_ir: str, vectorize: bool, opt: int) -> bytes:
    with llvm_lock:
        machine = _machine(target, opt)
        module = optimized(llvm_ir, machine, vectorize=vectorize, opt=opt)
        return bytes(machine.emit_object(module) if kind == "object" else machine.emit_assembly(module).encode())


def _machine(target: CrossTarget, opt: int) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    flags = ",".join(f"+{feature}" for feature in sorted(target.features))
    try:
        return llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=flags, opt=opt, reloc="pic", codemodel="small"
        )
    except RuntimeError as error:
        raise BackendError(f"LLVM has no target {target.triple!r}: {error}") from error
