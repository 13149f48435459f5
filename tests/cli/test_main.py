"""The script as a process: start-up, signals, pipes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("rich", "numpy", "llvmlite", "tokenizers", "jinja2", "huggingface_hub")


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    code = f"import sys, camshaft.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["pull", "models", "generate", "chat", "bench", "plan", "doctor"])
def test_every_command_has_plain_help(cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.exit_code == 0
    assert f"Usage: camshaft {command}" in result.stdout or f" {command} [OPTIONS]" in result.stdout


def test_an_unknown_option_is_a_usage_error_of_few_lines() -> None:
    done = subprocess.run([sys.executable, "-m", "camshaft.cli", "models", "--nosuch"], capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 4
    assert "--nosuch" in done.stderr


def test_a_closed_pipe_ends_the_command_without_a_word() -> None:
    code = """
import camshaft.cli.main as m
from camshaft.cli.run import command
@m.app.command()
@command
def loud() -> None:
    for _ in range(100_000):
        print("camshaft")
m.main()
"""
    child = subprocess.Popen([sys.executable, "-c", code, "loud"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(20) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_terminated_command_cleans_up(tmp_path) -> None:
    code = """
import tempfile, time
import camshaft.cli.main as m
@m.app.command()
def slow() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="work"):
        print("ready", flush=True)
        time.sleep(30)
m.main()
"""
    child = subprocess.Popen([sys.executable, "-c", code, "slow"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.terminate()
    child.stdout.close()
    assert child.wait(20) == 128 + 15
    assert list(tmp_path.iterdir()) == []
