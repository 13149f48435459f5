"""Keeps what compilers and assemblers make of a text from run to run, in the cache folder beside a program's kernels.

A key covers the whole input: the text, the tool with its version, and the files of camshaft that call it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import camshaft
from camshaft.backends.cpu import device
from camshaft.backends.cpu.compile import assembly, compile_module, host_target
from camshaft.observe import kernel_texts
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


@contextmanager
def llvm_stored() -> Iterator[None]:
    """Inside the block LLVM compiles a kernel once for all tests, also for those that have a cache folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "compile_module", _object)
        patch.setattr(kernel_texts, "assembly", _assembly)
        yield


def _object(text: str, *, vectorize: bool) -> bytes:
    if store().root == _STORE.root:  # which keeps it
        return compile_module(text, vectorize=vectorize)
    return stored(key_of("llvm", str(vectorize), text), lambda: compile_module(text, vectorize=vectorize))


def _assembly(text: str, *, vectorize: bool) -> str:
    key = key_of("assembly", str(vectorize), text)
    return stored(key, lambda: assembly(text, vectorize=vectorize).encode()).decode()
