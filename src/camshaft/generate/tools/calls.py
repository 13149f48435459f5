"""Tool calls: the grammar that lets a model write them, and a reader that finds them in its text as it comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.grammar.matcher import JSON_AS_PYTHON
from camshaft.generate.tools.styles import Style, Tool


def call_grammar(style: Style, tools: Sequence[Tool], *, is_required: bool, is_parallel: bool) -> Grammar:
    """The answers that call tools with arguments of their schemas. Unless a call `is_required`, plain text is one too; several
    calls follow each other if they may be parallel."""
    trigger, rest = ("", style.start) if style.is_whole else style.start.split("\n")
    lines = ["%llguidance {}"]
    several = is_parallel and not style.is_whole
    more = f" ({_text(chr(10) + trigger)} call)*" if several else ""
    if is_required:
        lines.append(f"start: {_text(trigger)} call{more}")
    elif style.is_whole:
        lines += ["start: call | TEXT", "TEXT: /([^{](.|\\n)*)?/"]
    else:
        lines += [f"start: TEXT | found call{more}", f"found[lazy]: TEXT {_text(trigger)}", "TEXT: /(.|\\n)*/"]
    begin = rest if style.is_whole else "\n" + rest
    calls = [f"{_text(begin + tool.name + style.middle)} %json {_schema(tool)} {_text(style.end)}" for tool in tools]
    return Grammar.lark("\n".join([*lines, f"call: {' | '.join(calls)}"]))


def _text(text: str) -> str:
    return json.dumps(text) if text else ""


def arguments_grammar(tool: Tool) -> Grammar:
    """The arguments of a tool alone, by which one that `call_grammar` cannot have is found."""
    return Grammar.json_schema(_schema(tool))


def _schema(tool: Tool) -> str:
    how = {"x-guidance": JSON_AS_PYTHON | {"lenient": not tool.is_strict}}
    return json.dumps({**how, **tool.parameters, "type": "object"})


@dataclass
class ToolCall:
    """A call: the tool's name, and the arguments as JSON so far."""

    name: str
    arguments: str = ""

    @property
    def values(self) -> dict[str, Any] | None:
        """The arguments by name; None for those of a call that was cut, which are no JSON."""
        try:
            read = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return read if isinstance(read, dict) else None


@dataclass(frozen=True)
class Delta:
    """What a piece of text adds: text of the answer; a `thought` before it; or, to the call of number `index`, its name (at its
    beginning) or arguments."""

    text: str = ""
    index: int = -1
    name: str = ""
    arguments: str = ""
    thought: str = ""

    @property
    def part(self) -> int:
        """The part of the answer that it belongs to: the number of a call, -1 for the text, -2 for the thoughts."""
        return -2 if self.thought else self.index


@dataclass
class ToolCallReader:
    """Separates the calls from an answer that `call_grammar` forms. Blanks between text and calls are in neither.

    An answer that has no tools to call has no style, and is all text."""

    style: Style | None
    calls: list[ToolCall] = field(default_factory=list)
    _held: str = ""  # text whose meaning what follows decides
    _has_text: bool = False
    _in_name: bool = False
    _in_arguments: bool = False

    def push(self, text: str) -> list[Delta]:
        """What further text of the answer adds."""
        if self.style is None:
            return [Delta(text)]
        self._held += text
        deltas: list[Delta] = []
        while (found := self._step(self.style)) is not None:
            deltas += found
        return deltas

    def finish(self) -> list[Delta]:
        """What the end of the answer adds."""
        held, self._held = self._held, ""
        if self._in_arguments and self.style is not None:
            # Of a call that is a whole answer, or that was cut: its } is of the arguments, or of the end.
            before = held[: len(held) - begun(held, self.style.end)]
            is_end = ToolCall("", self.calls[-1].arguments + before).values is not None
            return self._argue(before if is_end else held)
        is_text = held and not self.calls and not self._in_name
        return [Delta(held)] if is_text else []

    def text_of(self, answer: str) -> str:
        """The text of a whole answer; `calls` has its calls then."""
        return "".join(delta.text for delta in [*self.push(answer), *self.finish()])

    def _step(self, style: Style) -> list[Delta] | None:
        """What the held text says by itself; None if that needs more text."""
        if self._in_arguments:
            return self._read_arguments(style)
        if self._in_name:
            name, middle, rest = self._held.partition(style.middle)
            if not middle:
                return None
            self._in_name, self._in_arguments, self._held = False, True, rest
            self.calls.append(ToolCall(name))
            return [Delta(index=len(self.calls) - 1, name=name)]
        return self._read_text(style)

    def _read_arguments(self, style: Style) -> list[Delta] | None:
        end = style.end
        if style.is_whole:
            shown, self._held = self._held[: -len(end)], self._held[-len(end) :]
            return self._argue(shown) or None
        arguments, found, rest = self._held.partition(end)
        if found:
            self._in_arguments, self._held = False, rest
            return self._argue(arguments)
        n = begun(self._held, end)
        shown, self._held = self._held[: len(self._held) - n], self._held[len(self._held) - n :]
        return self._argue(shown) or None

    def _read_text(self, style: Style) -> list[Delta] | None:
        start = style.start
        if style.is_whole and self._has_text:
            before, found, rest = self._held, "", ""
        else:
            before, found, rest = self._held.partition(start)
        if found and not (style.is_whole and before):
            self._in_name, self._held = True, rest
            return self._say(before.rstrip())
        n = 0 if style.is_whole and self._has_text else begun(self._held, start)
        shown = self._held[: len(self._held) - n].rstrip()
        self._held = self._held[len(shown) :]
        return self._say(shown) or None

    def _say(self, text: str) -> list[Delta]:
        if not text or self.calls:  # between calls there are only blanks
            return []
        self._has_text = True
        return [Delta(text)]

    def _argue(self, text: str) -> list[Delta]:
        if not text:
            return []
        self.calls[-1].arguments += text
        return [Delta(index=len(self.calls) - 1, arguments=text)]


def begun(text: str, mark: str) -> int:
    """The length of the end of `text` that may be the beginning of `mark`."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)
