"""Keeps what compilers and assemblers make of a text from run to run, in the cache folder beside a program's kernels.

A key covers the whole input: the text, the tool with its version, and the files of camshaft that call it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import camshaft
from camshaft.backends.cpu.compile import host_target
from camshaft.store.store import store

_STORE = store()  # of all tests, also in one that has a cache folder of its own
# What calls LLVM, a C compiler or an assembler: their options are in these files.
_CALLERS = ("backends/cpu/*.py", "backends/c/*.py", "backends/cuda/kernel.py")


@functools.cache
def _callers() -> str:
    root, digest = Path(camshaft.__file__).parent, hashlib.sha256()
    files = [file for pattern in _CALLERS for file in sorted(root.glob(pattern))]
    assert all(any(root.glob(pattern)) for pattern in _CALLERS), "a file of _CALLERS has moved"
    for path in (*files, Path(__file__).with_name("cross.py")):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()}|{host_target()!r}"


def key_of(*parts: str) -> str:
    """SHA-256 over the parts, this machine and camshaft's calls of compilers."""
    return hashlib.sha256("\0".join(("tests", _callers(), *parts)).encode()).hexdigest()


def stored(key: str, make: Callable[[], bytes]) -> bytes:
    """The bytes stored under a key of `key_of`, or else what `make` returns, stored."""
    objects = _STORE.kernels.objects
    data = objects.get(key)
    if data is None:
        data = make()
        objects.put(key, data)
    return data
