"""Text on a terminal: control characters of files, prompts and models are escaped; what is piped is as it is."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from camshaft.cli import main as command_line
from camshaft.cli.command import Bar, Notice
from camshaft.cli.terminal import EscapingStream, escaped, protect_streams

NASTY = "a\x1b[2J\r\b\x07\x7f\x9b31m\u202eb\u2066\u200f\u061c\u2028\tc\n"
SHOWN = r"a\x1b[2J\r\x08\x07\x7f\x9b31m\u202eb\u2066\u200f\u061c\u2028" + "\tc\n"


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def streams(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> tuple[Stream, Stream]:
    """New stdout and stderr. A fixture cannot set them: pytest sets its own between setup and test."""
    out, err = Stream(is_terminal), Stream(is_terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["camshaft", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return ended.value.code


def test_control_characters_are_escaped_except_newline_and_tab() -> None:
    assert escaped(NASTY) == SHOWN
    every = "".join(map(chr, range(0x2100)))
    assert [c for c in escaped(every) if not c.isprintable() and not c.isspace() and ord(c) < 0x20] == []
    plain = "héllo 日本 👩\u200d💻 نص\n\t"
    assert escaped(plain) == plain


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, SHOWN), (False, NASTY)], ids=["terminal", "pipe"])
def test_generated_text(
    is_terminal: bool, shown: str, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = streams(monkeypatch, is_terminal)
    monkeypatch.setattr(lm, "pieces", list(NASTY))
    assert not run(monkeypatch, "generate", model_file, "-p", "x")
    assert out.getvalue() == shown


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_an_error_message(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = streams(monkeypatch, is_terminal)
    for arguments in (["generate", "no\x1b[2J.gguf", "-p", "x"], ["generate", "--no\x1b[2J"], ["pull", "no\u202e"]):
        assert run(monkeypatch, *arguments) == 2
    lines = err.getvalue().splitlines()
    assert len(lines) == 3
    assert r"no\x1b[2J.gguf" in lines[0]
    assert r"--no\x1b[2J" in lines[1]
    assert r"no\u202e" in lines[2].replace("\\\\", "\\")
    assert "\x1b" not in err.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_what_else_goes_to_stderr(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = streams(monkeypatch, is_terminal)
    protect_streams()
    print(NASTY, end="", file=sys.stderr)
    sys.stderr.writelines([NASTY])
    assert err.getvalue() == 2 * SHOWN


def test_progress_still_moves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = streams(monkeypatch, True)
    protect_streams()
    protect_streams()
    assert isinstance(sys.stderr, EscapingStream)
    assert not isinstance(sys.stderr.unescaped, EscapingStream)
    with Bar("a\x1b[2J", unit="runs") as bar:
        bar(1, 2)
    notice = Notice("b", after_s=0)
    with notice:
        notice._timer.join()
    text = err.getvalue()
    assert r"a\x1b[2J" in text
    assert "\x1b[2J" not in text
    assert text.endswith("b\r \r")
