"""Progress on a pipe, sizes, hints that name the caller's options, and `tune --only` with an unknown word."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from camshaft import ops
from camshaft.cli.command import FAILED, Bar, command, fail, one_line, size
from camshaft.errors import ContextError, count
from camshaft.hints import hints_for


def test_a_pipe_gets_a_line_at_the_start_and_at_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("proving kernels", unit="kernels") as progress:
        for done in range(201):
            progress(done, 200)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "camshaft: proving kernels (200 kernels)"
    assert lines[1:] == [f"camshaft: proving kernels: {n} of 200 kernels" for n in range(20, 201, 20)]
    with Bar("measuring m", unit="runs") as progress:
        progress(0, 3)
        progress(1, 3)
        progress(3, 3)
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()[1:]] == [
        "1 of 3 runs",
        "3 of 3 runs",
    ]
    with Bar("nothing", unit="shapes") as progress:
        progress(0, 0)
    with Bar("pulling m") as progress:
        for done in range(5):
            progress(done * 10**6, 4 * 10**6)
    assert capsys.readouterr().err.splitlines() == ["camshaft: nothing (0 shapes)", "camshaft: pulling m (4 MB)"]


@pytest.mark.full
def test_a_pipe_gets_whole_formulas(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = cli("ops").stdout.splitlines()
    assert [line for line in lines if line.endswith("...")] == []
    longest = max(ops.all_ops(), key=lambda op: len(op.formula))
    assert any(line.endswith(longest.formula) for line in lines)


def test_a_megabyte_is_a_million_bytes(cli: Any) -> None:
    assert (size(10**6), size(32 * 1024), size(1)) == ("1.0 MB", "32.8 kB", "1 byte")
    from camshaft.setting_values import size as setting_size

    assert setting_size("512M") == 512 * 10**6


@pytest.mark.parametrize(
    ("word", "hint"),
    [("sofmax", "did you mean softmax"), ("zzzz", "'camshaft ops' lists the names")],
)
def test_tune_refuses_a_word_of_no_op(cli: Any, word: str, hint: str) -> None:
    result = cli("tune", "--only", word)
    assert (result.exit_code, result.stdout) == (FAILED, "")
    assert f"--only {word}: no op has this in its name; {hint}" in result.stderr


def test_tune_refuses_an_op_that_the_ladder_lacks(cli: Any) -> None:
    result = cli("tune", "--only", "isnan")
    assert result.exit_code == FAILED
    assert "the ladder has no such op; wanted a word of add, matmul, multiply" in result.stderr


def test_hints_name_the_options_that_the_command_has(capsys: pytest.CaptureFixture[str]) -> None:
    @command
    def run(context: int = 1, top_p: float = 1.0, raw: bool = False) -> None:
        raise ContextError("Sampling top_p=2: raise context=, use raw=True, or raise sessions=; or context=.")

    with pytest.raises(typer.Exit):
        run()
    wanted = "camshaft: --top-p=2: raise --context or use --raw; or --context.\n"
    assert capsys.readouterr().err == wanted
    with pytest.raises(typer.Exit):
        fail(ContextError("raise context="))
    assert capsys.readouterr().err == "camshaft: raise context=\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("context",), "no memory for 8 sessions: lower --context"),
        (("context", "slots"), "no memory for 8 sessions: lower --context or --slots"),
        (("sessions",), "no memory for 8 sessions: lower --sessions"),
        ((), "no memory for 8 sessions"),
    ],
)
def test_hints_that_the_command_has_no_option_for_are_left_out(options: Any, said: str) -> None:
    assert one_line(ContextError("no memory for 8 sessions: lower context= or sessions="), options) == said


def test_a_hint_keeps_the_ways_that_its_reader_has() -> None:
    said = {
        "9 tokens: shorten it or raise context=": "9 tokens: shorten it",
        "no template; use raw=True to give it plain text": "no template",
        "a window (lower batch=, raise micro_batches=, or lower length=) of it": "a window of it",
        "'x' has no sum; give pooling= one of cls, mean": "'x' has no sum",
        "there is no such file: a/b=.gguf": "there is no such file: a/b=.gguf",
        "top_p=2: wanted 'a: b= c' or less": "top_p=2: wanted 'a: b= c' or less",
    }
    assert {text: hints_for(text) for text in said} == said


def test_numbers_agree_with_their_nouns() -> None:
    assert [count(n, "session") for n in (0, 1, 2)] == ["0 sessions", "1 session", "2 sessions"]
