"""C compilers: which one is there, and C text to an object or a shared library. Below backends/c/load.py and device.py."""

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

from camshaft.errors import BackendError
from camshaft.settings import settings

COMPILE_TIMEOUT_S = 120.0
_VERSION_TIMEOUT_S = 20.0
_STANDARD = ("-std=c11", "-O2", "-ftree-vectorize", "-fPIC", "-g0", "-w")
# What the text takes for granted: integers wrap, NaN and infinities count, a * b + c may be rounded once. No -ffast-math.
_MEANING = ("-fwrapv", "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
# Left out one by one where a compiler does not know them. Calls go through the object's table of addresses (-fno-plt), as
# LLVM's loader wants it; zig's cc would look for undefined behaviour while a kernel runs.
_WELCOME = (
    "-march=native",
    "-fno-plt",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-sanitize=all",
    "-mprefer-vector-width=512",
)
FLAGS = (*_STANDARD, *_MEANING, *_WELCOME)
_SOURCE = "kernel.c"
_FIRST_ERROR = re.compile(rf"^[^\n]*{re.escape(_SOURCE)}:(\d+):(?:\d+:)? (?:fatal )?error: ([^\n]*)", re.MULTILINE)
INSTALL = "install clang or gcc, or pip install ziglang, or name one in CAMSHAFT_CC"


@dataclass(frozen=True)
class Compiler:
    """A C compiler that answered: its name, the command that starts it, and the first line of what it says of itself."""

    name: str
    command: tuple[str, ...]
    version: str

    def key(self) -> str:
        """A spelling for cache keys: objects of another compiler, or of other flags, are other objects."""
        return f"{self.name}|{self.version}|{' '.join(FLAGS)}"


def find_compiler() -> Compiler:
    """The first of CAMSHAFT_CC, clang, gcc and `python -m ziglang cc` that is there. BackendError that says what to install.

    Where CAMSHAFT_CC is set it is that one or none.
    """
    found = _find(settings().c_compiler)
    if isinstance(found, str):
        raise BackendError(found)
    return found


def absent() -> str | None:
    """None where there is a C compiler, else one line that says what to install."""
    found = _find(settings().c_compiler)
    return found if isinstance(found, str) else None


@functools.cache
def _find(asked: str | None) -> Compiler | str:
    if asked is not None:
        named = _asked(asked)
        return named or f"CAMSHAFT_CC={asked}: there is no such C compiler, or it does not answer --version"
    candidates: list[tuple[str, tuple[str, ...]]] = [("clang", ("clang",)), ("gcc", ("gcc",))]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append(("zig", (sys.executable, "-m", "ziglang", "cc")))
    answers = (_answer(name, command) for name, command in candidates)
    return next((a for a in answers if a is not None), f"there is no C compiler here: {INSTALL}")


def _asked(text: str) -> Compiler | None:
    try:
        words = tuple(shlex.split(text, posix=os.name != "nt"))
    except ValueError:  # a quotation mark without its other half
        return None
    return _answer(Path(words[0]).stem, words) if words else None


def _answer(name: str, command: tuple[str, ...]) -> Compiler | None:
    """The compiler, if it is there and answers --version."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        code, said = _run((program, *command[1:], "--version"), Path.cwd(), _VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = said.strip().splitlines()
    return Compiler(name, (program, *command[1:]), lines[0]) if code == 0 and lines else None


def compile_c(compiler: Compiler, text: str, *, shared: bool = False, timeout_s: float = COMPILE_TIMEOUT_S) -> bytes:
    """C text to a relocatable object for this CPU, or to a shared library. Made in a private folder that is gone afterwards.

    BackendError with the compiler's first error and the C line that it is about, or that it took longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="camshaft-") as name:  # of mode 0700
        folder = Path(name)
        (folder / _SOURCE).write_text(text, "utf-8")
        output = folder / ("kernel.so" if shared else "kernel.o")
        how = ("-shared",) if shared else ("-c",)
        command = (*compiler.command, *flags_of(compiler), *how, "-o", output.name, _SOURCE)
        try:
            code, said = _run(command, folder, timeout_s)
        except subprocess.TimeoutExpired:
            raise BackendError(f"{compiler.name} took longer than {timeout_s:g} s for a kernel; stopped") from None
        except OSError as error:
            raise BackendError(f"{compiler.name} cannot be run: {error}") from error
        if code != 0 or not output.is_file():
            raise BackendError(f"{compiler.name} refused a kernel: {_complaint(said, text, code)}")
        return output.read_bytes()


def _complaint(said: str, text: str, code: int) -> str:
    """The first error with its line of C, else the compiler's first words."""
    match = _FIRST_ERROR.search(said)
    if match is None:
        first = said.strip().splitlines()[:2]
        return " / ".join(first) or f"exit status {code}"
    line = int(match[1])
    source = text.splitlines()[line - 1].strip() if line <= text.count("\n") + 1 else ""
    return f"line {line}: {match[2]}: {source}"


@functools.cache
def flags_of(compiler: Compiler) -> tuple[str, ...]:
    """FLAGS without those that this compiler does not know. One trial compilation where it knows all of them."""
    if _takes(compiler, FLAGS):
        return FLAGS
    needed = (*_STANDARD, *_MEANING)
    return (*needed, *(flag for flag in _WELCOME if _takes(compiler, (*needed, flag))))


def _takes(compiler: Compiler, flags: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory(prefix="camshaft-") as name:
        (Path(name) / _SOURCE).write_text("int trial;\n", "utf-8")
        command = (*compiler.command, *flags, "-Werror", "-c", "-o", "kernel.o", _SOURCE)
        with suppress(OSError, subprocess.TimeoutExpired):
            return _run(command, Path(name), COMPILE_TIMEOUT_S)[0] == 0
    return False


def _run(command: tuple[str, ...], folder: Path, timeout_s: float) -> tuple[int, str]:
    """(exit status, what it said). A compiler that takes too long is ended with the processes that it started."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=os.name != "nt",
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said.decode("utf-8", "replace")
