"""cpu:c: which compiler, its errors and time-outs, objects and shared libraries, the store, ops and overrides."""

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import camshaft
from camshaft.backends.c import compilers, load
from camshaft.backends.c.compilers import Compiler, absent, compile_c, find_compiler
from camshaft.backends.c.load import _sections, refusal
from camshaft.backends.cpu.device import ENTRY, counts
from camshaft.backends.registry import device, devices
from camshaft.emit.c import module
from camshaft.emit.target import LEVELS
from camshaft.errors import BackendError
from camshaft.lang import CompileRequest, ir, kernel
from tests.support.needs import require, require_level
from tests.support.quick import full

TWICE = """#include <stdint.h>
void NAME(const int64_t *args, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        ((float *)(intptr_t)args[0])[i] *= 2;
}
"""


@pytest.fixture(autouse=True)
def _a_compiler_is_here():
    require(absent() is None, f"cpu:c: {absent()}")


def runs(library, name):
    data = np.arange(5, dtype=np.float32)
    block = np.array([data.ctypes.data], np.int64)
    ENTRY(library.address(name))(block.ctypes.data, 1, 4)
    np.testing.assert_array_equal(data, [0, 2, 4, 6, 4])


def test_an_object_goes_through_llvms_loader():
    data = load.build(find_compiler(), TWICE.replace("NAME", "twice_object"))
    assert data[:1] == b"o"
    runs(load.load(data), "twice_object")


def test_a_shared_library_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = b"s" + compile_c(find_compiler(), TWICE.replace("NAME", "twice_shared"), shared=True)
    library = load.load(data)
    runs(library, "twice_shared")
    assert not list(tmp_path.iterdir())
    with pytest.raises(BackendError, match="has no function 'other'"):
        library.address("other")


@pytest.mark.skipif(os.name == "nt", reason="modes of folders are POSIX's")
def test_the_folder_of_a_compilation_is_private(tmp_path, monkeypatch):
    seen = []

    def look(command, folder, timeout_s):
        seen.append(stat.S_IMODE(Path(folder).stat().st_mode))
        return 1, ""

    monkeypatch.setattr(compilers, "_run", look)
    monkeypatch.setattr(compilers, "flags_of", lambda compiler, level: ())
    with pytest.raises(BackendError, match="exit status 1"):
        compile_c(find_compiler(), "")
    assert seen == [0o700]


def test_an_error_names_the_line_of_c():
    broken = "int first;\nint f(void)\n{\n    return first + missing;\n}\n"
    with pytest.raises(BackendError, match=r"refused a kernel: line 4: .*missing.*: return first \+ missing;"):
        compile_c(find_compiler(), broken)


@pytest.mark.full
def test_a_compiler_that_takes_too_long_is_stopped(monkeypatch):
    slow = Compiler("slow", (sys.executable, "-c", "import time; time.sleep(60)"), "1")
    monkeypatch.setattr(compilers, "COMPILE_TIMEOUT_S", 0.2)
    with pytest.raises(BackendError, match=r"slow took longer than 0\.5 s"):
        compile_c(slow, "", timeout_s=0.5)


@pytest.mark.full
def test_flags_that_a_compiler_does_not_know_are_left_out(tmp_path):
    script = (
        "import sys, subprocess\n"
        "if '-fno-plt' in sys.argv: sys.exit('unknown argument')\n"
        f"sys.exit(subprocess.call([*{find_compiler().command!r}, *sys.argv[1:]]))\n"
    )
    picky = Compiler("picky", (sys.executable, "-c", script), "1")
    flags = compilers.flags_of(picky)
    assert "-fno-plt" not in flags
    assert "-march=native" in flags
    assert "-fwrapv" in flags


# Adds vectors twice as wide as AVX2's.
WIDE = """typedef float wide __attribute__((vector_size(64)));
void NAME(wide *out, const wide *x, const wide *y) { *out = *x + *y; }
"""


@pytest.mark.parametrize("name", [None, full("clang"), full("gcc")])
def test_it_keeps_to_the_level_of_the_cpu(name, monkeypatch):
    require_level("avx512")
    require(name is None or shutil.which(name) is not None, f"{name}")
    if name is not None:
        monkeypatch.setenv("CAMSHAFT_CC", name)
    wide, keys = [], set()
    for level in (None, "avx2", "avx512-vnni"):
        monkeypatch.setenv("CAMSHAFT_CPU_FEATURES", level or "")
        compiler = find_compiler()
        made = compile_c(compiler, WIDE.replace("NAME", "add_wide"))
        wide.append(b"\x62" in _code(made))  # the first byte of every AVX-512 instruction, of none of these others
        keys.add(compiler.key())
        assert ("-march=native" in compilers.flags_of(compiler, level)) == (level is None)
    assert wide == [True, False, True]
    assert len(keys) == 3


def _compiler_that(folder: Path, does: str) -> Compiler:
    """A compiler in the shell's words."""
    script = folder / "stubborn"
    script.write_text(f"#!/bin/sh\n{does}\n", "utf-8")
    script.chmod(0o700)
    return Compiler("stubborn", (str(script),), "1")


def _code(made: bytes) -> bytes:
    """The machine code of an ELF object."""
    sections = _sections(made)
    return b"".join(made[s.offset : s.offset + s.size] for s in sections if s.flags & 4 and s.kind == 1)


@pytest.mark.skipif(os.name == "nt", reason="the compiler is a script of the shell")
@pytest.mark.parametrize("level", [level.name for level in LEVELS.values() if level.architecture == "aarch64"])
def test_levels_of_arm_are_one_flag(level, tmp_path):
    asked = _compiler_that(tmp_path, "exit 0")
    flags = [flag for flag in compilers.flags_of(asked, level) if flag.startswith("-m") and "prefer" not in flag]
    assert flags == [{"neon": "-march=armv8-a"}.get(level, flags[0])]
    assert all(f"+{name}" in flags[0] for name in LEVELS[level].features - {"neon"})


@pytest.mark.skipif(os.name == "nt", reason="the compiler is a script of the shell")
def test_a_compiler_that_cannot_be_held_to_a_level_says_so(tmp_path, monkeypatch):
    stubborn = _compiler_that(tmp_path, 'case "$*" in *-march=x86*) exit 1;; esac; exit 0')
    monkeypatch.setenv("CAMSHAFT_CPU_FEATURES", "avx2")
    with pytest.raises(
        BackendError, match=r"stubborn does not take -march=x86-64 or .* keep to CAMSHAFT_CPU_FEATURES=avx2"
    ):
        compile_c(stubborn, "")


def test_an_object_that_llvm_would_die_of_is_refused():
    unknown = "void missing_in_this_process(void);\nvoid f(void) { missing_in_this_process(); }\n"
    assert "missing_in_this_process" in refusal(compile_c(find_compiler(), unknown))
    local = "static _Thread_local int n;\nint f(void) { return ++n; }\n"
    assert "relocation" in refusal(compile_c(find_compiler(), local))
    assert "ELF" in refusal(b"\xcf\xfa\xed\xfe" + bytes(100))
    assert refusal(b"\x7fELF\x02\x01" + bytes(4)) is not None


def test_what_the_loader_cannot_take_becomes_a_shared_library():
    text = "static _Thread_local int n;\n" + TWICE.replace("NAME", "twice_counted").replace("{\n", "{\n    n++;\n", 1)
    data = load.build(find_compiler(), text)
    assert data[:1] == b"s"
    runs(load.load(data), "twice_counted")
    with pytest.raises(BackendError, match="a stored object cannot be loaded"):
        load.load(b"o" + compile_c(find_compiler(), text))


def test_the_compiler_that_is_asked_for_is_the_one(monkeypatch):
    found = find_compiler()
    monkeypatch.setenv("CAMSHAFT_CC", shlex.join(found.command))
    assert find_compiler().version == found.version
    monkeypatch.setenv("CAMSHAFT_CC", "no-such-compiler -x")
    assert absent() == "CAMSHAFT_CC=no-such-compiler -x: there is no such C compiler, or it does not answer --version"
    with pytest.raises(BackendError, match="no such C compiler"):
        find_compiler()
    with pytest.raises(BackendError, match="no such C compiler"):
        camshaft.set_backend_override("c")


def test_without_a_compiler_one_line_says_what_to_install(monkeypatch):
    monkeypatch.delenv("CAMSHAFT_CC", raising=False)
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    compilers._find.cache_clear()
    try:
        said = absent()
    finally:
        compilers._find.cache_clear()
    assert (
        said == "there is no C compiler here: install clang or gcc, or pip install ziglang, or name one in CAMSHAFT_CC"
    )


@kernel
def doubled(k, x, out, *, n):
    for i in k.lanes(n):
        out[i] = x[i] * 2


def made():
    params = (ir.ArrayParam("x", camshaft.dtypes.f32, (8,)), ir.ArrayParam("out", camshaft.dtypes.f32, (8,), True))
    return device("cpu:c").compile(CompileRequest(doubled, params, (), {"n": 8}))


def test_a_kernel_is_compiled_once_and_then_found_in_the_store(tmp_path, monkeypatch):
    from camshaft.backends.cpu import device as module

    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_functions", {})
    compiled, loaded = counts.compiled, counts.loaded
    first = made()
    assert made() is first
    assert (counts.compiled, counts.loaded) == (compiled + 1, loaded)
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    block = np.array([x.ctypes.data, out.ctypes.data], np.int64)
    first(block.ctypes.data, 0, 1)
    np.testing.assert_array_equal(out, 2 * x)
    script = "from tests.backends.cpu.test_c import made, counts; made(); print(counts.compiled, counts.loaded)"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p)}
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=env)
    assert child.stdout == "0 1\n", child.stderr[-400:]


def test_the_registry_has_it():
    found = device("cpu:c")
    assert found is device("c")
    assert (found.name, found.backend, found.space, found.lanes) == ("cpu:c", "c", "host", 1)
    (info,) = [d for d in devices() if d.name == "cpu:c"]
    assert info.absent is None
    assert find_compiler().version in info.description
    with pytest.raises(BackendError, match="no backend or device 'c:1'"):
        device("c:1")


def test_memory_and_runs_are_the_processs_own():
    with pytest.raises(BackendError, match="the process's own memory"):
        device("cpu:c").allocate(64)
    with pytest.raises(BackendError, match="by address"):
        device("cpu:c").bind((), 0)


def test_an_override_runs_a_plan_on_it():
    a, b = np.random.default_rng(0).normal(size=(2, 5, 70)).astype(np.float32)

    @camshaft.jit(backend="cpu:c")
    def f(x, y):
        return camshaft.add(camshaft.silu(x), y)

    np.testing.assert_allclose(f(a, b), a / (1 + np.exp(-a)) + b, rtol=2e-6, atol=1e-6)
    assert {choice.backend for choice in f.plan(a, b).choices} == {"c"}


def test_only_loops_with_many_interleaved_stores_are_kept_from_gcc_s_vectorizer():
    few, many = ([f"    out[i * {n} + {j}] = x;" for j in range(n)] for n in (8, 32))
    assert module._without_vectors(few) == few
    assert module._without_vectors(many) == [many[0], "    CAMSHAFT_NO_VECTORS;", *many[1:]]
