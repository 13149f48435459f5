"""Runs MSL on the CPU: g++ over the stand-in <metal_stdlib>, a threadgroup's threads as fibers. Used by the tests of Metal.

`compile_msl` takes many modules at once, because starting the compiler is most of its time.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.compilers.stored import key_of, stored

STAND_IN = Path(__file__).parent / "metal_stand_in"
FLAGS = ("-std=c++14", "-O1", "-fPIC", "-shared", f"-I{STAND_IN}")
MEANING = ("-fsigned-char", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing")
WARNINGS = ("-Wall", "-Werror", "-Wno-attributes", "-Wno-unused", "-Wno-parentheses-equality")
_THREADGROUP = re.compile(r"^(\s*)threadgroup\s+([\w ]+?)\s+(\w+)((?:\[[^\]]+\])+);", re.MULTILINE)
_KERNEL = re.compile(r"^kernel\s+void\s+(\w+)\s*\(", re.MULTILINE)
_ATTRIBUTE = re.compile(r"\[\[(\w+)(?:\((\d+)\))?\]\]")
_BUILTINS = {
    "threadgroup_position_in_grid": "stand_in_place{stand_in_group(), 0}",
    "threadgroups_per_grid": "stand_in_place{stand_in_groups(), 1}",
    "thread_index_in_threadgroup": "stand_in_lane()",
    "thread_position_in_threadgroup": "stand_in_place{stand_in_lane(), 0}",
    "threads_per_threadgroup": "stand_in_place{stand_in_width(), 1}",
    "thread_index_in_simdgroup": "stand_in_lane() % stand_in_simd_width()",
    "simdgroup_index_in_threadgroup": "stand_in_lane() / stand_in_simd_width()",
    "threads_per_simdgroup": "stand_in_simd_width()",
}


class StandInError(Exception):
    """The text does not compile, or its threads broke a rule while they ran."""


@dataclass(frozen=True)
class StandInKernel:
    """A compiled kernel. `buffers` counts the argument table: one more than the greatest index."""

    name: str
    body: ctypes.c_void_p
    buffers: int
    library: ctypes.CDLL

    def __call__(
        self, addresses: Sequence[int], groups: int, threads: int, simd_width: int = 32, seed: int = 1
    ) -> None:
        """Runs `groups` threadgroups of `threads` on buffers at these addresses. StandInError names what went wrong."""
        table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        said = _runtime().stand_in_launch(self.body, table, groups, threads, simd_width, seed)
        if said:
            raise StandInError(f"kernel {self.name}: {said.decode()}")


def compile_msl(modules: Sequence[str]) -> list[dict[str, StandInKernel]]:
    """The kernels of each module by name, all compiled in one go. StandInError with the compiler's words."""
    _runtime()
    parts = ["#include <metal_stdlib>"]
    for i, text in enumerate(modules):
        statics = _THREADGROUP.sub(r"\1static \2 \3\4; stand_in_poison(&\3, sizeof \3);", text)
        parts += [f'namespace module{i} {{\n#line 1 "module{i}.metal"', statics, "}"]
        parts += [_trampoline(f"module{i}", name, arguments) for name, arguments in _kernels(text)]
    library = _build("\n".join(parts), STAND_IN / "metal_stdlib")
    return [
        {
            name: StandInKernel(
                name, ctypes.cast(library[f"module{i}_{name}"], ctypes.c_void_p), _table_size(arguments), library
            )
            for name, arguments in _kernels(text)
        }
        for i, text in enumerate(modules)
    ]


def _kernels(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """(name, attributes of its parameters) of each kernel."""
    found = []
    for match in _KERNEL.finditer(text):
        end = text.index("{", match.end())
        found.append((match[1], _ATTRIBUTE.findall(text[match.end() : end])))
    return found


def _table_size(arguments: list[tuple[str, str]]) -> int:
    return max((int(n) + 1 for kind, n in arguments if kind == "buffer"), default=0)


def _trampoline(space: str, name: str, arguments: list[tuple[str, str]]) -> str:
    unknown = [kind for kind, _ in arguments if kind != "buffer" and kind not in _BUILTINS]
    if unknown:
        raise StandInError(f"kernel {name}: the stand-in has no attribute {', '.join(unknown)}")
    given = [f"stand_in_buffer{{b[{n}]}}" if kind == "buffer" else _BUILTINS[kind] for kind, n in arguments]
    return f'extern "C" void {space}_{name}(void* const* b) {{ {space}::{name}({", ".join(given)}); }}'


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="camshaft-msl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


_count = itertools.count()


def _build(text: str, prelude: Path) -> ctypes.CDLL:
    shared = _folder() / f"unit{next(_count)}.so"
    shared.write_bytes(stored(key_of("msl", _stand_in(), text), lambda: _compile(text, shared, prelude)))
    return ctypes.CDLL(str(shared))


def _compile(text: str, shared: Path, prelude: Path) -> bytes:
    source = shared.with_suffix(".cpp")
    source.write_text(text, "utf-8")
    made = subprocess.run(
        ["g++", *FLAGS, *MEANING, *WARNINGS, str(source), "-o", str(shared)], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise StandInError(f"g++ over {prelude.name}: {made.stderr[:4000]}")
    return shared.read_bytes()


@functools.cache
def _stand_in() -> str:
    """What an object depends on beside its text: the headers, the flags and the compiler."""
    headers = [path.read_text("utf-8") for path in sorted(STAND_IN.iterdir())]
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    return "\0".join([version, *FLAGS, *MEANING, *WARNINGS, *headers])


@functools.cache
def _runtime() -> ctypes.CDLL:
    shared = _folder() / "fibers.so"
    flags = ("-std=c++14", "-O2", "-fPIC", "-shared", "-Wall", "-Werror")
    subprocess.run(["g++", *flags, str(STAND_IN / "fibers.cpp"), "-o", str(shared)], check=True)
    library = ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
    library.stand_in_launch.restype = ctypes.c_char_p
    library.stand_in_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_uint32] * 4]
    return library


def have_compiler() -> bool:
    """Whether there is a g++ to run the stand-in with."""
    return shutil.which("g++") is not None
