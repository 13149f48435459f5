"""Pictures in prompts: the parts of messages that are pictures, and their tokens in the place of markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from camshaft.errors import ModelError, SettingError, count
from camshaft.generate.vision.tokens import tokens_of
from camshaft.models.vision.pictures import Picture, PictureSource, open_picture
from camshaft.text.chat import ChatTemplate, Pieces
from camshaft.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from camshaft.generate.vision.vision_model import VisionModel

# Stands for a picture in the messages of a template that knows none: no text has it, and no control token is in it.
_PLACE = "\U0010fffdpicture\U0010fffd"
WANTED_PART = "{'type': 'text', 'text': ...} or {'type': 'image', 'image': ...}"


def content_of(text: str, pictures: Sequence[PictureSource]) -> str | list[dict[str, Any]]:
    """The content of a message: a text, after pictures if there are some."""
    if not pictures:
        return text
    return [*({"type": "image", "image": each} for each in pictures), {"type": "text", "text": text}]


def is_content(content: object) -> bool:
    """Whether a content is a text, or a list of texts and pictures as `content_of` makes it."""
    if not isinstance(content, list | tuple):
        return isinstance(content, str)
    return all(isinstance(part, Mapping) and _fits(part) for part in content)


def _fits(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return (kind == "text" and isinstance(part.get("text"), str)) or (kind == "image" and "image" in part)


def taken_out(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Picture]]:
    """The messages without their pictures, which are parts {'type': 'image'} now, and the pictures in order.

    Raises SettingError as `open_picture`."""
    made, pictures = [], list[Picture]()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            for part in content:
                if part.get("type") == "image" and "image" in part:
                    pictures.append(open_picture(part["image"], f"picture {len(pictures) + 1}"))
            content = [{k: v for k, v in part.items() if k != "image"} for part in content]
        made.append({**message, "content": content} if "content" in message else dict(message))
    return made, pictures


def for_template(messages: Sequence[Mapping[str, Any]], template: ChatTemplate) -> list[dict[str, Any]]:
    """The messages as the template takes them: lists of texts alone become texts, and pictures a text, for `placing`, where the
    template knows no parts."""
    return [dict(message) | _content(message, template) for message in messages]


def _content(message: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list | tuple):
        return {}
    has_pictures = any(part.get("type") == "image" for part in parts)
    if has_pictures and template.takes_pictures:
        return {"content": list(parts)}
    return {"content": "".join(_PLACE if part.get("type") == "image" else part["text"] for part in parts)}


def placing(pictures: Sequence[Picture], vision: VisionModel | None, tokenizer: Tokenizer) -> Pieces:
    """Returns a function that replaces the markers of a rendered text by the tokens of pictures.

    It raises SettingError unless there is a marker for each picture, ModelError if the model sees no pictures."""
    if not pictures:
        return lambda text: [text]
    vision = seeing(vision)
    marker_id = tokenizer.vocabulary.ids.get(vision.token, 0)

    def pieces(text: str) -> list[str | Sequence[int]]:
        texts = text.replace(_PLACE, vision.written).split(vision.marker)
        if len(texts) - 1 != len(pictures):
            raise SettingError(
                f"the prompt has {count(len(texts) - 1, 'marker')} {vision.marker}; wanted {len(pictures)}, one for each picture"
            )
        made: list[str | Sequence[int]] = [texts[0]]
        for picture, following in zip(pictures, texts[1:], strict=True):
            for piece in (*vision.encode(picture), following):
                if not isinstance(piece, str):
                    made.append(tokens_of(piece, marker_id))
                elif isinstance(made[-1], str):
                    made[-1] += piece
                else:
                    made.append(piece)
        return made

    return pieces


def seeing(vision: VisionModel | None) -> VisionModel:
    """The vision model. Raises ModelError if there is none."""
    if vision is None:
        raise ModelError("the model sees no pictures: open it with mmproj=, the file of its vision encoder")
    return vision
