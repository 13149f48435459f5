"""`camshaft chat`: each turn processes only new tokens."""

from __future__ import annotations

from typing import Any

import pytest


def test_the_second_turn_feeds_only_what_is_new(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("chat", model_file, stdin="one\n\ntwo\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\nHello\n", "")
    (first, said, options), (second, then, _) = lm.calls
    assert (said, then) == ("<user>one<end><assistant>", "<end><user>two<end><assistant>")
    assert first == second
    assert options.raw is True


def test_a_stopped_answer_is_kept_and_read_again_by_a_new_session(cli: Any, lm: Any, model_file: str) -> None:
    lm.pieces = ["Hel", KeyboardInterrupt()]
    result = cli("chat", model_file, stdin="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Hel\nHel\n")
    assert lm.calls[1][1] == "<user>one<end><assistant>Hel<end><user>two<end><assistant>"
    assert lm.calls[0][0] in lm.closed_sessions


def test_ctrl_c_at_the_prompt_clears_the_line(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = [KeyboardInterrupt(), "one", EOFError()]

    def read_line(prompt: str) -> str:
        line = lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", read_line)
    monkeypatch.setattr("camshaft.cli.generate._input_prompt", lambda: "> ")
    result = cli("chat", model_file)
    assert (result.exit_code, result.stdout) == (0, "\nHello\n\n")
