"""Exit statuses: Ctrl-C at any moment, and output that cannot be written; never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from camshaft.cli import exits
from tests.support.quick import full

linux = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full and signals of Linux")

# Ctrl-C at a moment that the code chooses; `say()` is what the command runs.
SIGNAL = """
import atexit, os, signal, sys, types, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
def interrupt(*ignored):
    os.kill(os.getpid(), signal.SIGINT)
def say():
    pass
"""
MOMENTS = {
    "import": """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            interrupt()
sys.meta_path.insert(0, Finder())
""",
    "command": """
say = interrupt
""",
    "destructor": """
import time
class Doomed:
    def __del__(self):
        interrupt()
        time.sleep(0.001)
def say():
    Doomed()
    time.sleep(10)
""",
    "exit": """
atexit.register(interrupt)
""",
}
RUN = """
import camshaft.cli.__main__ as start
if moment != "import":
    import camshaft.cli.main as main
    from camshaft.cli.command import command
    spoken = say
    @main.app.command()
    @command
    def talk() -> None:
        spoken()
start.main()
"""


@linux
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment_is_status_130_without_a_traceback(moment: str) -> None:
    code = f"{SIGNAL}{MOMENTS[moment]}moment = {moment!r}\n{RUN}"
    done = subprocess.run([sys.executable, "-c", code, "talk"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_ctrl_c_stays_ignored_where_it_was() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        exits.leave_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@linux
@pytest.mark.parametrize("arguments", [("--version",), full(("--help",)), full(("models", "--json"))])
def test_a_full_device_is_one_line_and_status_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "camshaft", *arguments],
            env=os.environ | {"CAMSHAFT_CACHE_DIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("camshaft: ")
    assert done.stderr.endswith("no space left on device\n")
    assert done.stderr.count("\n") == 1


@linux
@pytest.mark.soak
@pytest.mark.parametrize("start", [("-m", "camshaft"), ("-c", "from camshaft.cli.__main__ import main; main()")])
def test_ctrl_c_after_any_delay_is_status_130(start: tuple[str, ...], tmp_path: Path) -> None:
    """Python itself prints a traceback before the first line of camshaft.cli runs: those runs are left out."""
    wrong = []
    for delay_ms in range(0, 1500, 20):
        child = subprocess.Popen(
            [sys.executable, *start, "ops"],
            env=os.environ | {"CAMSHAFT_CACHE_DIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(delay_ms / 1000)
        child.send_signal(signal.SIGINT)
        errors = child.communicate(timeout=60)[1]
        # -2: Python ends itself by the signal, which a shell shows as 130. 0: the command was done before.
        if "camshaft/cli" in errors or (errors.strip() == "" and child.returncode not in (130, -2, 0)):
            wrong.append((delay_ms, child.returncode, errors))
    assert wrong == []
