"""`camshaft chat`: a conversation whose KV cache is kept, so that each turn processes only what is new."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from camshaft.cli import options
from camshaft.cli.generate import stream
from camshaft.cli.run import command

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.sampling import Sampling


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
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    sampling = options.sampling(
        greedy=greedy or None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    with options.open_model(model, context=context, backend=backend, threads=threads, activations=activations) as lm:
        _converse(Conversation(lm, sampling, max_tokens))


class Conversation:
    """Messages and the session that has read them.

    The template is rendered over all messages each turn; what the session has read already is the front of that
    text and is cut off. Where it is not (a template that rewrites old turns, an answer stopped half way), a new
    session reads everything again."""

    def __init__(self, lm: LanguageModel, sampling: Sampling, max_tokens: int) -> None:
        self._lm, self._sampling, self._max_tokens = lm, sampling, max_tokens
        self._messages: list[dict[str, str]] = []
        self._session = lm.session()
        self._read = ""

    def say(self, text: str) -> None:
        """Send one message and stream the answer to stdout. Ctrl-C ends the answer and keeps what was said."""
        self._messages.append({"role": "user", "content": text})
        rendered = self._lm.chat_template.render(self._messages, add_generation_prompt=True)
        if not rendered.startswith(self._read):
            self._forget()
        pieces: list[str] = []
        new = rendered[len(self._read) :]
        try:
            generation = self._session.generate(new, max_tokens=self._max_tokens, sampling=self._sampling, raw=True)
            stream(_kept(generation, pieces))
            self._read = rendered + "".join(pieces)
        except KeyboardInterrupt:
            print()
            self._forget()
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    def _forget(self) -> None:
        self._session.close()
        self._session, self._read = self._lm.session(), ""


def _kept(generation: Iterable[str], pieces: list[str]) -> Iterator[str]:
    for piece in generation:
        pieces.append(piece)
        yield piece


def _prompt() -> str:
    """What a person at a terminal sees before a line; nothing for a pipe."""
    if not sys.stdin.isatty():
        return ""
    if importlib.util.find_spec("readline"):
        importlib.import_module("readline")  # line editing for input(); Windows has its own
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
        except KeyboardInterrupt:  # on a terminal it clears the line
            if not prompt:
                raise
            print()
            continue
        if text.strip():
            conversation.say(text)
