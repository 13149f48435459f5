"""Find a C compiler and turn C text into an object or a shared library."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from camshaft.emit.target import LEVELS, CpuLevel
from camshaft.errors import BackendError
from camshaft.settings import setting
from camshaft.store.files import digest_of

# A kernel takes up to 35 s of CPU time, which is minutes on a busy machine; the CPU time is limited too.
COMPILE_TIMEOUT_S, _COMPILE_CPU_S = 1200.0, 120
# Kills the whole process group, so the processes that a compiler starts too, when stdin closes: this process has ended, however.
_SUPERVISED = f"""(ulimit -t {_COMPILE_CPU_S}) 2>/dev/null && ulimit -t {_COMPILE_CPU_S}; exec 3<&0; "$@" </dev/null & child=$!
(read -r _ <&3; kill -9 0) >/dev/null 2>&1 & watcher=$!
wait $child; status=$?; kill $watcher; wait $watcher 2>/dev/null; exit $status"""
_SHELL = "/bin/sh"
_VERSION_TIMEOUT_S = 20.0
_STANDARD = ("-std=c11", "-O2", "-ftree-vectorize", "-fPIC", "-g0", "-w")
# The semantics that the C text assumes: integers wrap, NaN and infinities exist, a * b + c may be fused. No -ffast-math.
_SEMANTICS = ("-fwrapv", "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
# Optional flags: those that a compiler rejects are left out. LLVM's loader needs calls through the GOT (-fno-plt); zig's cc
# enables the undefined behaviour sanitizer by default.
_NATIVE = "-march=native"
_OPTIONAL = (
    "-fno-plt",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-sanitize=all",
    "-mprefer-vector-width=512",
)
FLAGS = (*_STANDARD, *_SEMANTICS, _NATIVE, *_OPTIONAL)
# The baseline of an architecture, as gcc and clang or as zig spells it. A level adds features to it.
_BASELINES = {"x86_64": ("-march=x86-64", "-march=x86_64"), "aarch64": ("-march=armv8-a", "-march=armv8.2-a")}
_SOURCE = "kernel.c"
_FIRST_ERROR = re.compile(rf"^[^\n]*{re.escape(_SOURCE)}:(\d+):(?:\d+:)? (?:fatal )?error: ([^\n]*)", re.MULTILINE)
INSTALL = "install clang or gcc, or pip install ziglang, or name one in CAMSHAFT_CC"


@dataclass(frozen=True)
class Compiler:
    """A working C compiler: its name, its command, and the first line of its --version output."""

    name: str
    command: tuple[str, ...]
    version: str

    def key(self) -> str:
        """Returns the cache key of the compiler, its version, the flags and the CPU level."""
        return digest_of(self.name, self.version, FLAGS, setting("cpu_features"))


def find_compiler() -> Compiler:
    """Returns the compiler in CAMSHAFT_CC if that is set, else the first found of clang, gcc and `python -m ziglang cc`.

    BackendError that says what to install if there is none.
    """
    found = _find(setting("c_compiler"))
    if isinstance(found, str):
        raise BackendError(found)
    return found


def absent() -> str | None:
    """Returns None if there is a C compiler, else one line that says what to install."""
    found = _find(setting("c_compiler"))
    return found if isinstance(found, str) else None


@functools.cache
def _find(setting_text: str | None) -> Compiler | str:
    if setting_text is not None:
        named = _from_setting(setting_text)
        return named or f"CAMSHAFT_CC={setting_text}: there is no such C compiler, or it does not answer --version"
    candidates: list[tuple[str, tuple[str, ...]]] = [("clang", ("clang",)), ("gcc", ("gcc",))]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append(("zig", (sys.executable, "-m", "ziglang", "cc")))
    answers = (_answer(name, command) for name, command in candidates)
    return next((a for a in answers if a is not None), f"there is no C compiler here: {INSTALL}")


def _from_setting(text: str) -> Compiler | None:
    try:
        words = tuple(shlex.split(text, posix=os.name != "nt"))
    except ValueError:  # an unclosed quotation mark
        return None
    return _answer(Path(words[0]).stem, words) if words else None


def _answer(name: str, command: tuple[str, ...]) -> Compiler | None:
    """Returns the compiler if it exists and its --version succeeds."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        code, output_text = _run((program, *command[1:], "--version"), Path.cwd(), _VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = output_text.strip().splitlines()
    return Compiler(name, (program, *command[1:]), lines[0]) if code == 0 and lines else None


def compile_c(compiler: Compiler, text: str, *, shared: bool = False, timeout_s: float = COMPILE_TIMEOUT_S) -> bytes:
    """Compiles C text to a relocatable object for this CPU, or to a shared library, in a private temporary folder.

    BackendError with the compiler's first error and its C line, after `timeout_s` seconds, or if the compiler cannot be
    restricted to CAMSHAFT_CPU_FEATURES.
    """
    flags = flags_of(compiler, setting("cpu_features"))
    with tempfile.TemporaryDirectory(prefix="camshaft-") as name:  # of mode 0700
        folder = Path(name)
        (folder / _SOURCE).write_text(text, "utf-8")
        output = folder / ("kernel.so" if shared else "kernel.o")
        how = ("-shared",) if shared else ("-c",)
        command = (*compiler.command, *flags, *how, "-o", output.name, _SOURCE)
        try:
            code, output_text = _run(command, folder, timeout_s)
        except subprocess.TimeoutExpired:
            raise BackendError(f"{compiler.name} took longer than {timeout_s:g} s for a kernel; stopped") from None
        except OSError as error:
            raise BackendError(f"{compiler.name} cannot be run: {error}") from error
        if code != 0 or not output.is_file():
            raise BackendError(f"{compiler.name} refused a kernel: {_first_error(output_text, text, code)}")
        return output.read_bytes()


def _first_error(output_text: str, text: str, code: int) -> str:
    """Returns the first error with its C line, else the first two lines of the output."""
    match = _FIRST_ERROR.search(output_text)
    if match is None:
        first = output_text.strip().splitlines()[:2]
        return " / ".join(first) or f"exit status {code}"
    line = int(match[1])
    source = text.splitlines()[line - 1].strip() if line <= text.count("\n") + 1 else ""
    return f"line {line}: {match[2]}: {source}"


@functools.cache
def flags_of(compiler: Compiler, level: str | None = None) -> tuple[str, ...]:
    """Returns FLAGS without the optional ones that this compiler rejects. One trial compilation if it accepts all.

    With a level of emit/target.py, the architecture's baseline and the level's features replace -march=native.
    """
    baseline, above = ((), (_NATIVE,)) if level is None else _machine(compiler, LEVELS[level])
    needed, optional = (*_STANDARD, *_SEMANTICS, *baseline), (*above, *_OPTIONAL)
    if _accepts(compiler, (*needed, *optional)):
        return (*needed, *optional)
    return (*needed, *(flag for flag in optional if _accepts(compiler, (*needed, flag))))


def _machine(compiler: Compiler, level: CpuLevel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (flags that select the baseline, flags that add the level's features). BackendError if the compiler accepts
    no baseline flag."""
    baseline: tuple[str, ...] = _BASELINES[level.architecture]
    above = tuple(f"-m{name}" for name in sorted(level.features))
    if level.architecture == "aarch64":  # features are part of the one flag, and those past NEON came with Armv8.2
        more = "".join(f"+{name}" for name in sorted(level.features - {"neon"}))
        baseline, above = ((f"{baseline[1]}{more}",) if more else baseline[:1]), ()
    found = next((flag for flag in baseline if _accepts(compiler, (*_STANDARD, flag))), None)
    if found is None:
        raise BackendError(
            f"cpu:c: {compiler.name} does not take {' or '.join(baseline)}, so it cannot keep to "
            f"CAMSHAFT_CPU_FEATURES={level.name}; name another compiler in CAMSHAFT_CC, or unset the level"
        )
    return (found,), above


def _accepts(compiler: Compiler, flags: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory(prefix="camshaft-") as name:
        (Path(name) / _SOURCE).write_text("int trial;\n", "utf-8")
        command = (*compiler.command, *flags, "-Werror", "-c", "-o", "kernel.o", _SOURCE)
        with suppress(OSError, subprocess.TimeoutExpired):
            return _run(command, Path(name), COMPILE_TIMEOUT_S)[0] == 0
    return False


def _run(command: tuple[str, ...], folder: Path, timeout_s: float) -> tuple[int, str]:
    """Runs a command and returns (exit status, output). On a timeout, or when this process ends, its process group is killed."""
    shell = os.name != "nt" and os.access(_SHELL, os.X_OK)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            (_SHELL, "-c", _SUPERVISED, "sh", *command) if shell else command,
            cwd=folder,
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.PIPE if shell else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=os.name != "nt",
        )
        try:
            process.wait(timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                if sys.platform == "win32":
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            if process.stdin is not None:
                process.stdin.close()
        output.seek(0)
        return process.returncode, output.read().decode("utf-8", "replace")
