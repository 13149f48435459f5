"""Prompts: texts, chats and images as the token ids of one model; what LanguageModel has of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from camshaft.errors import ContextError, SettingError
from camshaft.generate.checks import check_token_id
from camshaft.generate.conversation import Messages, checked_messages
from camshaft.generate.generation import Closing
from camshaft.generate.vision.prompts import content_of, for_template, placing, seeing, taken_out
from camshaft.generate.vision.tokens import ImageToken
from camshaft.models.config import ModelConfig
from camshaft.models.vision.images import Image, ImageSource, open_images
from camshaft.text.chat import ChatTemplate, encode_chat
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.vocabulary import fill_tokens

if TYPE_CHECKING:
    from camshaft.formats.gguf.file import GGUFFile
    from camshaft.generate.vision.vision_model import VisionModel


class Prompts(Closing):
    """A model's tokenizer and chat template. `vision` turns images into tokens, if the model sees them."""

    config: ModelConfig
    tokenizer: Tokenizer
    vision: VisionModel | None
    _file: GGUFFile

    def check_open(self) -> None:
        """Raise ModelError if the model is closed."""

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template. Raises ModelError if it has none, or if the model is closed."""
        self.check_open()
        return ChatTemplate.from_gguf(self._file.metadata, self.tokenizer.vocabulary.tokens)

    @cached_property
    def fill_tokens(self) -> dict[str, int]:
        """The ids of the tokens by which the model fills in the middle of a text: 'fim_pre', 'fim_suf', 'fim_mid', 'fim_pad',
        'fim_rep' (before a project's name) and 'fim_sep' (before a file's), as far as it has them."""
        self.check_open()
        return fill_tokens(self._file.metadata, self.tokenizer.vocabulary.ids)

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text. Each byte that is not valid UTF-8 counts as U+FFFD."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(ids)

    def ids_of(
        self,
        prompt: str | Sequence[int] | None,
        messages: Messages | None,
        images: Sequence[ImageSource],
        *,
        raw: bool,
    ) -> list[int]:
        """Token ids of what `generate` got: a prompt, with its images, or a whole chat. Raises SettingError unless it is one of
        them."""
        opened = open_images(images)
        if (prompt is None) == (messages is None):
            came = "neither a prompt nor messages" if prompt is None else "a prompt and messages"
            raise SettingError(f"generate got {came}; wanted one of them")
        if prompt is not None:
            return self.prompt_ids(prompt, raw=raw, images=opened)
        if opened:
            raise SettingError("generate got messages and images; wanted the images in the messages' contents")
        return self._of_messages(messages, raw=raw)

    def prompt_ids(
        self,
        prompt: str | Sequence[int],
        *,
        raw: bool,
        first: bool = True,
        images: Sequence[ImageSource] = (),
    ) -> list[int]:
        """Token ids of a prompt: ids are checked; text is tokenized as is if `raw`, else as a user message of the template.

        `images` are in the order of their markers in the text, or come before it where it has none. Raises SettingError for
        an image that cannot be read, ModelError if the model sees none."""
        opened = open_images(images)
        if not isinstance(prompt, str):
            if isinstance(prompt, bytes) or not hasattr(prompt, "__iter__"):
                raise SettingError(f"the prompt came as {type(prompt).__name__}; wanted a text or a list of token ids")
            if opened:
                raise SettingError("the prompt came as token ids, with images; wanted a text with images")
            return self.checked_ids(prompt)
        if not opened:
            if raw:
                return self.tokenize(prompt, add_special=first)
            return encode_chat(self.tokenizer, self.chat_template.render([{"role": "user", "content": prompt}]))
        return self._ids_with(prompt, opened, raw=raw, first=first)

    def _ids_with(self, prompt: str, images: list[Image], *, raw: bool, first: bool) -> list[int]:
        vision = seeing(self.vision)
        has_markers = vision.marker in prompt
        if not raw:
            content = prompt if has_markers else content_of(prompt, images)
            if not has_markers:
                return self.chat_ids([{"role": "user", "content": content}])
            text = self.chat_template.render([{"role": "user", "content": content}])
            return self.rendered_ids(text, images)
        text = prompt if has_markers else vision.written * len(images) + prompt
        return self.rendered_ids(text, images, first=first)

    def chat_ids(self, messages: Messages, **variables: Any) -> list[int]:
        """Token ids of a chat, whose messages may have images among the parts of their contents."""
        text, images = self.rendered(messages, **variables)
        return self.rendered_ids(text, images)

    def rendered(self, messages: Messages, **variables: Any) -> tuple[str, list[Image]]:
        """A chat as the template writes it, with a marker for each image, and the images."""
        chat, images = taken_out(messages)
        if images:
            seeing(self.vision)
        return self.chat_template.render(for_template(chat, self.chat_template), **variables), images

    def rendered_ids(self, text: str, images: Sequence[Image] = (), *, first: bool = True) -> list[int]:
        """Token ids of a rendered text. One that is not `first` in its session has no BOS."""
        pieces = placing(images, self.vision, self.tokenizer)
        if first:
            return encode_chat(self.tokenizer, text, pieces=pieces)
        parts = (self.tokenize(p, add_special=False) if isinstance(p, str) else p for p in pieces(text))
        return [i for part in parts for i in part]

    def _of_messages(self, messages: Messages | None, *, raw: bool) -> list[int]:
        if raw:
            raise SettingError("generate got messages and raw=True; messages need the chat template")
        chat = checked_messages(() if messages is None else messages)
        if not chat:
            raise SettingError("generate got no messages; wanted at least one")
        return self.chat_ids(chat)

    def checked_ids(self, ids: Sequence[int]) -> list[int]:
        """The ids as integers. Raises SettingError for anything that is not a list, ContextError for an id that is not a token of
        the model."""
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
            raise SettingError(f"token ids came as {type(ids).__name__}; wanted a list of whole numbers")
        for i in ids:
            check_token_id(i, self.config.vocab_size)
            if isinstance(i, ImageToken) and i.span.rows.shape[1] != seeing(self.vision).width:
                raise ContextError("a token of an image that another model has seen; wanted one of this model")
        return [i if isinstance(i, ImageToken) else int(i) for i in ids]
