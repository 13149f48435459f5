"""Tool calls: the grammar that lets a model write them, and a reader that finds them in its text as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from camshaft.errors import SettingError
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.grammar.matcher import JSON_AS_PYTHON
from camshaft.generate.tools.styles import Style, Tool


def call_grammar(
    style: Style,
    tools: Sequence[Tool],
    *,
    is_required: bool,
    is_parallel: bool,
    ids: Mapping[str, int] = MappingProxyType({}),
) -> Grammar:
    """The answers that call tools with arguments of their schemas. Unless a call `is_required`, plain text is one too; several
    calls follow each other if they may be parallel.

    `ids` are those of the style's marks that are control tokens. Raises SettingError if the style needs more of them."""
    if style.is_harmony:
        return _harmony_grammar(style, tools, is_required, ids)
    trigger, begin = (style.opening, style.start) if style.opening else _cut(style)

    def call(tool: Tool) -> str:
        return f"{_terms(begin + tool.name + style.middle, ids)} %json {_schema(tool)} {_terms(style.end, ids)}"

    first, more = _terms(trigger, ids), ""
    if is_parallel and style.separator is not None:
        more = f"({_terms(style.separator + ('' if style.opening else trigger), ids)} call)*"
    calls = f"call {more} {_terms(style.closing, ids)}"
    if style.begin:
        calls = f'" "? {_terms(style.begin, ids)} {calls}'
    lines = ["%llguidance {}"]
    if is_required:
        lines.append(f"start: {first} {calls}")
    elif style.is_whole:
        lines += ["start: call | TEXT", "TEXT: /([^{](.|\\n)*)?/"]
    elif trigger in ids:
        lines += [f"start: TEXT | TEXT {first} {calls}", "TEXT: /(.|\\n)*/"]
    else:
        lines += [f"start: TEXT | found {calls}", f"found[lazy]: TEXT {first}", "TEXT: /(.|\\n)*/"]
    return Grammar.lark("\n".join([*lines, f"call: {' | '.join(map(call, tools))}"]))


def _cut(style: Style) -> tuple[str, str]:
    """Splits a call's start into the part that only a call can follow, and the rest; empty if the whole answer is a call."""
    if style.is_whole:
        return "", style.start
    trigger, line, rest = style.start.partition("\n")
    return trigger, line + rest


def _harmony_grammar(style: Style, tools: Sequence[Tool], is_required: bool, ids: Mapping[str, int]) -> Grammar:
    """Messages of thoughts, then a call or, unless one is required, the final message."""
    missing = [mark for mark in style.shown if mark not in ids]
    if missing:
        raise SettingError(f"calls need the control token {missing[0]}, which the model's vocabulary lacks")
    called = [
        f"{_terms(style.start + tool.name + style.middle, ids)} %json {_schema(tool)} {_terms(style.end, ids)}"
        for tool in tools
    ]
    final = _terms("<|channel|>final<|message|>", ids)
    before = f"{_terms('<|channel|>', ids)} CHANNEL {_terms('<|message|>', ids)} TEXT {_terms('<|end|><|start|>assistant', ids)}"
    lines = [
        "%llguidance {}",
        "start: before* call" + ("" if is_required else f" | before* {final} TEXT"),
        f"before: {before}",
        "CHANNEL: /analysis|commentary/",
        "TEXT: /(.|\\n)*/",
        f"call: {' | '.join(called)}",
    ]
    return Grammar.lark("\n".join(lines))


def _terms(text: str, ids: Mapping[str, int]) -> str:
    """A text in a Lark grammar, with its control tokens by id."""
    parts = re.split("(" + "|".join(map(re.escape, ids)) + ")", text) if ids else [text]
    return " ".join(
        f"<[{ids[part]}]>" if part in ids else json.dumps(part, ensure_ascii=False) for part in parts if part
    )


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
        """The arguments by name; None for those of a call that was cut, which are not JSON."""
        try:
            read = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return read if isinstance(read, dict) else None


@dataclass(frozen=True)
class Delta:
    """The parsed form of a piece of text: text of the answer; a `thought` before it; or, to the call of number `index`, its name
    (at its beginning) or arguments."""

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
class _Scanner:
    """Finds the end of a JSON object in its text as it comes."""

    depth: int = 0
    is_text: bool = False
    is_escaped: bool = False

    def end(self, text: str) -> int | None:
        """The length of what belongs to the object, if it ends in this part of its text."""
        for i, character in enumerate(text):
            if self.is_escaped:
                self.is_escaped = False
            elif self.is_text:
                self.is_escaped, self.is_text = character == "\\", character != '"'
            elif character == '"':
                self.is_text = True
            elif character in "{[":
                self.depth += 1
            elif character in "}]":
                self.depth -= 1
                if self.depth <= 0:
                    return i + 1
        return None


@dataclass
class ToolCallReader:
    """Separates the calls from an answer that `call_grammar` forms. Blanks between text and calls are in neither.

    An answer that has no tools to call has no style, and is all text."""

    style: Style | None
    calls: list[ToolCall] = field(default_factory=list)
    _held: str = ""  # text whose meaning what follows decides
    _has_text: bool = False
    _is_opened: bool = False
    _in_name: bool = False
    _scanner: _Scanner | None = None  # of the arguments of the last call

    def push(self, text: str) -> list[Delta]:
        """Returns the deltas of further text."""
        if self.style is None:
            return [Delta(text)] if text else []
        self._held += text
        deltas: list[Delta] = []
        while (found := self._step(self.style)) is not None:
            deltas += found
        return deltas

    def finish(self) -> list[Delta]:
        """Returns the deltas of the answer's end."""
        held, self._held = self._held, ""
        is_text = held and not self.calls and not self._in_name and not self._is_opened
        return [Delta(held)] if is_text else []

    def text_of(self, answer: str) -> str:
        """The text of a whole answer; `calls` has its calls then."""
        return "".join(delta.text for delta in [*self.push(answer), *self.finish()])

    def _step(self, style: Style) -> list[Delta] | None:
        """Parses the buffered text; None if more text is needed."""
        if self._scanner is not None:
            return self._read_arguments(self._scanner)
        if self._in_name:
            name, middle, rest = self._held.partition(style.middle)
            if not middle:
                return None
            self._in_name, self._scanner, self._held = False, _Scanner(), rest
            self.calls.append(ToolCall(name))
            return [Delta(index=len(self.calls) - 1, name=name)]
        if self.calls or self._is_opened:
            return self._find_call(style)
        return self._read_text(style)

    def _read_arguments(self, scanner: _Scanner) -> list[Delta] | None:
        end = scanner.end(self._held)
        shown, self._held = (self._held, "") if end is None else (self._held[:end], self._held[end:])
        if end is not None:
            self._scanner = None
        if not shown:
            return None
        self.calls[-1].arguments += shown
        return [Delta(index=len(self.calls) - 1, arguments=shown)]

    def _find_call(self, style: Style) -> list[Delta] | None:
        """The next call; nothing else follows the first one."""
        if style.is_whole:
            self._held = ""
            return None
        before, found, rest = self._held.partition(style.start)
        if not found:
            self._held = before[len(before) - begun(before, style.start) :]
            return None
        self._in_name, self._held = True, rest
        return []

    def _read_text(self, style: Style) -> list[Delta] | None:
        mark = style.opening or style.start
        is_over = style.is_whole and self._has_text  # the answer is a text
        before, found, rest = (self._held, "", "") if is_over else self._held.partition(mark)
        if found and not (style.is_whole and before):
            self._is_opened, self._in_name, self._held = bool(style.opening), not style.opening, rest
            return self._say(before.rstrip())
        n = 0 if is_over else begun(self._held, mark)
        shown = self._held[: len(self._held) - n].rstrip()
        self._held = self._held[len(shown) :]
        return self._say(shown) or None

    def _say(self, text: str) -> list[Delta]:
        self._has_text = self._has_text or bool(text)
        return [Delta(text)] if text else []


def begun(text: str, mark: str) -> int:
    """The length of the end of `text` that may be the beginning of `mark`."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)
