"""WAV files: RIFF chunks with PCM of 8 to 32 bits or floats, any number of channels.

All sizes in the file are checked against its length."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import FormatError

Array = np.ndarray[Any, Any]
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# Names of other codes, for messages.
_CODES = {2: "Microsoft ADPCM", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 49: "GSM 6.10", 85: "MP3"}
LEAST_RATE, MOST_RATE, MOST_CHANNELS = 1000, 1_000_000, 256
# A size that programs write which do not know it in advance: all that follows.
_UNKNOWN = (0, 0xFFFFFFFF)


@dataclass(frozen=True)
class _Format:
    is_float: bool
    channels: int
    rate: int
    nbytes: int


def is_wav(data: bytes) -> bool:
    """Whether a file begins as WAV files do."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav(data: bytes, name: str) -> tuple[Array, int]:
    """The samples of a file, f32 [n, channels] from -1 to 1, and samples a second.

    Raises FormatError for a file that is damaged, cut off or of another code."""
    form: _Format | None = None
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        body, at = at + 8, at + 8 + size + size % 2
        if kind == b"fmt ":
            form = _format(data[body : body + size], name)
        elif kind == b"data":
            if form is None:
                raise FormatError(f"{name}: has samples before a 'fmt ' chunk says what they are")
            there = len(data) - body
            if size > there and size not in _UNKNOWN:
                raise FormatError(f"{name}: says {size} bytes of samples and has {there}: it is cut off")
            return _samples(data, body, there if size in _UNKNOWN else size, form), form.rate
    raise FormatError(f"{name}: is a WAV file without {'samples' if form else 'a format'}: it is cut off")


def _format(chunk: bytes, name: str) -> _Format:
    if len(chunk) < 16:
        raise FormatError(f"{name}: its 'fmt ' chunk has {len(chunk)} bytes; wanted 16 or more")
    code, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", chunk)
    if code == _EXTENSIBLE:
        if len(chunk) < 26:
            raise FormatError(f"{name}: its extended 'fmt ' chunk has {len(chunk)} bytes; wanted 40")
        code = struct.unpack_from("<H", chunk, 24)[0]
    if code not in (_PCM, _FLOAT):
        known = f" ({_CODES[code]})" if code in _CODES else ""
        raise FormatError(f"{name}: has WAV code {code}{known}; wanted PCM (1) or floats (3)")
    if not 1 <= channels <= MOST_CHANNELS:
        raise FormatError(f"{name}: has {channels} channels; wanted 1 to {MOST_CHANNELS}")
    check_rate(rate, name)
    wanted = (32, 64) if code == _FLOAT else (8, 16, 24, 32)
    if bits not in wanted or frame != channels * bits // 8:
        raise FormatError(
            f"{name}: has samples of {bits} bits in frames of {frame} bytes for {channels} channels; wanted"
            f" {', '.join(map(str, wanted))} bits, without gaps"
        )
    return _Format(code == _FLOAT, channels, rate, bits // 8)


def check_rate(rate: object, name: str) -> None:
    """Raises FormatError unless there are 1,000 to 1,000,000 samples a second."""
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not LEAST_RATE <= rate <= MOST_RATE:
        raise FormatError(f"{name}: has {rate!r} samples a second; wanted {LEAST_RATE} to {MOST_RATE}")


def _samples(data: bytes, first: int, nbytes: int, form: _Format) -> Array:
    """Whole frames alone; a part of one at the end is left out."""
    n = nbytes // (form.nbytes * form.channels)
    raw = np.frombuffer(data, np.uint8, n * form.channels * form.nbytes, first)
    values: Array
    if form.is_float:
        values = raw.view(f"<f{form.nbytes}").astype(np.float32)
    elif form.nbytes == 1:  # unsigned, with silence at 128
        values = (raw.astype(np.float32) - 128) / 128
    elif form.nbytes == 3:
        wide = np.zeros((n * form.channels, 4), np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        values = wide.view("<i4")[:, 0].astype(np.float32) / 2.0**31
    else:
        values = raw.view(f"<i{form.nbytes}").astype(np.float32) / 2.0 ** (8 * form.nbytes - 1)
    return values.reshape(n, form.channels)
