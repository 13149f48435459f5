"""`camshaft batch`: its output; and runs that are killed at any moment, which lose and double no row."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from camshaft import LanguageModel
from camshaft.cli.main import make_app
from tests.serve.batch.small_batches import COMPLETION, line_of, results_of, run, write_lines
from tests.serve.conftest import SESSIONS
from tests.support.fixtures import tiny_model


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(tiny_model("llama", tmp_path))
    lines = [line_of("a", COMPLETION, {"prompt": "a", "max_tokens": 2, "model": "llama", "temperature": 0}), "{"]
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    arguments = ["batch", model, str(source), str(target), "--slots", "2", "--context", "48"]
    ran = CliRunner().invoke(make_app(["batch"]), arguments)
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.startswith("2 requests: 1 answered, 1 failed; 2 tokens in ")
    assert re.search(r"answering in\.jsonl: 2 of 2 requests, [\d.]+ tokens/s, 0:00:00 left\n", ran.stderr)
    ran = CliRunner().invoke(make_app(["batch"]), [*arguments, "--json"])
    assert json.loads(ran.stdout)["n_before"] == 2
    ran = CliRunner().invoke(make_app(["batch"]), ["batch", model, "absent", str(target)])
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    monkeypatch.delitem(sys.modules, "camshaft.serve.batch.run")
    monkeypatch.delattr("camshaft.serve.batch.run")
    monkeypatch.delitem(sys.modules, "camshaft.serve.batch.files")
    monkeypatch.setitem(sys.modules, "starlette.responses", None)
    monkeypatch.delitem(sys.modules, "camshaft.serve.requests.respond")
    ran = CliRunner().invoke(make_app(["batch"]), arguments)
    assert ran.stderr.endswith("needs the package 'starlette.responses': pip install 'camshaft[serve]'\n")


def _started(arguments: Sequence[str]) -> subprocess.Popen[str]:
    # A shell's background jobs ignore Ctrl-C, and so would a child of them.
    heeds = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "camshaft", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)


def _n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL to send")
def test_a_killed_run_loses_and_doubles_nothing(lm: LanguageModel, tmp_path: Path) -> None:
    n, given = 120, {"temperature": 1.2, "seed": 3, "max_tokens": 30, "ignore_eos": True}
    lines = [line_of(str(i), COMPLETION, {"prompt": [5, 6 + i % 20, 7 + i % 7], **given}) for i in range(n)]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    options = ["--slots", str(SESSIONS), "--context", "48", "--threads", "1", "--activations", "f32"]
    arguments = ["batch", str(tiny_model("llama", tmp_path)), str(source), str(target), *options]
    for number, status in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGKILL, -9)):
        before = _n_lines(target)
        with _started(arguments) as child:
            while _n_lines(target) < before + 10:
                assert child.poll() is None
                time.sleep(0.005)
            child.send_signal(number)
            _, said = child.communicate(timeout=60)
        assert (child.returncode, "Traceback" in said) == (status, False), said
        assert _n_lines(target) < n
    with _started(arguments) as child:
        _, said = child.communicate(timeout=120)
    assert child.returncode == 0, said
    run(lm, source, tmp_path / "once")
    wanted, found = ([(r["custom_id"], r["response"]["body"]["choices"]) for r in results_of(p)]
                     for p in (tmp_path / "once", target))  # fmt: skip
    assert sorted(found) == sorted(wanted)
    assert len(found) == n
