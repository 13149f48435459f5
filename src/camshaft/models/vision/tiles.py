"""How an image becomes tiles for the encoder, and the text around their tokens: a function for each way to split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from camshaft.errors import SettingError
from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.images import Pixels, resized

MOST_EDGE = 4096  # pixels; of Idefics3
# More times as long as wide, and the shorter side would have no pixels.
MOST_RATIO = 200
# LFM2-VL: the fewest and the most tiles of a large image, which exceeds the limit by more than this factor.
TILES, LARGE = (2, 10), 2.0


@dataclass(frozen=True, eq=False)
class Tile:
    """A part of an image for one run of the encoder, u8 [height, width, 3], and the text between the rows of its tokens."""

    pixels: Pixels
    between: str = ""


# Texts, and the tiles whose tokens are between them.
Layout = tuple[str | Tile, ...]


def layout_of(pixels: Pixels, config: VisionConfig) -> Layout:
    """The tiles of an image in order, with the text around their tokens. Raises SettingError for one that is too long."""
    height, width = pixels.shape[:2]
    if max(height, width) > MOST_RATIO * min(height, width):
        raise SettingError(
            f"an image of {width} x {height} pixels; wanted one at most {MOST_RATIO} times as long as wide"
        )
    return tuple(_joined(_SPLITS[config.row.split](pixels, config)))


def _joined(pieces: Iterator[str | Tile]) -> Iterator[str | Tile]:
    """The pieces with texts side by side as one: tokens may reach over both."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield text
        text = ""
        yield piece
    if text:
        yield text


def _rows_and_whole(pixels: Pixels, config: VisionConfig) -> Iterator[str | Tile]:
    """Idefics3 and SmolVLM: tiles in rows and columns, then the whole image as one tile; of a small one only this."""
    side, around = config.side, "<fake_token_around_image>"
    width, height = _longest(pixels.shape[1], pixels.shape[0], config.longest_edge)
    first, ratio = resized(pixels, width, height, "LANCZOS"), width / height
    if width >= height:
        columns = math.ceil(width / side)
        rows = math.ceil(int(columns * side / ratio) / side)
    else:
        rows = math.ceil(height / side)
        columns = math.ceil(int(rows * side * ratio) / side)
    whole = resized(first, columns * side, rows * side, "LANCZOS")
    if rows * columns > 1:
        for row in range(rows):
            for column in range(columns):
                yield f"{around}<row_{row + 1}_col_{column + 1}>"
                yield Tile(whole[row * side : (row + 1) * side, column * side : (column + 1) * side])
            yield "\n"
        yield "\n"
    yield f"{around}<global-img>"
    yield Tile(resized(whole, side, side, "LANCZOS"))
    yield around


def _longest(width: int, height: int, edge: int) -> tuple[int, int]:
    """The size with `edge` as its longer side, the other one even, and at most MOST_EDGE."""
    ratio = width / height
    if width >= height:
        width, height = edge, int(edge / ratio)
        height += height % 2
    else:
        width, height = int(edge * ratio), edge
        width += width % 2
    width, height = max(1, width), max(1, height)
    ratio = width / height
    if width >= height and width > MOST_EDGE:
        width, height = MOST_EDGE, int(MOST_EDGE / ratio)
    elif height > width and height > MOST_EDGE:
        width, height = int(MOST_EDGE * ratio), MOST_EDGE
    return max(1, width), max(1, height)


def _one_square(pixels: Pixels, config: VisionConfig) -> Iterator[str | Tile]:
    """Gemma 3: the image as one square."""
    yield "\n\n<start_of_image>"
    yield Tile(resized(pixels, config.side, config.side, "BILINEAR"))
    yield "<end_of_image>\n\n"


def _one_of_its_size(pixels: Pixels, config: VisionConfig) -> Iterator[str | Tile]:
    """Qwen-VL: the image in about its size and shape."""
    rows, columns = _whole_tokens(pixels, config)
    yield Tile(resized(pixels, columns, rows, "BICUBIC"))


def _tiles_and_whole(pixels: Pixels, config: VisionConfig) -> Iterator[str | Tile]:
    """LFM2-VL: the image in about its size and shape; of a large one before it square tiles, as many as fit its shape."""
    height, width = pixels.shape[:2]
    unit, side = config.unit, config.split_side
    sizes = [max(config.patch, round(n / unit) * unit) for n in (height, width)]
    yield "<|image_start|>"
    if sizes[0] * sizes[1] > LARGE * config.max_pixels:
        columns, rows = _closest_grid(width, height, side)
        large = resized(pixels, columns * side, rows * side, "BILINEAR")
        for row in range(rows):
            for column in range(columns):
                yield f"<|img_row_{row + 1}_col_{column + 1}|>"
                yield Tile(large[row * side : (row + 1) * side, column * side : (column + 1) * side])
        yield "<|img_thumbnail|>"
    rows, columns = _whole_tokens(pixels, config)
    yield Tile(resized(pixels, columns, rows, "BILINEAR"))
    yield "<|image_end|>"


def _closest_grid(width: int, height: int, side: int) -> tuple[int, int]:
    """Columns and rows of tiles whose shape is closest to an image's; of equal ones the larger, unless it is twice as large."""
    least, most = TILES
    grids = {(w, h) for n in range(least, most + 1) for w in range(1, n + 1) for h in range(1, n + 1)}
    best, found = math.inf, (1, 1)
    for columns, rows in sorted((g for g in grids if least <= g[0] * g[1] <= most), key=lambda g: g[0] * g[1]):
        off = abs(width / height - columns / rows)
        if off < best or (off == best and width * height > 0.5 * side * side * columns * rows):
            best, found = off, (columns, rows)
    return found


def _whole_tokens(pixels: Pixels, config: VisionConfig) -> tuple[int, int]:
    """About an image's height and width, as whole tokens, no fewer and no more than the limits."""
    height, width = pixels.shape[:2]
    unit, low, high = config.unit, config.min_pixels, config.max_pixels
    rows, columns = (round(n / unit) * unit for n in (height, width))
    if rows * columns > high:
        ratio = math.sqrt(height * width / high)
        rows, columns = (max(unit, math.floor(n / ratio / unit) * unit) for n in (height, width))
    elif rows * columns < low:
        ratio = math.sqrt(low / (height * width))
        rows, columns = (math.ceil(n * ratio / unit) * unit for n in (height, width))
    rows, columns = max(unit, rows), max(unit, columns)
    # A side of one token, or sides rounded up, may pass a low limit.
    if rows > columns:
        return min(rows, high // columns // unit * unit), columns
    return rows, min(columns, high // rows // unit * unit)


def _as_many_as_fit(pixels: Pixels, config: VisionConfig) -> Iterator[str | Tile]:
    """Gemma 4: the image in about its shape, as whole tokens, about as many as the limit."""
    height, width = pixels.shape[:2]
    unit, most = config.unit, config.max_pixels // config.unit**2
    scale = math.sqrt(config.max_pixels / (height * width))
    rows, columns = (math.floor(scale * n / unit) for n in (height, width))
    if not rows:
        rows, columns = 1, min(width // height, most)
    elif not columns:
        rows, columns = min(height // width, most), 1
    yield "<|image>"
    yield Tile(resized(pixels, columns * unit, rows * unit, "BICUBIC"))
    yield "<image|>"


def _rows_of_its_size(pixels: Pixels, config: VisionConfig) -> Iterator[str | Tile]:
    """Pixtral and Mistral 3: the image as whole tokens, no side longer than the encoder's; a token ends each row."""
    height, width = pixels.shape[:2]
    ratio, unit = max(height / config.side, width / config.side), config.unit
    if ratio > 1:
        height, width = (max(1, math.floor(n / ratio)) for n in (height, width))
    columns, rows = (((n - 1) // unit + 1) * unit for n in (width, height))
    yield Tile(resized(pixels, columns, rows, "BICUBIC"), "[IMG_BREAK]")
    yield "[IMG_END]"


_SPLITS: dict[str, Callable[[Pixels, VisionConfig], Iterator[str | Tile]]] = {
    "rows_and_whole": _rows_and_whole,
    "tiles_and_whole": _tiles_and_whole,
    "one_square": _one_square,
    "one_of_its_size": _one_of_its_size,
    "as_many_as_fit": _as_many_as_fit,
    "rows_of_its_size": _rows_of_its_size,
}
