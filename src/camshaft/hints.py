"""Hints in messages of errors, such as 'or raise context=': leave out those that a command or client cannot follow."""

from __future__ import annotations

import re
from collections.abc import Container

# A hint of a message, `: shorten it or raise context=`, with its ways: a keyword of the library is one that has no value.
_HINT = re.compile(r"(: |; | \()([^:;()'\"]*?\b[a-z_]+=(?:True\b|(?=[,:;.)]*(?: |$)))[^:;()'\"]*+)(?!['\"])(\)?)")
_NEXT_WAY = re.compile(r",? or (?=(?:\w+ )?[a-z_]+=)|, (?=(?:\w+ )?[a-z_]+=)")
_WAY = re.compile(r"(\w+ )?\b([a-z_]+)=")


def hints_for(message: str, keywords: Container[str] = ()) -> str:
    """Returns a message whose hints name only those keywords of the library that its reader can give."""
    return _HINT.sub(lambda found: _with_known(found, keywords), message)


def _with_known(hint: re.Match[str], keywords: Container[str]) -> str:
    mark, text, end = hint.groups()
    verb, known = "", []
    for way in _NEXT_WAY.split(text):
        given = _WAY.search(way)
        verb = given[1] or verb if given else verb
        if given is None or given[2] in keywords:
            known.append(way if given is None or given[1] else verb + way)
    if len(known) == len(_NEXT_WAY.split(text)):
        return hint[0]
    return f"{mark}{' or '.join(known)}{end}" if known else ""
