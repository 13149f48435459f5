"""Images in requests: data: URLs and base64 texts, within limits."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from camshaft.errors import MissingExtraError, SettingError
from camshaft.models.vision.images import MAX_NBYTES, Image, open_image
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import TEXT, Field, shown

_DATA_URL = re.compile(r"data:[\w.+/;=-]{0,100};base64,", re.IGNORECASE)
_SHOWN = 60
_URL = {"type": "string", "description": "a data: URL in base64"}
# What OpenAI's chats have for an image.
IMAGE_URL = Field(
    lambda v: isinstance(v, str | dict),
    "{'url': a data: URL}",
    {"anyOf": [_URL, {"type": "object", "properties": {"url": _URL, "detail": TEXT.schema}, "required": ["url"]}]},
)


def image_of_url(url: Any, of: str) -> Image:
    """The image of a data: URL. Raises HttpError for another URL, since the server fetches nothing, and as
    `image_of_base64`."""
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if found is None:
        came = url[:_SHOWN] if isinstance(url, str) else url
        message = f"'{of}' is {shown(came)}; wanted a data: URL in base64: the server fetches no images"
        raise HttpError(400, message, code="invalid_value", param=of)
    return image_of_base64(url[found.end() :], of)


def image_of_base64(text: Any, of: str) -> Image:
    """The image of a base64 text. Raises HttpError for anything that is not base64 or not an image, or has too many bytes or
    pixels."""
    if not isinstance(text, str):
        raise HttpError(400, f"'{of}' is {shown(text)}; wanted base64", code="invalid_value", param=of)
    if len(text) > MAX_NBYTES // 3 * 4 + 4:
        message = f"'{of}' has {len(text)} characters; wanted an image of at most {MAX_NBYTES} bytes"
        raise HttpError(400, message, code="invalid_value", param=of)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HttpError(400, f"'{of}' is not base64", code="invalid_value", param=of) from None
    try:
        return open_image(data, f"'{of}'")
    except SettingError as error:
        raise HttpError(400, str(error), code="invalid_value", param=of) from None
    except MissingExtraError as error:
        raise HttpError(503, str(error), code="unavailable", param=of) from None


def part_of(image: Image) -> dict[str, Any]:
    """An image as a part of a message's content."""
    return {"type": "image", "image": image}


def image_part(given: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The part of an OpenAI chat's {'type': 'image_url', 'image_url': {'url': ...} or a URL}."""
    value = given.get("image_url")
    url, param = (value.get("url"), f"{of}.image_url.url") if isinstance(value, Mapping) else (value, f"{of}.image_url")
    return part_of(image_of_url(url, param))


def as_data_url(source: Mapping[str, Any], of: str) -> str:
    """The data: URL of an Anthropic block's source. Raises HttpError for one that is a URL or a file."""
    if source.get("type") != "base64" or not isinstance(source.get("data"), str):
        message = f"'{of}' is {shown(source)[:_SHOWN]}; wanted {{'type': 'base64', 'media_type': ..., 'data': ...}}"
        raise HttpError(400, f"{message}: the server fetches no images", code="invalid_value", param=of)
    return f"data:image;base64,{source['data']}"
