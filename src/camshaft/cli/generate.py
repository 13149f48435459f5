"""`camshaft generate`: stream a model's answer to a prompt. `camshaft chat`: a conversation that keeps its KV cache."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import command, print_json

if TYPE_CHECKING:
    from camshaft.generate.language_model import Generation, LanguageModel
    from camshaft.generate.session import Conversation

_Prompt = Annotated[str, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; - reads it from stdin.")]
_Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as is, without the model's chat template.")]


@command
def generate(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    prompt: _Prompt,
    max_tokens: options.MaxTokens = 128,
    raw: _Raw = False,
    sampling: options.SamplingOptions,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    json: options.Json = False,
) -> None:
    """Generate text from a prompt and stream it."""
    wanted = sampling.generate(max_tokens=max_tokens, raw=raw)
    text = _prompt_text(prompt)
    with running.open(model, context) as lm:
        generation = lm.generate(text, wanted)
        if json:
            pieces = "".join(generation)
            print_json(_report(lm, generation, pieces))
        else:
            _stream(generation)


@command
def chat(
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 512,
    *,
    sampling: options.SamplingOptions,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    wanted = sampling.generate(max_tokens=max_tokens)
    with running.open(model, context) as lm:
        _converse(lm.conversation(wanted))


def _stream(pieces: Iterable[str]) -> None:
    """Print text pieces as they arrive. End the last line, even if an error interrupts it."""
    last = ""
    try:
        for last in pieces:
            sys.stdout.write(last)
            sys.stdout.flush()
    except Exception:
        if last and not last.endswith("\n"):
            print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)


def _prompt_text(prompt: str) -> str:
    """The prompt as valid Unicode: bytes that are not UTF-8 become U+FFFD."""
    data = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    return data.decode("utf-8", "replace")


def _report(lm: LanguageModel, generation: Generation, text: str) -> dict[str, object]:
    return {
        "model": lm.name,
        "backend": lm.backend,
        "threads": lm.threads,
        "prompt_tokens": generation.prompt_tokens,
        "tokens": generation.tokens,
        "plans": lm.plans.origins,
        "text": text,
        "timings": vars(lm.timings) | vars(generation.timings),
    }


def _input_prompt() -> str:
    """The input prompt: "> " on a terminal, empty for a pipe."""
    if not sys.stdin.isatty():
        return ""
    if importlib.util.find_spec("readline"):
        importlib.import_module("readline")  # line editing in input(); built in on Windows
    return "> "


def _converse(conversation: Conversation) -> None:
    prompt = _input_prompt()
    while True:
        try:
            text = input(prompt)
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:  # on a terminal, discard the line
            if not prompt:
                raise
            print()
            continue
        if text.strip():
            _answer(conversation, text)


def _answer(conversation: Conversation, text: str) -> None:
    """Stream one answer. Ctrl-C stops it."""
    pieces = conversation.say(text)
    try:
        _stream(pieces)
    except KeyboardInterrupt:
        pieces.close()
        print()
