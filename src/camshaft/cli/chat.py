"""`camshaft chat`: an interactive conversation that reuses its KV cache from turn to turn."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from camshaft.cli import options
from camshaft.cli.generate import stream
from camshaft.cli.run import command

if TYPE_CHECKING:
    from camshaft.generate.conversation import Conversation


@command
def chat(
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 512,
    greedy: options.Greedy = False,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    backend: options.Backend = None,
    threads: options.Threads = None,
    context: options.Context = options.DEFAULT_CONTEXT,
    activations: options.Activations = None,
    kv_cache: options.KVCache = None,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    sampling = options.sampling(
        greedy=greedy or None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    given = {"backend": backend, "threads": threads, "activations": activations, "kv_cache": kv_cache}
    with options.open_model(model, context=context, **given) as lm:
        from camshaft.generate.conversation import Conversation

        _converse(Conversation(lm, sampling, max_tokens))


def _prompt() -> str:
    """The input prompt: "> " on a terminal, empty for a pipe."""
    if not sys.stdin.isatty():
        return ""
    if importlib.util.find_spec("readline"):
        importlib.import_module("readline")  # line editing in input(); built in on Windows
    return "> "


def _converse(conversation: Conversation) -> None:
    prompt = _prompt()
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
        stream(pieces)
    except KeyboardInterrupt:
        pieces.close()
        print()
