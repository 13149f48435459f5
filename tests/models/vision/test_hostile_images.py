"""Images that are empty, huge, damaged or none are refused in one line that names the cause; odd ones are seen as they are."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.errors import FormatError, MissingExtraError, SettingError
from camshaft.models.vision import images
from camshaft.models.vision.images import MAX_NBYTES, open_image
from tests.support.models.images import drawn_image, opened

Image = pytest.importorskip("PIL.Image")


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file that says its size, with any data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(drawn_image(61, 43)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (b"", "is no image; wanted a file of PNG, JPEG, WEBP, GIF, BMP"),
        (b"hello", "is no image"),
        (encoded("TIFF"), "is no image"),
        (png(0, 5), "is a PNG file that is damaged or has no pixels"),
        (png(10_000, 10_000), "has far too many pixels; wanted at most 40000000"),
        (png(7_000, 7_000), "has 7000 x 7000 pixels; wanted at most 40000000"),
        (png(2**31 - 1, 2**31 - 1), "has far too many pixels"),
        (png(100, 100, b"\0" * 9), "is damaged"),
        (np.zeros((0, 4, 3), np.uint8), "has 4 x 0 pixels; wanted one or more"),
        (np.zeros((8, 8), np.uint8), r"came as an array uint8 \[8, 8\]"),
        (np.zeros((8, 8, 3)), "came as an array float64"),
        (7, "came as int; wanted a file, its bytes"),
        (bytes(MAX_NBYTES + 1), "bytes; wanted at most 67108864"),
    ],
)
def test_what_is_no_image_is_refused(source: Any, wanted: str) -> None:
    with pytest.raises(SettingError, match=wanted) as error:
        open_image(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_files_that_end_early_are_refused_and_whole_ones_are_not(kind: str) -> None:
    data = encoded(kind)
    assert open_image(data).pixels.shape == (43, 61, 3)
    for n in (1, len(data) // 2, len(data) - 200):
        with pytest.raises(SettingError, match=r"is no image|is damaged"):
            open_image(data[:n])


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    for path, wanted in ((tmp_path / "none.png", "there is no such file"), (tmp_path, "is a folder")):
        with pytest.raises(FormatError, match=wanted):
            open_image(path)


def test_turned_and_transparent_images_are_as_seen(tmp_path: Path) -> None:
    image = Image.fromarray(drawn_image(6, 4))
    exif = Image.Exif()
    exif[274] = 6  # to be turned to the right
    image.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(open_image(tmp_path / "turned.png").pixels, np.rot90(drawn_image(6, 4), -1))
    assert open_image(image.convert("RGBA")).digest == open_image(drawn_image(6, 4)).digest


def test_grey_of_16_bits_is_as_bright_as_that_of_8() -> None:
    grey = drawn_image(6, 4)[:, :, 0]
    file = io.BytesIO()
    Image.fromarray(grey.astype(np.uint16) * 257).save(file, "PNG")
    assert open_image(file.getvalue()).digest == open_image(Image.fromarray(grey)).digest


def test_a_missing_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    images._pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'camshaft\[images\]'"):
        open_image(b"x")
    images._pillow.cache_clear()


@pytest.mark.full
def test_images_that_are_too_long_and_prompts_that_do_not_fit_them(tmp_path: Path) -> None:
    with opened("idefics3", tmp_path) as lm:
        with pytest.raises(SettingError, match="201 x 1 pixels; wanted one at most 200 times as long as wide"):
            lm.prompt_ids("a", raw=True, images=[np.zeros((1, 201, 3), np.uint8)])
        with pytest.raises(SettingError, match="has 2 markers <image>; wanted 1, one for each image"):
            lm.prompt_ids("<image> <image>", raw=True, images=[drawn_image(5, 5)])
        with pytest.raises(SettingError, match="images came as str; wanted a list"):
            lm.generate("a", images="image.png")  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="images came as ndarray; wanted a list"):
            lm.generate("a", images=drawn_image(5, 5))  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="messages and images"):
            lm.generate(messages=[{"role": "user", "content": "a"}], images=[drawn_image(5, 5)])
        with pytest.raises(SettingError, match="prompt_cache with images"):
            lm.generate("a", images=[drawn_image(5, 5)], prompt_cache="auto")
