"""The standard streams of the commands: text from files reaches a terminal with its control characters escaped.

A model's name, an error message or a generated token could otherwise move the cursor, change the window's title, or show text in
another order than it is written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

# C0 except tab and newline, DEL, C1, and what changes the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    r"""The text with control characters as \x1b or \u202e; tab and newline stay."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class EscapingStream:
    """A text stream that escapes control characters. `unescaped` is the stream that it writes to."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        """Write the text, escaped; returns its length."""
        self.unescaped.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def protect_streams() -> None:
    """Escape what the process writes to stderr, and to stdout if that is a terminal: what is piped is data."""
    for name, always in (("stdout", False), ("stderr", True)):
        stream = getattr(sys, name)
        if not isinstance(stream, EscapingStream) and (always or stream.isatty()):
            setattr(sys, name, EscapingStream(stream))


def unescaped(stream: Any) -> TextIO:
    """The stream to which progress bars write, which move the cursor."""
    return stream.unescaped if isinstance(stream, EscapingStream) else stream
