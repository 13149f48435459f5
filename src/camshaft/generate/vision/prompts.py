"""Images in prompts: the parts of messages that are images, and their tokens in the place of markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from camshaft.errors import ModelError, SettingError, count
from camshaft.generate.vision.tokens import tokens_of
from camshaft.models.vision.images import Image, ImageSource, open_image
from camshaft.text.chat import ChatTemplate, Pieces
from camshaft.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from camshaft.generate.vision.vision_model import VisionModel

# Stands for an image in the messages of a template that knows none: no text has it, and no control token is in it.
_PLACE = "\U0010fffdimage\U0010fffd"
WANTED_PART = "{'type': 'text', 'text': ...} or {'type': 'image', 'image': ...}"


def content_of(text: str, images: Sequence[ImageSource]) -> str | list[dict[str, Any]]:
    """The content of a message: a text, after images if there are some."""
    if not images:
        return text
    return [*({"type": "image", "image": each} for each in images), {"type": "text", "text": text}]


def is_content(content: object) -> bool:
    """Whether a content is a text, or a list of texts and images as `content_of` makes it."""
    if not isinstance(content, list | tuple):
        return isinstance(content, str)
    return all(isinstance(part, Mapping) and _fits(part) for part in content)


def _fits(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return (kind == "text" and isinstance(part.get("text"), str)) or (kind == "image" and "image" in part)


def taken_out(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Image]]:
    """The messages without their images, which are parts {'type': 'image'} now, and the images in order.

    Raises SettingError as `open_image`."""
    made, images = [], list[Image]()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            for part in content:
                if part.get("type") == "image" and "image" in part:
                    images.append(open_image(part["image"], f"image {len(images) + 1}"))
            content = [{k: v for k, v in part.items() if k != "image"} for part in content]
        made.append({**message, "content": content} if "content" in message else dict(message))
    return made, images


def for_template(messages: Sequence[Mapping[str, Any]], template: ChatTemplate) -> list[dict[str, Any]]:
    """The messages as the template takes them: lists of texts alone become texts, and images a text, for `placing`, where the
    template knows no parts."""
    return [dict(message) | _content(message, template) for message in messages]


def _content(message: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list | tuple):
        return {}
    has_images = any(part.get("type") == "image" for part in parts)
    if has_images and template.takes_images:
        return {"content": list(parts)}
    return {"content": "".join(_PLACE if part.get("type") == "image" else part["text"] for part in parts)}


def placing(images: Sequence[Image], vision: VisionModel | None, tokenizer: Tokenizer) -> Pieces:
    """Returns a function that replaces the markers of a rendered text by the tokens of images.

    It raises SettingError unless there is a marker for each image, ModelError if the model sees no images."""
    if not images:
        return lambda text: [text]
    vision = seeing(vision)
    marker_id = tokenizer.vocabulary.ids.get(vision.token, 0)

    def pieces(text: str) -> list[str | Sequence[int]]:
        texts = text.replace(_PLACE, vision.written).split(vision.marker)
        if len(texts) - 1 != len(images):
            raise SettingError(
                f"the prompt has {count(len(texts) - 1, 'marker')} {vision.marker}; wanted {len(images)}, one for each image"
            )
        made: list[str | Sequence[int]] = [texts[0]]
        for image, following in zip(images, texts[1:], strict=True):
            for piece in (*vision.encode(image), following):
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
        raise ModelError("the model sees no images: open it with mmproj=, the file of its vision encoder")
    return vision
