"""Batch: the requests of a file in OpenAI's batch format, answered by an engine without HTTP.

A window of requests is read ahead. Of these, the next to run is the one whose prompt follows that of the last one in order, so
that prompts which begin alike run one after the other and share their blocks in the prefix cache.
"""

from __future__ import annotations

import bisect
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from camshaft.errors import CamshaftError
from camshaft.serve.batch.files import Line, Results, check_paths, read_lines
from camshaft.serve.batch.flight import Flight, Flown
from camshaft.serve.models.served import Embedder, Served
from camshaft.serve.openai.chat import read_chat
from camshaft.serve.openai.completions import read_completion
from camshaft.serve.openai.embeddings import embedded
from camshaft.serve.openai.responses import read_response
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.fields import OBJECT, TEXT, Fields, one_of, parse_json, read_fields, required, shown
from camshaft.serve.requests.respond import Asked, Reader

WINDOW_REQUESTS, WINDOW_NBYTES = 256, 64 << 20
ENVELOPE_NBYTES = 64 << 10  # of a line, beside the body
READERS: dict[str, Reader] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/responses": read_response,
}
_EMBEDDINGS = "/v1/embeddings"
_LINE: Fields = {"custom_id": TEXT, "method": one_of("POST"), "url": one_of(*READERS, _EMBEDDINGS), "body": OBJECT}
_log = logging.getLogger("camshaft.batch")


@dataclass
class Tally:
    """What a run has done: requests by kind, and tokens. `n_before` were answered by earlier runs."""

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


@dataclass(frozen=True)
class _Row:
    """A request that can run. Prompts that begin alike are beside each other in `order`."""

    line: Line
    custom_id: str
    asked: Asked
    order: tuple[tuple[int, ...], int]


@dataclass
class _Window:
    """Rows that wait, in order."""

    rows: list[_Row] = field(default_factory=list)
    nbytes: int = 0
    last: tuple[tuple[int, ...], int] = ((), 0)  # of the row that left last

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= WINDOW_REQUESTS or self.nbytes >= WINDOW_NBYTES

    @property
    def index(self) -> int:
        """That of the row which follows the last one; after the end, the first."""
        return bisect.bisect_right(self.rows, self.last, key=_order) % len(self.rows)

    def add(self, row: _Row) -> None:
        bisect.insort(self.rows, row, key=_order)
        self.nbytes += len(row.line.text or b"")

    def take(self) -> _Row:
        row = self.rows.pop(self.index)
        self.nbytes -= len(row.line.text or b"")
        self.last = row.order
        return row


def _order(row: _Row) -> tuple[tuple[int, ...], int]:
    return row.order


def run_batch(served: Served, source: Path, target: Path, *, most_open: int, progress: Progress) -> Tally:
    """Answer the requests of a file that have no result in `target` yet, `most_open` answers in the engine at once.

    The engine has been started, and lets as many wait. Raises SettingError for files that cannot be used, and ModelError if
    the engine fails; what is written stays, and another run goes on."""
    most_nbytes = served.most_body_nbytes + ENVELOPE_NBYTES
    check_paths(source, target)
    with Results(target) as results:
        tally = Tally(results.check_source(source, most_nbytes), len(results.done))
        run = _Run(served, results, tally, progress, Flight(served.engine, most_open))
        run.answer(read_lines(source, most_nbytes))
    return tally


class _Run:
    """One run over the lines."""

    def __init__(
        self, served: Served, results: Results, tally: Tally, progress: Progress, flight: Flight[_Row]
    ) -> None:
        self._served, self._results, self._flight = served, results, flight
        self._tally, self._progress = tally, progress
        self._begun = time.perf_counter()
        self._seen: set[bytes] = set()  # digests of the custom_ids
        self._window = _Window()

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
        custom_id, given = _envelope(line)
        if custom_id is not None and not self._is_new(custom_id):
            message = f"'custom_id' is {shown(custom_id)}, as in an earlier line"
            given = HttpError(400, message, code="duplicate_custom_id", param="custom_id")
        if line.key in self._results.done:
            return
        if isinstance(given, HttpError):
            error = {"code": given.code, "message": str(given), "param": given.param, "line": line.number}
            self._write(line, custom_id, None, error)
        elif custom_id is not None:
            self._prepare(line, custom_id, given)

    def _is_new(self, custom_id: str) -> bool:
        digest = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        before = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) > before

    def _prepare(self, line: Line, custom_id: str, given: Mapping[str, Any]) -> None:
        try:
            asked = self._asked(given)
        except Exception as error:
            self._fail(line, custom_id, error)
            return
        if isinstance(asked, Asked):
            self._window.add(_Row(line, custom_id, asked, (tuple(asked.job.prompts[0]), line.number)))
        else:
            self._tally.prompt_tokens += asked["usage"]["prompt_tokens"]
            self._respond(line, custom_id, 200, asked)

    def _asked(self, given: Mapping[str, Any]) -> Asked | dict[str, Any]:
        """What to generate, or the answer to a request for vectors. Raises HttpError."""
        if given["url"] == _EMBEDDINGS:
            return embedded(given["body"], _embedder(self._served, given["body"].get("model")))
        asked = READERS[given["url"]](given["body"], self._served)
        if asked.is_stream:
            raise HttpError(400, "'stream' is true; a batch has none", code="unsupported_parameter", param="stream")
        return asked

    def _submit(self, row: _Row) -> None:
        try:
            self._flight.submit(row, row.asked.job)
        except CamshaftError as error:
            self._fail(row.line, row.custom_id, error)

    def _finish(self, flown: Sequence[Flown[_Row]]) -> None:
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
        if response is not None and response["status_code"] == 200:
            self._tally.n_answered += 1
        else:
            self._tally.n_failed += 1
        self._report()

    def _report(self) -> None:
        self._tally.elapsed_s = time.perf_counter() - self._begun
        self._progress(self._tally)


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


def _envelope(line: Line) -> tuple[str | None, dict[str, Any] | HttpError]:
    """The custom_id of a line, if it has one that can be read, and its fields or what is wrong with them."""
    custom_id: Any = None
    try:
        if line.text is None:
            raise HttpError(413, "the line is larger than a request may be", code="request_too_large")
        value = parse_json(line.text, "the line")
        if not isinstance(value, dict):
            raise HttpError(400, f"the line is {shown(value)}; wanted an object", code="invalid_type")
        custom_id = value.get("custom_id") if isinstance(value.get("custom_id"), str) else None
        given = read_fields(value, _LINE)
        for name in _LINE:
            required(given, name)
    except HttpError as error:
        return custom_id, error
    return custom_id, given
