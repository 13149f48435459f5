"""`/v1/completions`: OpenAI's interface for text without a chat template."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import CamshaftError
from camshaft.generate.generation import TokenLogprob
from camshaft.serve.models.served import Served
from camshaft.serve.openai.prompts import filled, text_ids
from camshaft.serve.openai.response_shape import completion_logprobs
from camshaft.serve.requests import fields, grammars
from camshaft.serve.requests.answers import Answer, Job, Usage
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.options import MOST_TOP_LOGPROBS, OPTIONS, generate_options, includes_usage
from camshaft.serve.requests.respond import Asked, event, respond

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MOST_ANSWERS = 128


FIELDS: fields.Fields = {
    **OPTIONS,
    **grammars.FIELDS,
    "model": fields.TEXT,
    "prompt": fields.PROMPTS,
    "logprobs": fields.integer(0, MOST_TOP_LOGPROBS),
    "echo": fields.BOOL,
    "best_of": fields.integer(1, MOST_ANSWERS),
    "suffix": fields.TEXT,
}


def _prompts(served: Served, prompt: Any, suffix: str) -> list[list[int]]:
    """The tokens of each prompt; with a suffix, the model fills in between."""
    several = fields.listed_prompts(prompt)
    for each in several:
        if isinstance(each, str):
            served.check_text(each, "prompt")
    try:
        if suffix:
            ids = [text_ids(served, each, "prompt") if isinstance(each, str) else each for each in several]
            after = text_ids(served, suffix, "suffix")
            return [served.lm.prompt_ids(filled(served, each, after), raw=True) for each in ids]
        return [served.lm.prompt_ids(each, raw=True) for each in several]
    except CamshaftError as error:
        status = http_error(error)
        raise HttpError(status.status, str(error), code=status.code, param="prompt") from None


def _check(given: Mapping[str, Any]) -> None:
    """Refuse combinations of fields that are not supported."""
    n, best_of = given.get("n", 1), _best_of(given)
    if best_of < n:
        raise HttpError(400, f"'best_of' is {best_of}; wanted at least n, {n}", code="invalid_value", param="best_of")
    if best_of > n and (given.get("stream") or _is_scored(given)):
        what = "in a stream" if given.get("stream") else "with echo and logprobs"
        message = f"'best_of' above n {what} is not supported"
        raise HttpError(400, message, code="unsupported_parameter", param="best_of")
    if given.get("suffix") and given.get("echo"):
        raise HttpError(400, "'suffix' with echo is not supported", code="unsupported_parameter", param="suffix")
    if _is_scored(given) and given.get("stream"):
        message = "'logprobs' with echo in a stream is not supported"
        raise HttpError(400, message, code="unsupported_parameter", param="logprobs")


def _best_of(given: Mapping[str, Any]) -> int:
    return int(given.get("best_of", given.get("n", 1)))


def _is_scored(given: Mapping[str, Any]) -> bool:
    """Whether the log probabilities of the prompt's tokens are wanted too."""
    return bool(given.get("echo")) and "logprobs" in given


@fields.takes(FIELDS, "prompt", stream="text/event-stream")
async def completions(request: Request, served: Served) -> Response:
    """Continue one or several prompts."""
    return await respond(request, served, read_completion)


def read_completion(body: Any, served: Served) -> Asked:
    """The body of a request for a completion."""
    given = fields.read_fields(body, FIELDS)
    served.check_model(given.get("model"))
    _check(given)
    prompt = fields.required(given, "prompt")
    n_vocab = served.lm.config.vocab_size
    grammar = grammars.read_grammar(given, served)
    best_of, n = _best_of(given), given.get("n", 1)
    options = generate_options(
        {**given, "n": best_of},
        max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=given.get("logprobs", 0 if best_of > n else None),
        n_vocab=n_vocab,
        grammar=grammar,
    )
    n_answers = len(fields.listed_prompts(prompt)) * len(options)
    if n_answers > MOST_ANSWERS:
        message = f"{n_answers} answers in one request; wanted at most {MOST_ANSWERS}"
        raise HttpError(400, message, code="invalid_value", param="n")
    prompts = _prompts(served, prompt, given.get("suffix", ""))
    job = Job(prompts, options, _is_scored(given), given.get("priority", 0))
    echoed = [served.lm.detokenize(ids) for ids in prompts for _ in options] if given.get("echo") else None
    firsts = (
        [served.lm.tokenizer.spelling(ids[0]) for ids in prompts if ids for _ in options] if job.is_scored else None
    )
    shape = CompletionShape(
        served, job.n_answers, "logprobs" in given, includes_usage(given), echoed, firsts, best_of, n
    )
    return Asked(job, shape, given.get("stream", False))


@dataclass(frozen=True)
class CompletionShape:
    """A text completion and its chunks. `echoed` has the prompt of each answer, if it is to be repeated, and `firsts`
    its first token, if the prompt has log probabilities too. Of each `best_of` answers `n_best` are shown."""

    served: Served
    n: int
    with_logprobs: bool
    with_usage: bool
    echoed: Sequence[str] | None
    firsts: Sequence[str] | None = None
    best_of: int = 1
    n_best: int = 1
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    media_type: str = "text/event-stream"
    keep_alive: bytes = b": keep-alive\n\n"
    _offsets: dict[int, int] = field(default_factory=dict)
    _reasons: dict[int, str] = field(default_factory=dict)

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.served.name}

    def _chunk(self, index: int, text: str, reason: str | None = None, rows: Any = None, **more: Any) -> bytes:
        usage: dict[str, Any] = {"usage": None} if self.with_usage else {}
        choice = {"index": index, "text": text, "logprobs": rows, "finish_reason": reason}
        return event(self._head() | {"choices": [choice]} | usage | more)

    def begin(self) -> Iterable[bytes]:
        """The prompts, if they are to be repeated."""
        return [self._chunk(i, text) for i, text in enumerate(self.echoed or ())]

    def piece(self, index: int, text: str, each: Sequence[TokenLogprob]) -> Iterable[bytes]:
        """A piece of an answer."""
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(len(one.token) for one in each)
        rows = completion_logprobs(each, offset) if self.with_logprobs else None
        return [self._chunk(index, text, rows=rows)]

    def end_answer(self, index: int, reason: str, stop: str | None) -> Iterable[bytes]:
        """A chunk with the finish reason. That of a single answer is sent by `end`."""
        self._reasons[index] = reason
        return [self._chunk(index, "", reason)] if self.n > 1 else []

    def end(self, usage: Usage) -> Iterable[bytes]:
        """The usage, if wanted, and the end mark. The last chunk but it has the timings."""
        if self.n == 1:
            yield self._chunk(0, "", self._reasons[0], **({} if self.with_usage else usage.timings))
        if self.with_usage:
            yield event(self._head() | {"choices": [], "usage": usage.json, **usage.timings})
        yield b"data: [DONE]\n\n"

    def failed(self, error: HttpError) -> Iterable[bytes]:
        """The error, and the end mark."""
        return [event(error.body), b"data: [DONE]\n\n"]

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The completion."""
        choices = [self._choice(i, answers[i]) | {"index": index} for index, i in enumerate(self._shown(answers))]
        return self._head() | {"choices": choices, "usage": usage.json, **usage.timings}

    def _shown(self, answers: Sequence[Answer]) -> list[int]:
        """The answers to each prompt whose tokens are the most likely ones, these first; all in order unless there are more than
        are wanted."""
        if self.best_of == self.n_best:
            return [*range(len(answers))]
        firsts = range(0, len(answers), self.best_of)
        ranked = [sorted(range(i, i + self.best_of), key=lambda j: -_likelihood(answers[j])) for i in firsts]
        return [i for each in ranked for i in each[: self.n_best]]

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        first = self.firsts[index] if self.firsts else None
        rows = completion_logprobs(answer.logprobs, before=first) if self.with_logprobs else None
        text = (self.echoed[index] if self.echoed else "") + answer.text
        return {"index": index, "text": text, "logprobs": rows, "finish_reason": answer.finish_reason}


def _likelihood(answer: Answer) -> float:
    """The mean log probability of an answer's tokens, by which the best of several are chosen."""
    return sum(each.logprob for each in answer.logprobs) / max(len(answer.logprobs), 1)
