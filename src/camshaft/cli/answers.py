"""Answers on the terminal: pieces as they arrive, thoughts apart from them, JSON, counts and rates."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from camshaft.cli.command import print_json

if TYPE_CHECKING:
    from camshaft.generate.generation import Generation, TokenLogprob
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.speculation.speculator import Speculation
    from camshaft.generate.tools.calls import Delta
    from camshaft.generate.tools.reasoning import AnswerReader


def show(
    lm: LanguageModel,
    generation: Generation,
    reader: AnswerReader | None,
    *,
    json: bool,
    with_logprobs: bool,
    verbose: bool,
) -> None:
    """Print an answer as it arrives, or a report in JSON when it is whole; counts and rates on stderr if `verbose`."""
    if json:
        for _ in generation:
            pass
        print_json(_report(lm, generation, reader, with_logprobs=with_logprobs))
    else:
        stream(generation, reader)
    if verbose:
        _print_timings(lm, generation)


def reader_of(lm: LanguageModel) -> AnswerReader | None:
    """Returns the parser of channels, for models such as gpt-oss that answer in them. ModelError if the model has
    no chat template."""
    from camshaft.generate.tools.reasoning import channel_reader

    return channel_reader(lm.chat_template)


def _deltas(pieces: Iterable[str], reader: AnswerReader) -> Iterator[Delta]:
    for piece in pieces:
        yield from reader.push(piece)
    yield from reader.finish()


def _told_apart(pieces: Iterable[str], reader: AnswerReader) -> Iterator[str]:
    """The pieces of the answer proper; thoughts go to stderr, as they arrive."""
    is_thinking = False
    for delta in _deltas(pieces, reader):
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


def _report(
    lm: LanguageModel, generation: Generation, reader: AnswerReader | None, *, with_logprobs: bool
) -> dict[str, object]:
    text = generation.text if reader is None else reader.text_of(generation.text)
    report: dict[str, object] = {
        "model": lm.name,
        "backend": lm.backend,
        "threads": lm.threads,
        "prompt_tokens": generation.prompt_tokens,
        "kept_tokens": generation.kept_tokens,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "plans": lm.plans.origins,
        "text": text,
        "timings": vars(lm.timings) | vars(generation.timings),
    }
    if reader is not None:
        report["reasoning"] = reader.thought
    if lm.plans.experts is not None:
        report["experts"] = vars(lm.plans.experts.use)
    if generation.speculation is not None:
        counts = generation.speculation
        report["speculation"] = vars(counts) | {"acceptance": counts.acceptance}
    return report | {"logprobs": [_logprob(each) for each in generation.logprobs]} if with_logprobs else report


def _logprob(each: TokenLogprob) -> dict[str, object]:
    top = [{"id": t.id, "token": t.token, "logprob": t.logprob} for t in each.top]
    return {"id": each.id, "token": each.token, "logprob": each.logprob, "top": top}


def _print_timings(lm: LanguageModel, generation: Generation) -> None:
    times, n = generation.timings, generation.tokens
    rest_s = (n - 1) / times.generated_tokens_per_s if times.generated_tokens_per_s else 0.0
    rows = [
        ("model", f"opened in {lm.timings.load_s:.2f} s, prepared in {lm.timings.compile_s:.2f} s"),
        ("prompt", _rate(generation.prompt_tokens, times.first_token_s, times.prompt_tokens_per_s)),
        ("answer", f"{_rate(n, rest_s, times.generated_tokens_per_s)}, ended by {generation.finish_reason}"),
    ]
    if generation.kept_tokens:
        rows.insert(2, ("prompt", f"{generation.kept_tokens} of these tokens were kept"))
    if generation.speculation is not None and generation.speculation.drafted:
        rows.append(("speculation", _speculation(generation.speculation)))
    for name, text in rows:
        print(f"camshaft: {name}: {text}", file=sys.stderr)


def _speculation(counts: Speculation) -> str:
    drafted = f"{counts.accepted} of {counts.drafted} drafted tokens accepted ({counts.acceptance:.0%})"
    return f"{drafted}, in {counts.runs} {'run' if counts.runs == 1 else 'runs'}"


def _rate(n: int, seconds: float, per_s: float) -> str:
    return f"{n} {'token' if n == 1 else 'tokens'} in {seconds:.2f} s, {per_s:.1f} tokens/s"
