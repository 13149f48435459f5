"""`camshaft serve`: errors are one line; it serves until a signal, and ends then."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from camshaft.cli.main import make_app
from camshaft.serve.run import listen
from tests.support.fixtures import tiny_model


def test_a_missing_extra_and_wrong_options_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# none\n", "utf-8")
    with listen("127.0.0.1", 0) as busy:
        port = str(busy.getsockname()[1])
        wrong = {
            f"cannot listen at host '127.0.0.1', port {port}": ["--port", port],
            f"{empty} has no API key": ["--api-key-file", str(empty)],
        }
        for message, arguments in wrong.items():
            ran = CliRunner().invoke(make_app(["serve"]), ["serve", *arguments])
            assert (ran.exit_code, message in ran.stderr, ran.stderr.count("\n")) == (2, True, 1), ran.stderr
    monkeypatch.delitem(sys.modules, "camshaft.serve.run")
    monkeypatch.delattr("camshaft.serve.run")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = CliRunner().invoke(make_app(["serve"]), ["serve"])
    assert ran.stderr == "camshaft: camshaft serve needs the package 'uvicorn': pip install 'camshaft[serve]'\n"
    ran = CliRunner().invoke(make_app(["serve"]), ["serve", "--ray", "auto"])
    assert "pip install 'camshaft[cluster]'" in ran.stderr


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_until_a_signal(tmp_path: Path, number: int, status: int) -> None:
    command = [
        sys.executable,
        "-m",
        "camshaft",
        "serve",
        str(tiny_model("llama", tmp_path)),
        "--port",
        "0",
        "--context",
        "48",
    ]
    # A shell's background jobs ignore Ctrl-C, and so would a child of them.
    heeds = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heeds) as child:
        assert child.stderr is not None
        lines = iter(child.stderr)
        found = next(
            match for line in lines if (match := re.search(r"serving llama at (http://127\.0\.0\.1:\d+)/v1", line))
        )
        with urlopen(f"{found[1]}/health", timeout=60) as answer:
            assert answer.read() == b'{"status":"ok"}'
        child.send_signal(number)
        assert "Traceback" not in "".join(lines)
        assert child.wait(60) == status
