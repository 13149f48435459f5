"""`camshaft chat`: messages, commands, several lines, a full context, Ctrl-C; on a pipe and on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import tiny_model

ANSWER = {"role": "assistant", "content": "Hello"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_every_line_is_a_message_and_blank_lines_are_not(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("chat", model_file, "-n", "-1", "--stop", "x", stdin="one\n\n  \ntwo\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\nHello\n", "")
    assert lm.talk.said == ["one", "two"]
    assert lm.talk.messages == [user("one"), ANSWER, user("two"), ANSWER]
    assert (lm.calls[0].max_tokens, lm.calls[0].stop) == (-1, ("x",))


def test_three_quotes_begin_and_end_a_message_of_several_lines(cli: Any, lm: Any, model_file: str) -> None:
    lines = '"""one\n\n/bye\ntwo""" \n"""\nthree\n"""\n"""four"""\n""""""\n"""five\n'
    result = cli("chat", model_file, stdin=lines)
    assert (result.exit_code, result.stdout) == (0, 3 * "Hello\n")
    assert lm.talk.said == ["one\n\n/bye\ntwo", "three", "four"]
    assert result.stderr == 'camshaft: the message has no closing """ and was not sent\n'


def test_commands(cli: Any, lm: Any, model_file: str, tmp_path: Path) -> None:
    saved = tmp_path / "a chat.json"
    lines = f"one\n/save {saved}\n/clear\n/what is it\n /what\n/load {saved}\ntwo\n/bye\nnever\n"
    result = cli("chat", model_file, "--system", "Be brief.", stdin=lines)
    assert (result.exit_code, result.stdout) == (0, 3 * "Hello\n")
    assert result.stderr.splitlines() == [
        f"camshaft: saved 3 messages in {saved}",
        "camshaft: cleared",
        "camshaft: unknown command '/what'; /help lists them; a message may begin with a blank",
        f"camshaft: loaded 3 messages from {saved}",
    ]
    system = {"role": "system", "content": "Be brief."}
    assert json.loads(saved.read_text("utf-8")) == [system, user("one"), ANSWER]
    assert lm.talk.messages == [system, user("one"), ANSWER, user("two"), ANSWER]
    assert lm.talk.said == ["one", " /what", "two"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".gguf") == ["a chat.json"]


def test_help_lists_every_command(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("chat", model_file, stdin="/help\n")
    assert (result.exit_code, result.stdout) == (0, "")
    for word in ("/help", "/bye", "/clear", "/save FILE", "/load FILE", '"""'):
        assert f"  {word} " in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (b"\xff", "is not a saved chat: 'utf-8' codec"),
        (b"{", "is not a saved chat: Expecting"),
        (b"[" * 100_000, "is not a saved chat: "),
        (b'{"role": "user", "content": "x"}', "is not a saved chat: messages came as dict"),
        (b'[{"role": "user"}]', "is not a saved chat: message 0 is"),
        (b"[1]", "is not a saved chat: message 0 is 1; wanted"),
    ],
)
def test_a_file_that_is_no_chat_is_neither_loaded_nor_overwritten(
    cli: Any, lm: Any, model_file: str, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    result = cli("chat", model_file, stdin=f"one\n/load {path}\n" + (f"/save {path}\n" if content else ""))
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert all(said in line for line in result.stderr.splitlines())
    assert result.stderr.count("\n") == 1 + (content is not None)
    assert lm.talk.messages == [user("one"), ANSWER]
    assert content is None or path.read_bytes() == content


def test_files_that_cannot_be(cli: Any, lm: Any, model_file: str, tmp_path: Path) -> None:
    lines = f"/save\n/load\n/save {tmp_path}\n/load {tmp_path}\n/save {tmp_path}/none/x\n/save ~nobody-here/x\n"
    result = cli("chat", model_file, stdin=lines)
    assert (result.exit_code, result.stdout) == (0, "")
    said = ["missing: /save FILE", "missing: /load FILE", "not a regular", "not a regular", "no such file", "~nobody"]
    assert all(word in line for word, line in zip(said, result.stderr.splitlines(), strict=True))


def test_any_text_is_saved_and_loaded(cli: Any, lm: Any, model_file: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    messages = [user('grün\u2028\ud800"\n')]
    first.write_text(json.dumps(messages))
    result = cli("chat", model_file, stdin=f"/load {first}\n/save {second}\n/clear\n/load {second}\n/save {second}\n")
    assert (result.exit_code, result.stderr.count("\n")) == (0, 5)
    assert lm.talk.messages == json.loads(second.read_bytes()) == messages
    assert "grün" in second.read_text("utf-8")


def test_a_full_context_is_said_in_a_line(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("chat", model_file, stdin="one\ndrop\nfill\n")
    assert (result.exit_code, result.stdout) == (0, 3 * "Hello\n")
    assert result.stderr.splitlines() == [
        "camshaft: the context was full: dropped the oldest 4 messages",
        "camshaft: the context is full: the answer ends here",
    ]


def test_a_message_that_does_not_fit_is_a_line_and_the_chat_goes_on(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("chat", model_file, stdin="too long\none\n")
    assert (result.exit_code, result.stdout) == (2, "Hello\n")
    assert result.stderr == "camshaft: 3000 tokens and 2048 fit\n"
    result = cli("chat", model_file, "--context-shift", "off", stdin="too long\none\n")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "camshaft: 3000 tokens and 2048 fit\n")
    assert lm.talk.context_shift is False
    result = cli("chat", model_file, "--context-shift", "no")
    assert (result.exit_code, result.stderr) == (2, "camshaft: --context-shift 'no'; wanted on or off\n")


def test_a_stopped_answer_is_no_part_of_the_conversation(cli: Any, lm: Any, model_file: str) -> None:
    lm.pieces = ["Hel", KeyboardInterrupt()]
    result = cli("chat", model_file, stdin="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Hel\nHel\n")
    assert result.stderr == 2 * "camshaft: stopped; the message and its answer are not part of the conversation\n"
    assert lm.talk.messages == []
    result = cli("chat", model_file, stdin="interrupt\n")  # before the answer has begun
    assert (result.exit_code, result.stdout, result.stderr.count("stopped")) == (0, "\n", 1)


def test_bytes_that_are_not_utf8_are_replaced(cli: Any, lm: Any, model_file: str) -> None:
    assert cli("chat", model_file, stdin=b"a\xffb\n").exit_code == 0
    assert lm.talk.said == ["a\ufffdb"]


def test_ctrl_c_at_the_prompt_clears_the_line(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = [KeyboardInterrupt(), '"""two', KeyboardInterrupt(), "one", EOFError()]

    def read_line(prompt: str) -> str:
        line = lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", read_line)
    monkeypatch.setattr("camshaft.cli.commands.inference.chat._input_prompt", lambda: "> ")
    result = cli("chat", model_file)
    assert (result.exit_code, result.stdout, lm.talk.said) == (0, "\n\nHello\n\n", ["one"])


@pytest.mark.full
def test_a_chat_outlives_its_context(cli: Any, tmp_path: Path) -> None:
    """With a real model; tests/generate/conversations/ has the rules."""
    tiny = tiny_model("llama", tmp_path)
    options = ["--greedy", "--threads", "1", "--activations", "f32", "--context", "128", "-n", "8"]
    turns = [f"turn {i}" for i in range(8)]
    result = cli("chat", str(tiny), *options, stdin="\n".join([turns[0], "word " * 500, *turns[1:]]))
    lines = result.stderr.splitlines()
    assert "camshaft: the context was full: dropped the oldest" in result.stderr
    assert sum("the system message and this message have" in line for line in lines) == 1
    assert result.exit_code == 2
    result = cli("chat", str(tiny), *options, "--context-shift", "off", stdin="\n".join(turns))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "the conversation has" in result.stderr
