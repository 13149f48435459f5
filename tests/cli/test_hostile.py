"""Malicious files, damaged caches and resource limits through the real command: a one-line error with status 2, or success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import tiny_model

COMMANDS = (["generate", "-p", "x"], ["plan"], ["bench", "--repeat", "1"], ["chat"])


def _empty(model: bytes) -> bytes:
    return b""


def _another(model: bytes) -> bytes:
    return b"PK\x03\x04" + model[4:]


def _truncated(model: bytes) -> bytes:
    return model[: len(model) * 2 // 3]


def _header_only(model: bytes) -> bytes:
    return model[:24]


DAMAGES: dict[Callable[[bytes], bytes], str] = {
    _empty: "the file is empty",
    _another: "is not a GGUF file",
    _truncated: "truncated",
    _header_only: "cannot hold so many",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("tiny"))


def one_line(result: Any, *words: str) -> None:
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("camshaft: ")
    assert all(line.startswith("camshaft: measuring") for line in lines[:-1])
    assert all(word in lines[-1] for word in words), lines[-1]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__[1:])
def test_a_damaged_file_is_refused_by_every_command(cli: Any, tiny: Path, tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(tiny.read_bytes()))
    for command, *options in COMMANDS:
        one_line(cli(command, str(path), *options, stdin="hello\n"), str(path), DAMAGES[damage])


def test_what_is_no_file_is_refused(cli: Any, tmp_path: Path) -> None:
    one_line(cli("generate", str(tmp_path), "-p", "x"), "is a folder")
    one_line(cli("generate", str(tmp_path / "none.gguf"), "-p", "x"), "no such file")
    one_line(
        cli("generate", "smollm2", "--file", str(tmp_path / "none")), f"camshaft: {tmp_path / 'none'}: no such file"
    )
    one_line(cli("rerank", "smollm2", "q", str(tmp_path / "none")), f"camshaft: {tmp_path / 'none'}: cannot be read")
    one_line(cli("pull", str(tmp_path / "none.whl")), "no such file")
    one_line(cli("pull", "nothing"), "unknown model 'nothing'; known: smollm2")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        one_line(cli("generate", str(tmp_path / "pipe.gguf"), "-p", "x"), "is not a regular file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--raw", "-p", "word " * 200, "--context", "32"], ("the context is 32", "--context")),
        (["--raw", "-p", ""], ("the prompt is empty",)),
        (["-p", "x", "--context", "99999999999999999999999"], ("99999999999999999999999",)),
        (["-p", "x", "--threads", "two"], ("'two' is not a whole number",)),
        (["-p", "x", "--top-p", "half"], ("'half' is not a number",)),
        (["-p", "x", "--backend", "abacus"], ("no backend or device 'abacus'", "simd")),
        (["-p", "x", "--backend", "cuda"], ("'cuda' is absent",)),
        (["-p", "x", "--activations", "f64"], ("'f64'", "q8")),
        (["-p", "x", "--threads", "2000"], ("threads=2000", "1024")),
        (["-p", "x", "--temperature", "1e9"], ("temperature", "1e6")),
        (["-p", "x", "--top-p", "nan"], ("--top-p=nan",)),
        (["-p", "x", "--seed", str(2**64)], ("seed",)),
    ],
)
def test_an_option_out_of_range_is_refused(cli: Any, tiny: Path, options: list[str], words: tuple[str, ...]) -> None:
    one_line(cli("generate", str(tiny), *options), *words)


@pytest.mark.full
def test_a_context_that_fills_up_is_a_length_and_no_error(cli: Any, tiny: Path) -> None:
    for most in ("1000", "-1"):
        options = ["--raw", "-p", "word word", "-n", most, "--context", "16", "--greedy"]
        result = cli("generate", str(tiny), *options, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        report = json.loads(result.stdout)
        assert report["finish_reason"] == "length"
        assert report["prompt_tokens"] + report["tokens"] == 17


@pytest.mark.parametrize(
    ("variable", "value"),
    [("THREADS", "many"), ("THREADS", "²"), ("BACKEND", "abacus"), ("ACTIVATIONS", "f64")],
)
def test_a_setting_of_nonsense_is_named(
    cli: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"CAMSHAFT_{variable}", value)
    one_line(cli("generate", str(tiny), "-p", "x"), f"CAMSHAFT_{variable}={value}: ")


def start(cache: Path, model: Path, *options: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "camshaft.cli", "generate", str(model), "--raw", "-p", "a b", "-n", "3"]
    source = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environment = os.environ | {"CAMSHAFT_CACHE_DIR": str(cache), "PYTHONPATH": source}
    # Where files may not grow, Python 3.11 leaves bytecode cut short, which every later process would fail on.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    full = [*command, "--greedy", "--threads", "1", *options]
    return subprocess.Popen(full, env=environment, encoding="utf-8", **pipes, **more)


def text_of(child: subprocess.Popen[str]) -> str:
    """The text that it said, and nothing else but which kept plans were damaged."""
    out, err = child.communicate(timeout=240)
    said = [line for line in err.splitlines() if "its entry was damaged" not in line]
    assert (child.returncode, said) == (0, [])
    return str(json.loads(out)["text"])


@pytest.mark.full
def test_two_at_once_on_an_empty_cache_and_then_every_entry_damaged(tiny: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = start(cache, tiny, "--json"), start(cache, tiny, "--json")
    text = text_of(first)
    assert text_of(second) == text
    entries = [
        p for folder in ("objects", "keys", "evidence", "schedules", "headers") for p in (cache / folder).glob("*/*")
    ]
    assert len(entries) > 40
    for number, path in enumerate(entries):
        content = bytearray(path.read_bytes())
        content[number * 37 % len(content)] ^= 0xFF
        path.write_bytes(content)
    assert text_of(start(cache, tiny, "--json")) == text
    assert sorted(p.name for p in cache.iterdir()) == ["evidence", "headers", "keys", "objects", "schedules", "state"]
    assert sorted(p.name for p in (cache / "state").iterdir() if not p.name.endswith(".lock")) == ["counters"]


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on a file's size there")
def test_a_cache_that_takes_no_more_is_done_without(tiny: Path, tmp_path: Path) -> None:
    import resource

    def no_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    child = start(tmp_path / "cache", tiny, preexec_fn=no_files)
    out, err = child.communicate(timeout=240)
    assert child.returncode == 0
    assert len(err.splitlines()) == 1
    assert err.startswith("camshaft: going on without the cache: ")
    assert "file too large (CAMSHAFT_CACHE_DIR moves the cache)" in err
    assert out == start(tmp_path / "another", tiny).communicate(timeout=240)[0] != ""
    assert [p for folder in ("objects", "keys", "evidence") for p in (tmp_path / "cache" / folder).rglob("*")] == []
