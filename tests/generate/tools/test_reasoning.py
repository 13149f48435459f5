"""Thoughts are told from answers however the text is cut into pieces."""

from __future__ import annotations

import pytest

from camshaft.generate.tools.calls import ToolCall
from camshaft.generate.tools.reasoning import HARMONY, AnswerReader, Reasoning, reasoning_of
from camshaft.generate.tools.styles import HERMES
from camshaft.text.chat import ChatTemplate

THINK = reasoning_of(ChatTemplate("{% if '</think>' in x %}{% endif %}"))


def told(reader: AnswerReader, pieces: list[str]) -> tuple[str, str]:
    """The thoughts and the text of an answer that comes in pieces; no delta is empty, or of both."""
    deltas = [delta for piece in pieces for delta in reader.push(piece)] + reader.finish()
    assert all(bool(delta.text) + bool(delta.thought) + (delta.index >= 0) == 1 for delta in deltas)
    assert "".join(delta.thought for delta in deltas) == reader.thought
    return reader.thought, "".join(delta.text for delta in deltas)


def in_pieces(text: str) -> list[list[str]]:
    return [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]


@pytest.mark.parametrize(
    ("text", "is_open", "thought", "answer"),
    [
        ("<think>\na < b\n\nc\n</think>\n\nHi <think> x", False, "a < b\n\nc", "Hi <think> x"),
        (" \n<think>a</think>b", False, "a", "b"),
        ("<think>\n\n</think>\n\nb", False, "", "b"),
        ("a </thin k </think>b", True, "a </thin k", "b"),
        ("a </thi", True, "a </thi", ""),
        ("no thoughts", False, "", "no thoughts"),
        ("  no thoughts", False, "", "  no thoughts"),
        ("<thin", False, "", "<thin"),
        ("<think>cut", False, "cut", ""),
        ("a</think>  ", True, "a", ""),
    ],
)
def test_marked_thoughts(text: str, is_open: bool, thought: str, answer: str) -> None:
    for pieces in in_pieces(text):
        assert told(AnswerReader(None, THINK, is_open), pieces) == (thought, answer), pieces
    assert told(AnswerReader(), [text]) == ("", text)


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        (
            "<|channel|>analysis<|message|>a\n b<|end|><|start|>assistant<|channel|>final<|message|>Hi <|x",
            "a\n b",
            "Hi <|x",
        ),
        ("<|channel|>final<|message|>Hi", "", "Hi"),
        ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>b<|start|>assistant<|channel|>final<|message|>c",
            "a\n\nb",
            "I look.c",
        ),
        ("<|channel|>analysis<|mess", "", ""),
        ("no channel", "", "no channel"),
    ],
)
def test_channels(text: str, thought: str, answer: str) -> None:
    for pieces in in_pieces(text):
        assert told(AnswerReader(None, HARMONY), pieces) == (thought, answer), pieces


def test_thoughts_that_are_closed_in_the_prompt() -> None:
    assert told(AnswerReader(None, THINK, True, is_closed=True), ["a</think>b"]) == ("", "a</think>b")
    assert told(AnswerReader(None, HARMONY, is_closed=True), ["{}"]) == ("", "{}")


def test_calls_after_thoughts() -> None:
    text = '<think>I call <tool_call></think>\nWell\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    for pieces in in_pieces(text):
        reader = AnswerReader(HERMES, THINK)
        assert told(reader, pieces) == ("I call <tool_call>", "Well")
        assert reader.calls == [ToolCall("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("source", "begin"),
    [
        ("{{ '<|start|>assistant<|channel|>analysis<|message|>' }}", HARMONY.begin),
        ("[THINK]x[/THINK]", "[THINK]"),
        ("<seed:think></seed:think>", "<seed:think>"),
        ("{{ '<|channel>thought\\n<channel|>' }}", "<|channel>thought"),
        ("{{ messages }}", None),
    ],
)
def test_the_style_is_that_of_the_template(source: str, begin: str | None) -> None:
    found: Reasoning | None = reasoning_of(ChatTemplate(source))
    assert (None if found is None else found.begin) == begin
