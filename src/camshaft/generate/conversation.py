"""Conversation: chat messages, and the session whose KV cache has them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from camshaft.errors import ContextError, SettingError, count
from camshaft.generate.generation import Closing, Generation
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.session import Session
from camshaft.generate.tools.reasoning import AnswerReader, channel_reader
from camshaft.generate.vision.prompts import WANTED_PART, content_of, is_content, seeing
from camshaft.models.vision.images import Image, ImageSource, open_images

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

Messages = Sequence[Mapping[str, Any]]
CONVERSATION_OPTIONS = GenerateOptions(max_tokens=512)  # the default of a conversation
_SYSTEM_ROLES = ("system", "developer")


def checked_messages(messages: Messages) -> list[dict[str, Any]]:
    """A copy of chat messages. Raises SettingError unless each has the text 'role' and a 'content', a text or a list of texts
    and images."""
    if isinstance(messages, str | bytes | Mapping) or not hasattr(messages, "__iter__"):
        raise SettingError(
            f"messages came as {type(messages).__name__}; wanted a list of {{'role': ..., 'content': ...}}"
        )
    copies = []
    for i, message in enumerate(messages):
        fits = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        if not fits or not is_content(message.get("content")):
            wanted = f"{{'role': ..., 'content': ...}}, both texts, or for content a list of {WANTED_PART}"
            raise SettingError(f"message {i} is {message!r:.80}; wanted {wanted}")
        copies.append(dict(message))
    return copies


@dataclass
class _Turn:
    """A turn: the messages up to the user's, their rendered text, its images, and how many messages were dropped."""

    messages: list[dict[str, Any]]
    rendered: str = ""
    images: list[Image] = field(default_factory=list)
    n_dropped: int = 0
    reader: AnswerReader | None = None


class Conversation(Closing):
    """Chat messages, and the session whose KV cache has them.

    Each turn renders the chat template over all messages and processes only the tokens that follow those in the cache. Between
    turns the session may be lost to another generation that needs it; the next turn then processes everything.

    messages: what was said, a list of {'role': ..., 'content': ...}, system messages included; may be changed between turns.
    dropped: how many of the oldest messages were dropped because the context was full.
    """

    def __init__(
        self,
        lm: LanguageModel,
        options: GenerateOptions,
        *,
        system: str | None = None,
        messages: Messages = (),
        context_shift: bool = True,
    ) -> None:
        if not isinstance(context_shift, bool):
            raise SettingError(f"context_shift={context_shift!r}; wanted True or False")
        if system is not None and not isinstance(system, str):
            raise SettingError(f"system came as {type(system).__name__}; wanted a text")
        self._lm, self._options, self._shifts = lm, options, context_shift
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages += checked_messages(messages)
        self.dropped = 0
        self._shown: list[Image] = []  # with the next message
        self._session, self._is_closed = Session(lm, waits=True), False
        self._answer: Callable[[], Generation | None] = lambda: None
        # The text whose tokens are in the session, or '' if unknown, and the number of its images.
        self._processed, self._n_images = "", 0

    def __repr__(self) -> str:
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        return (
            f"Conversation({count(len(self.messages), 'message')}{dropped}, {'closed' if self._is_closed else 'open'})"
        )

    def say(
        self,
        text: str,
        options: GenerateOptions | None = None,
        *,
        images: Sequence[ImageSource] = (),
        **keywords: Unpack[GenerateKeywords],
    ) -> Generation:
        """Send a message and return the answer: an iterator of pieces with `finish_reason`. Ends an answer that is not finished.

        `images` come before the text. Options and keywords are for this answer. The message and the answer become part
        of `messages` when the iteration has ended. An answer that is closed early or fails changes nothing. If the context is
        full, the oldest turns after the system message are dropped; without `context_shift` an answer that fills it has the
        finish reason 'length'. An answer in channels, as of gpt-oss, has their marks; `messages` get its final text alone.

        Raises SettingError for a wrong type or option, ContextError if the messages (with `context_shift`: the system message
        and this one) do not fit the context, ModelError if the model has no chat template.
        """
        if not isinstance(text, str):
            raise SettingError(f"the message came as {type(text).__name__}; wanted a text")
        options = generate_options(options, keywords, self._options)
        content = content_of(text, [*self._shown, *open_images(images)])
        self._lm.check_open()
        if self._is_closed:
            raise ContextError("the conversation is closed")
        self._end_answer()
        if not self._session.wake():
            self._session, self._processed = Session(self._lm, waits=True), ""
        try:
            answer = self._say([*checked_messages(self.messages), {"role": "user", "content": content}], options)
        except BaseException:
            self._session.rest()
            raise
        self._shown.clear()
        return answer

    def show(self, image: ImageSource) -> None:
        """Show the model an image with the next message, before its text. Raises ModelError if it sees none, else as `say`."""
        seeing(self._lm.vision)
        self._shown += open_images([image])

    @property
    def n_shown(self) -> int:
        """The number of images for the next message."""
        return len(self._shown)

    def _say(self, messages: list[dict[str, Any]], options: GenerateOptions) -> Generation:
        turn, ids = self._fitted(messages, options)
        turn.reader = self.reader()
        if turn.reader is not None:
            options = replace(options, shown_tokens=(*options.shown_tokens, *turn.reader.marks))
        self._processed = ""
        self._session.replace(ids)
        generation = self._session.start(
            [], options, lambda generation: self._end(turn, generation), lambda drawn: self._shifted(turn, drawn)
        )
        generation.prompt_tokens = len(ids) - self._session.position
        self._answer = weakref.ref(generation)
        return generation

    def _fitted(self, messages: list[dict[str, Any]], options: GenerateOptions) -> tuple[_Turn, list[int]]:
        """Returns the turn with as many messages as fit beside some room for the answer, and its tokens."""
        context = self._lm.context
        room = context // 4 if options.max_tokens < 0 else min(options.max_tokens, context // 4)
        turn = _Turn(messages)
        ids = self._ids(turn)
        if self._shifts and len(ids) + room > context:
            ids = self._dropped_to(turn, context // 2)
        if len(ids) > context:
            what = "the system message and this message have" if self._shifts else "the conversation has"
            raise ContextError(f"{what} {len(ids)} tokens; the context is {context}: shorten it or raise context=")
        return turn, ids

    def _dropped_to(self, turn: _Turn, n_tokens: int) -> list[int]:
        """Drop the oldest turns after the system messages until the rest has `n_tokens` or is one message; return its tokens.

        Callers ask for half of the context rather than what just fits, since everything after the system message is processed
        again."""
        ids = self._ids(turn)
        while len(ids) > n_tokens:
            roles = [message["role"] for message in turn.messages]
            first = next((i for i, role in enumerate(roles) if role not in _SYSTEM_ROLES), len(roles))
            following = next((i for i in range(first + 1, len(roles)) if roles[i] == "user"), None)
            if following is None:
                break
            turn.messages = turn.messages[:first] + turn.messages[following:]
            turn.n_dropped += following - first
            ids = self._ids(turn)
        return ids

    def _shifted(self, turn: _Turn, drawn: list[int]) -> list[int] | None:
        """The tokens to continue with when an answer has filled the context; None if nothing can be dropped."""
        before, half = turn.n_dropped, self._lm.context // 2
        if not self._shifts:
            return None
        ids = [*self._dropped_to(turn, max(half - len(drawn), 0)), *drawn]
        return ids if turn.n_dropped > before and len(ids) <= self._lm.context else None

    def _end(self, turn: _Turn, generation: Generation) -> None:
        """Take the turn into the conversation if its answer is finished."""
        if generation.finish_reason is not None:
            text = generation.text
            content = text if turn.reader is None else turn.reader.text_of(text)
            self.messages = [*turn.messages, {"role": "assistant", "content": content}]
            self.dropped += turn.n_dropped
            if generation.text_is_exact and self._lm.tokenizer.shows_all(generation.ids):
                self._processed, self._n_images = turn.rendered + generation.text, len(turn.images)
        self._session.rest()

    def _ids(self, turn: _Turn) -> list[int]:
        """Renders a turn and returns its tokens. If it begins with the session's text, the session's sampled tokens are kept."""
        turn.rendered, turn.images = self._lm.rendered(turn.messages, add_generation_prompt=True)
        if self._processed and turn.rendered.startswith(self._processed):
            rest, n_seen = turn.rendered[len(self._processed) :], self._n_images
            return [*self._session.tokens, *self._lm.rendered_ids(rest, turn.images[n_seen:], first=False)]
        return self._lm.rendered_ids(turn.rendered, turn.images)

    def reader(self) -> AnswerReader | None:
        """Returns what separates reasoning from text in an answer with channels; None for other models."""
        return channel_reader(self._lm.chat_template)

    def close(self) -> None:
        """Stop an unfinished answer and release the session's slot in the KV cache."""
        self._is_closed = True
        self._end_answer()
        self._session.close()

    def _end_answer(self) -> None:
        answer = self._answer()
        if answer is not None:
            answer.close()
