"""Images: read and checked by Pillow (extra `images`), as pixels with a digest that names them."""

from __future__ import annotations

import functools
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import MissingExtraError, SettingError
from camshaft.formats.mapped import path_for_messages, require_ordinary_file
from camshaft.process import ForkLock

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
# With the bytes that files of each have at a place.
FORMATS = {
    "PNG": (0, b"\x89PNG"),
    "JPEG": (0, b"\xff\xd8"),
    "WEBP": (8, b"WEBP"),
    "GIF": (0, b"GIF8"),
    "BMP": (0, b"BM"),
}
MAX_NBYTES = 64 << 20
MAX_PIXELS = 40_000_000  # 120 MB as bytes of red, green and blue
_DIGEST_NBYTES = 32
_opening = ForkLock()  # filters of warnings are those of all threads


@dataclass(frozen=True, eq=False)
class Image:
    """Pixels u8 [height, width, 3]. Images of the same pixels have the same digest."""

    pixels: Pixels
    digest: bytes


# A file's path, its bytes, pixels u8 [height, width, 3], a Pillow image, or an Image.
ImageSource: TypeAlias = Any


@functools.cache
def _pillow() -> ModuleType:
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError:
        raise MissingExtraError("pillow", "images", "reading an image") from None
    assert ImageOps
    return pillow


def open_images(sources: Sequence[ImageSource]) -> list[Image]:
    """Several images. Raises SettingError, as `open_image`, and for one where a list is wanted."""
    if isinstance(sources, str | bytes | os.PathLike) or not isinstance(sources, Sequence):
        raise SettingError(f"images came as {type(sources).__name__}; wanted a list of images")
    return [open_image(source, f"image {n}") for n, source in enumerate(sources, 1)]


def open_image(source: ImageSource, name: str = "the image") -> Image:
    """An image from a file (PNG, JPEG, WebP, GIF's first, BMP), its bytes, pixels u8 [height, width, 3] or a Pillow image.

    Raises SettingError for anything that is not an image, is empty, has more than 64 MiB or 40 million pixels, or is damaged;
    MissingExtraError without Pillow."""
    if isinstance(source, Image):
        return source
    if isinstance(source, str | os.PathLike):
        name = path_for_messages(source)
        require_ordinary_file(source)
        if os.path.getsize(source) > MAX_NBYTES:
            raise SettingError(f"{name} has {os.path.getsize(source)} bytes; wanted at most {MAX_NBYTES} in an image")
        with open(source, "rb") as file:
            source = file.read()
    if isinstance(source, np.ndarray):
        good = source.dtype == np.uint8 and source.ndim == 3 and source.shape[2] == 3
        if not good:
            came = f"{source.dtype} {list(source.shape)}"
            raise SettingError(f"{name} came as an array {came}; wanted uint8 [height, width, 3]")
        _check_size(name, source.shape[1], source.shape[0])
        return _image(np.ascontiguousarray(source))
    image = _opened(source, name) if isinstance(source, bytes | bytearray | memoryview) else source
    if not isinstance(image, _pillow().Image):
        raise SettingError(f"{name} came as {type(source).__name__}; wanted a file, its bytes, or a Pillow image")
    return _image(_decoded(image, name))


def _opened(data: bytes | bytearray | memoryview, name: str) -> Any:
    if len(data) > MAX_NBYTES:
        raise SettingError(f"{name} has {len(data)} bytes; wanted at most {MAX_NBYTES} in an image")
    pillow = _pillow()
    try:
        with _opening, warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            return pillow.open(io.BytesIO(data), formats=tuple(FORMATS))
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise SettingError(f"{name} has far too many pixels; wanted at most {MAX_PIXELS}") from None
    except Exception:  # what a damaged header raises depends on the format
        kind = next((kind for kind, (at, mark) in FORMATS.items() if bytes(data[at : at + len(mark)]) == mark), None)
        came = f"is a {kind} file that is damaged or has no pixels" if kind else "is no image"
        raise SettingError(f"{name} {came}; wanted a file of {', '.join(FORMATS)}") from None


def _decoded(image: Any, name: str) -> Pixels:
    from PIL import ImageOps

    _check_size(name, *image.size)
    try:
        turned = ImageOps.exif_transpose(image)  # loads the pixels
        pixels = _rgb(turned)
    except Exception as error:  # as above
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise SettingError(f"{name} is damaged: {reason}") from None
    return pixels


def _rgb(image: Any) -> Pixels:
    if not image.mode.startswith("I"):
        made: Pixels = np.array(image.convert("RGB"), np.uint8)
        return made
    # 16 bits of grey: Pillow's conversion makes all above 255 white
    grey = (np.clip(np.asarray(image), 0, 0xFFFF) >> 8).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _check_size(name: str, width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise SettingError(f"{name} has {width} x {height} pixels; wanted one or more")
    if width * height > MAX_PIXELS:
        raise SettingError(f"{name} has {width} x {height} pixels; wanted at most {MAX_PIXELS} of them")


def _image(pixels: Pixels) -> Image:
    made = blake2b(repr(pixels.shape).encode(), digest_size=_DIGEST_NBYTES)
    made.update(pixels.data)
    return Image(pixels, made.digest())


def resized(pixels: Pixels, width: int, height: int, filter: str) -> Pixels:
    """Pixels of another size, by a filter of Pillow, whose rounding the models were trained with."""
    pillow = _pillow()
    if pixels.shape[:2] == (height, width):
        return pixels
    made: Pixels = np.asarray(pillow.fromarray(pixels).resize((width, height), pillow.Resampling[filter]))
    return made
