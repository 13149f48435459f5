"""Printing answers as they arrive, with the thoughts of models that answer in channels on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.tools.reasoning import AnswerReader


def reader_of(lm: LanguageModel) -> AnswerReader | None:
    """What tells the channels of an answer apart, of models that answer in channels, as gpt-oss does. ModelError if the model has
    no chat template."""
    from camshaft.generate.tools.reasoning import channel_reader

    return channel_reader(lm.chat_template)


def _told_apart(pieces: Iterable[str], reader: AnswerReader) -> Iterator[str]:
    """The pieces of the answer proper; thoughts go to stderr, as they arrive."""
    deltas = chain.from_iterable(
        chain((reader.push(piece) for piece in pieces), (finish() for finish in (reader.finish,)))
    )
    is_thinking = False
    for delta in deltas:
        if delta.thought:
            print(delta.thought, end="", file=sys.stderr, flush=True)
            is_thinking = True
        elif delta.text:
            if is_thinking:
                print("\n", file=sys.stderr, flush=True)
            is_thinking = False
            yield delta.text
    if is_thinking:
        print(file=sys.stderr, flush=True)


def stream(pieces: Iterable[str], reader: AnswerReader | None = None) -> None:
    """Print text pieces as they arrive: of an answer in channels its thoughts on stderr. End the last line, even if an error
    interrupts it."""
    last = ""
    try:
        for last in pieces if reader is None else _told_apart(pieces, reader):
            sys.stdout.write(last)
            sys.stdout.flush()
    except Exception:
        if last and not last.endswith("\n"):
            print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)
