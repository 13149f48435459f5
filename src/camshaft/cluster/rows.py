"""Rows: which lines of a batch go to the nodes of a cluster, in blocks, and which results come back for the first time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from camshaft.serve.batch.envelopes import Envelopes, line_error
from camshaft.serve.batch.files import Line, Results
from camshaft.serve.batch.run import Tally
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.respond import compact

BLOCK_ROWS = 64  # what a node that is lost has computed in vain, at most twice
_SORTED_ROWS = 4096


@dataclass
class Ledger:
    """The results of a batch, each taken once. `done` are those of earlier runs and of this one."""

    results: Results
    tally: Tally

    def blocks(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        """The lines without a result, in blocks. Those that are not requests get their result here.

        Of each 4,096 lines, those with requests that begin alike are beside each other, so that one node has them."""
        rows = self._open(lines)
        while window := list(islice(rows, _SORTED_ROWS)):
            window.sort(key=lambda row: row[0])
            for first in range(0, len(window), BLOCK_ROWS):
                yield [line for _, line in window[first : first + BLOCK_ROWS]]

    def _open(self, lines: Iterable[Line]) -> Iterator[tuple[bytes, Line]]:
        envelopes = Envelopes()
        for line in lines:
            custom_id, given = envelopes.read(line)
            if line.key in self.results.done:
                continue
            if isinstance(given, HttpError):
                self.results.write(line.key, custom_id, None, line_error(given, line))
                self.results.done.add(line.key)
                self.tally.n_failed += 1
            else:
                yield prompt_order(given), line

    def take(self, key: bytes, result: bytes, is_answer: bool) -> bool:
        """Write a result, unless its line has one already: then return False. A task that ran twice gives two."""
        if key in self.results.done:
            return False
        self.results.append(result)
        self.results.done.add(key)
        self.tally.n_answered += is_answer
        self.tally.n_failed += not is_answer
        return True


def prompt_order(given: Mapping[str, Any]) -> bytes:
    """A key by which requests whose prompts begin alike are beside each other: the prompt as it is written."""
    body = given["body"]
    prompt = [body.get(name) for name in ("model", "instructions", "tools", "messages", "prompt", "input")]
    return compact([given["url"], *prompt])
