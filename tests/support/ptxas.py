"""PTX: what LLVM writes of a text, stored; ptxas, its assembler: where it is, and what it says of kernels.

bench/machine/nvidia.py too uses this.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from camshaft.backends.cuda.kernel import ptx
from camshaft.emit.target import GpuTarget
from tests.support.stored import key_of, stored


@dataclass(frozen=True)
class Assembled:
    """One kernel for one processor, as ptxas reports it."""

    kernel: str
    registers: int
    shared_nbytes: int
    spill_nbytes: int
    stack_nbytes: int


def find_tool(name: str) -> Path | None:
    """A program of the CUDA toolkit: of CUDA_HOME, the usual folder, the wheel nvidia-cuda-nvcc, or the path; None if nowhere."""
    folders = [Path(os.environ[key], "bin") for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    folders += [Path("/usr/local/cuda/bin"), *Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin")]
    found = [folder / name for folder in folders if os.access(folder / name, os.X_OK)]
    on_path = shutil.which(name)
    return found[0] if found else Path(on_path) if on_path else None


# What a module keeps to itself: functions that were not inlined, and tables.
_OWN = re.compile(r"^(?:\.func\s+(?:\([^)]*\)\s*)?(\w+)|\.(?:global|const)\s[^=\n]*?(\w+)\[\d+\])", re.MULTILINE)


def joined(texts: list[str]) -> str:
    """PTX modules for one target as one, so that one call assembles them all. Their kernels' names must differ."""
    heads = (".version", ".target", ".address_size")
    head = [line for line in texts[0].splitlines() if line.startswith(heads)]
    apart = (_apart(text, i) for i, text in enumerate(texts))
    return "\n".join([*head, *(line for t in apart for line in t.splitlines() if not line.startswith(heads))]) + "\n"


def _apart(text: str, index: int) -> str:
    """A module whose own functions and tables no other module has."""
    for name in {name for pair in _OWN.findall(text) for name in pair if name}:
        text = re.sub(rf"\b{name}\b", f"{name}_{index}", text)
    return text


def ptx_of(llvm_ir: str, target: GpuTarget) -> str:
    """The PTX of LLVM IR, from the store if it was made before. BackendError with LLVM's message if the IR is refused."""
    key = key_of("ptx", target.processor, str(target.ptx), llvm_ir)
    return stored(key, lambda: ptx(llvm_ir, target).encode()).decode()


def assemble(text: str, processor: str) -> dict[str, Assembled]:
    """What ptxas makes of every kernel of a module. AssertionError with its words where it refuses the module."""
    tool = find_tool("ptxas")
    assert tool is not None
    return _read(
        stored(key_of("ptxas", _version(tool), processor, text), lambda: _report(tool, text, processor)).decode()
    )


@functools.cache
def _version(tool: Path) -> str:
    return subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=True).stdout


def _report(tool: Path, text: str, processor: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.ptx")
        source.write_text(text)
        command = [str(tool), "-v", f"-arch={processor}", str(source), "-o", str(Path(folder, "kernels.cubin"))]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stderr.encode()


def _read(report: str) -> dict[str, Assembled]:
    found = {}
    for part in report.split("Compiling entry function '")[1:]:
        name = part.split("'", 1)[0]
        found[name] = Assembled(
            name,
            _number(r"Used (\d+) registers", part),
            _number(r"(\d+) bytes smem", part),
            _number(r"(\d+) bytes spill stores", part) + _number(r"(\d+) bytes spill loads", part),
            _number(r"(\d+) bytes stack frame", part),
        )
    return found


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match.group(1)) if match else 0
