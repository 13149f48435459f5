"""Reasoning: separates what a model thinks from its answer, as the text arrives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from camshaft.generate.tools.calls import Delta, ToolCall, ToolCallReader, begun
from camshaft.generate.tools.styles import Style
from camshaft.text.chat import ChatTemplate

Part = tuple[bool, str]  # whether it is thought, and the text


@dataclass(frozen=True)
class Reasoning:
    """Thoughts stand between `begin` and `end` at the beginning of an answer.

    shown: the tokens of these marks, which are part of the answer's text even if they are control tokens.
    closed: what ends the thoughts in the prompt, before an answer that has none.
    is_harmony: the answer consists of messages in channels, as those of gpt-oss."""

    begin: str
    end: str
    shown: tuple[str, ...]
    closed: str
    is_harmony: bool = False


def _marked(begin: str, end: str, *, shown: tuple[str, ...] = ()) -> Reasoning:
    return Reasoning(begin, end, shown or (begin, end), f"\n{end}\n\n")


HARMONY = Reasoning(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
    "<|channel|>final<|message|>",
    is_harmony=True,
)
# Texts of a template -> how its model thinks, the first that fits.
_STYLES: tuple[tuple[tuple[str, ...], Reasoning], ...] = (
    (("<|channel|>", "analysis", "<|message|>"), HARMONY),
    (("</think>",), _marked("<think>", "</think>")),
    (("[/THINK]",), _marked("[THINK]", "[/THINK]")),
    (("</seed:think>",), _marked("<seed:think>", "</seed:think>")),
    (
        ("<|channel>thought", "<channel|>"),
        _marked("<|channel>thought", "<channel|>", shown=("<|channel>", "<channel|>")),
    ),
)


def reasoning_of(template: ChatTemplate) -> Reasoning | None:
    """How a template's model thinks; None if it does not, or in a form that is not in the table."""
    return next((style for texts, style in _STYLES if all(text in template.source for text in texts)), None)


@dataclass
class _MarkedReader:
    """Thoughts between two marks. Blanks beside the marks are in neither part."""

    style: Reasoning
    state: str  # 'before' the first mark, 'in' the thoughts, 'after' them; 'text' from the answer's first character
    _held: str = ""
    _has_thought: bool = False

    def push(self, text: str) -> list[Part]:
        """Returns the deltas of further text: reasoning and answer."""
        self._held += text
        parts: list[Part] = []
        if self.state == "before":
            self._find_begin()
        if self.state == "in":
            parts += self._think()
        if self.state == "after":
            self._held = self._held.lstrip()
            self.state = "text" if self._held else "after"
        if self.state == "text":
            parts.append((False, self._held))
            self._held = ""
        return [part for part in parts if part[1]]

    def finish(self) -> list[Part]:
        """Returns the deltas of the answer's end."""
        held, self._held = self._held, ""
        is_thought = self.state == "in"
        return [(is_thought, held)] if held.strip() or (held and self.state == "before") else []

    def _find_begin(self) -> None:
        begin, text = self.style.begin, self._held.lstrip()
        if text.startswith(begin):
            self._held, self.state = text[len(begin) :], "in"
        elif not begin.startswith(text):
            self.state = "text"

    def _think(self) -> list[Part]:
        if not self._has_thought:
            self._held = self._held.lstrip()
        thought, mark, rest = self._held.partition(self.style.end)
        if mark:
            self._held, self.state = rest, "after"
            return [(True, thought.rstrip())]
        shown = thought[: len(thought) - begun(thought, self.style.end)].rstrip()
        self._held, self._has_thought = self._held[len(shown) :], self._has_thought or bool(shown)
        return [(True, shown)]


_HEAD_END = "<|message|>"
_ENDS = ("<|end|>", "<|start|>", "<|channel|>")
_TO = re.compile(r"\bto=functions\.([\w.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass
class _HarmonyReader:
    """Messages in channels: those of `analysis` are thoughts, those to a function calls if they `may_call`, all others text."""

    may_call: bool
    in_body: bool
    calls: list[ToolCall] = field(default_factory=list)
    _kind: str = "text"  # of the message: also 'thought' and 'call'
    _held: str = ""
    _n_thoughts: int = 0

    def push(self, text: str) -> list[Delta]:
        """Returns the deltas of further text."""
        self._held += text
        deltas: list[Delta] = []
        while (found := self._read_body() if self.in_body else self._read_head()) is not None:
            deltas += found
        return deltas

    def finish(self) -> list[Delta]:
        """Returns the deltas of the answer's end; an unfinished channel head adds nothing."""
        held, self._held = self._held, ""
        return self._delta(held) if self.in_body or "<|" not in held else []

    def _read_head(self) -> list[Delta] | None:
        head, mark, rest = self._held.partition(_HEAD_END)
        if not mark:
            return None
        channel, to = _CHANNEL.search(head), _TO.search(head)
        self._held, self.in_body = rest, True
        if to is not None and self.may_call:
            self._kind = "call"
            self.calls.append(ToolCall(to[1]))
            return [Delta(index=len(self.calls) - 1, name=to[1])]
        self._kind = "thought" if channel is not None and channel[1] == "analysis" else "text"
        self._n_thoughts += self._kind == "thought"
        return [Delta(thought="\n\n")] if self._kind == "thought" and self._n_thoughts > 1 else []

    def _read_body(self) -> list[Delta] | None:
        found = [(at, mark) for mark in _ENDS if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            text, self.in_body = self._held[:at], False
            self._held = self._held[at + len(mark) * (mark == "<|end|>") :]
            return self._delta(text)
        n = max(begun(self._held, mark) for mark in _ENDS)
        text, self._held = self._held[: len(self._held) - n], self._held[len(self._held) - n :]
        return self._delta(text) or None

    def _delta(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._kind == "call":
            self.calls[-1].arguments += text
            return [Delta(index=len(self.calls) - 1, arguments=text)]
        return [Delta(thought=text) if self._kind == "thought" else Delta(text)]


@dataclass
class AnswerReader:
    """Tells the thoughts and the calls of tools from the text of an answer; `thought` and `calls` are those so far.

    is_open: whether the prompt ends within the thoughts; with `is_closed` it ends after them."""

    style: Style | None = None
    reasoning: Reasoning | None = None
    is_open: bool = False
    is_closed: bool = False
    thought: str = ""
    _calls: ToolCallReader | _HarmonyReader = field(init=False)
    _thoughts: _MarkedReader | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        may_call = self.style is not None and self.style.is_harmony
        if may_call or (self.reasoning is not None and self.reasoning.is_harmony):
            self._calls = _HarmonyReader(may_call, in_body=self.is_closed)
            return
        self._calls = ToolCallReader(self.style)
        if self.reasoning is not None and not self.is_closed:
            self._thoughts = _MarkedReader(self.reasoning, "in" if self.is_open else "before")

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        return self._calls.calls

    @property
    def marks(self) -> tuple[str, ...]:
        """The tokens that the answer's text must show for it."""
        return () if self.reasoning is None else self.reasoning.shown

    def push(self, text: str) -> list[Delta]:
        """Returns the deltas of further text."""
        return self._counted(
            self._calls.push(text) if self._thoughts is None else self._split(self._thoughts.push(text))
        )

    def finish(self) -> list[Delta]:
        """Returns the deltas of the answer's end."""
        rest = [] if self._thoughts is None else self._split(self._thoughts.finish())
        return self._counted([*rest, *self._calls.finish()])

    def _split(self, parts: Sequence[Part]) -> list[Delta]:
        return [
            delta
            for is_thought, text in parts
            for delta in ([Delta(thought=text)] if is_thought else self._calls.push(text))
        ]

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        self.thought += "".join(delta.thought for delta in deltas)
        return deltas

    def text_of(self, answer: str) -> str:
        """The text of a whole answer; `calls` and `thought` have the rest then."""
        return "".join(delta.text for delta in [*self.push(answer), *self.finish()])


def channel_reader(template: ChatTemplate) -> AnswerReader | None:
    """A reader of one answer in channels, as those of gpt-oss; None for a template whose model's answers have none."""
    found = reasoning_of(template)
    return AnswerReader(reasoning=found) if found is not None and found.is_harmony else None
