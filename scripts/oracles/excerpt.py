"""Real English text from the standard library: what Python's own help says."""

from __future__ import annotations

from pydoc_data.topics import topics

TOPIC = "execmodel"
N_CHARACTERS = 2400


def english_text() -> str:
    """The beginning of one topic of pydoc, cut after a word. The text differs between versions of Python: freeze it."""
    return topics[TOPIC][:N_CHARACTERS].rsplit(None, 1)[0] + "\n"
