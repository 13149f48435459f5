"""Batch: the requests of a file in OpenAI's batch format, answered by an engine without HTTP.

A window of requests is read ahead. Of these, the next to run is the one whose prompt follows that of the last one in order, so
that prompts which begin alike run one after the other and share their blocks in the prefix cache.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from camshaft.errors import CamshaftError
from camshaft.serve.batch.envelopes import EMBEDDINGS, ENVELOPE_NBYTES, READERS, Envelopes, line_error
from camshaft.serve.batch.files import Line, Results, check_paths, read_lines
from camshaft.serve.batch.flight import Flight, Flown, Row, Window
from camshaft.serve.models.served import Embedder, Served
from camshaft.serve.openai.embeddings import embedded
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.respond import Asked

_log = logging.getLogger("camshaft.batch")


@dataclass
class Tally:
    """The progress of a run: requests by outcome, and tokens. `n_before` were answered by earlier runs."""

    n_requests: int
    n_before: int
    n_answered: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    elapsed_s: float = 0.0

    @property
    def n_done(self) -> int:
        """The requests with a result."""
        return self.n_before + self.n_answered + self.n_failed

    @property
    def left_s(self) -> float | None:
        """The seconds that the other requests take at the mean rate so far; None before the first result."""
        n = self.n_done - self.n_before
        return (self.n_requests - self.n_done) * self.elapsed_s / n if n else None


Progress = Callable[[Tally], None]


class Target(Protocol):
    """Where results go: a file of Results, or what a node of a cluster sends back."""

    @property
    def done(self) -> Set[bytes]:
        """The keys of lines that have a result already."""

    def write(self, key: bytes, custom_id: str | None, response: dict[str, Any] | None, error: Any) -> None:
        """Take a result."""


def run_batch(served: Served, source: Path, target: Path, *, most_open: int, progress: Progress) -> Tally:
    """Answer the requests of a file that have no result in `target` yet, `most_open` answers in the engine at once.

    The engine has been started, and lets as many wait. Raises SettingError for files that cannot be used, and ModelError if
    the engine fails; results so far are kept, and a later run continues."""
    most_nbytes = served.most_body_nbytes + ENVELOPE_NBYTES
    check_paths(source, target)
    with Results(target) as results:
        tally = Tally(results.check_source(source, most_nbytes), len(results.done))
        answer_lines(served, read_lines(source, most_nbytes), results, tally, most_open=most_open, progress=progress)
    return tally


def answer_lines(
    served: Served, lines: Iterable[Line], results: Target, tally: Tally, *, most_open: int, progress: Progress
) -> None:
    """Answer lines of requests, and count in `tally`. Raises ModelError if the engine fails."""
    _Run(served, results, tally, progress, Flight(served.engine, most_open)).answer(iter(lines))


class _Run:
    """One run over the lines."""

    def __init__(self, served: Served, results: Target, tally: Tally, progress: Progress, flight: Flight[Row]) -> None:
        self._served, self._results, self._flight = served, results, flight
        self._tally, self._progress = tally, progress
        self._begun = time.perf_counter()
        self._envelopes, self._window = Envelopes(), Window()

    def answer(self, lines: Iterator[Line]) -> None:
        """Answer every line. Nothing runs before the window is full, so that its order is that of the first ones too."""
        window, flight, has_more, has_begun = self._window, self._flight, True, False
        self._report()
        while has_more or window.rows or flight.n_open:
            has_begun = has_begun or window.is_full or not has_more
            while has_begun and window.rows and flight.takes(window.rows[window.index].asked.job):
                self._submit(window.take())
            if has_more and not window.is_full:
                line = next(lines, None)
                has_more = line is not None
                if line is not None:
                    self._read(line)
                self._finish(flight.ended())
            elif flight.n_open:
                self._finish(flight.wait(self._report))

    def _read(self, line: Line) -> None:
        """Put the request of a line into the window, unless it has a result, or gets one at once."""
        custom_id, given = self._envelopes.read(line)
        if line.key in self._results.done:
            return
        if isinstance(given, HttpError):
            self._write(line, custom_id, None, line_error(given, line))
        elif custom_id is not None:
            self._prepare(line, custom_id, given)

    def _prepare(self, line: Line, custom_id: str, given: Mapping[str, Any]) -> None:
        try:
            asked = self._asked(given)
        except Exception as error:
            self._fail(line, custom_id, error)
            return
        if isinstance(asked, Asked):
            self._window.add(Row(line, custom_id, asked, (tuple(asked.job.prompts[0]), line.number)))
        else:
            self._tally.prompt_tokens += asked["usage"]["prompt_tokens"]
            self._respond(line, custom_id, 200, asked)

    def _asked(self, given: Mapping[str, Any]) -> Asked | dict[str, Any]:
        """Returns the job of a request, or the answer if it asks for embeddings. HttpError for an invalid one."""
        if given["url"] == EMBEDDINGS:
            return embedded(given["body"], _embedder(self._served, given["body"].get("model")))
        asked = READERS[given["url"]](given["body"], self._served)
        if asked.is_stream:
            raise HttpError(400, "'stream' is true; a batch has none", code="unsupported_parameter", param="stream")
        return asked

    def _submit(self, row: Row) -> None:
        try:
            self._flight.submit(row, row.asked.job)
        except CamshaftError as error:
            self._fail(row.line, row.custom_id, error)

    def _finish(self, flown: Sequence[Flown[Row]]) -> None:
        """Write the results of jobs that have ended."""
        for each in flown:
            row, usage = each.of, each.usage
            self._tally.prompt_tokens += usage.prompt
            self._tally.cached_tokens += usage.cached
            self._tally.generated_tokens += usage.generated
            try:
                if each.error is not None:
                    raise each.error
                body = row.asked.shape.whole(each.answers, usage)
            except Exception as error:
                self._fail(row.line, row.custom_id, error)
            else:
                self._respond(row.line, row.custom_id, 200, body)

    def _fail(self, line: Line, custom_id: str, error: Exception) -> None:
        """Write the error of one request; that of the engine as a whole is raised: no request is at fault."""
        if not self._served.engine.is_alive:
            raise error
        if not isinstance(error, HttpError | CamshaftError):
            _log.error("a request failed", exc_info=error)
        answer = http_error(error)
        self._respond(line, custom_id, answer.status, answer.body)

    def _respond(self, line: Line, custom_id: str, status: int, body: Any) -> None:
        response = {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}
        self._write(line, custom_id, response, None)

    def _write(self, line: Line, custom_id: str | None, response: dict[str, Any] | None, error: Any) -> None:
        self._results.write(line.key, custom_id, response, error)
        if is_answer(response):
            self._tally.n_answered += 1
        else:
            self._tally.n_failed += 1
        self._report()

    def _report(self) -> None:
        self._tally.elapsed_s = time.perf_counter() - self._begun
        self._progress(self._tally)


def is_answer(response: Mapping[str, Any] | None) -> bool:
    """Whether a response has what the request asked for."""
    return response is not None and response["status_code"] == 200


def _embedder(served: Served, name: Any) -> Embedder:
    """The model that makes vectors. Raises HttpError where there is none of that name."""
    found = served.embedder
    if found is None:
        message = "there is no model that makes vectors of texts; start with --embed MODEL"
        raise HttpError(404, message, code="model_not_found", param="model")
    if name not in (None, found.name):
        message = f"there is no model {str(name)[:100]!r} for vectors; there is {found.name!r}"
        raise HttpError(404, message, code="model_not_found", param="model")
    return found
