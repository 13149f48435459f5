"""Sound files: WAV by camshaft itself, others through soundfile (extra 'audio')."""

from __future__ import annotations

import importlib.util
import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, MissingExtraError, SettingError
from camshaft.formats.audio.wav import check_rate, is_wav, read_wav
from camshaft.formats.mapped import path_for_messages, require_ordinary_file

Array = np.ndarray[Any, Any]
# The first bytes of formats that are named where the library is missing.
_KNOWN = {b"fLaC": "FLAC", b"OggS": "Ogg", b"ID3": "MP3", b"\xff\xfb": "MP3", b"FORM": "AIFF", b"\x1aE\xdf\xa3": "WebM"}


def read_audio(
    source: str | os.PathLike[str] | bytes, name: str = "the recording", *, most_seconds: float = math.inf
) -> tuple[Array, int]:
    """The samples of a sound file, f32 [n, channels], and samples a second; `source` is a path or the file's bytes.

    Raises FormatError for a file that is not regular, not audio, damaged, or longer than `most_seconds`, MissingExtraError for a
    format that needs the library."""
    if isinstance(source, (bytes, bytearray)):
        data = bytes(source)
    elif isinstance(source, (str, os.PathLike)):
        name = path_for_messages(Path(source))
        require_ordinary_file(source)
        data = Path(source).read_bytes()
    else:
        raise SettingError(f"the recording came as {type(source).__name__}; wanted a path, bytes or samples")
    if not data:
        raise FormatError(f"{name}: is empty; wanted a sound file")
    if not is_wav(data):
        return _by_library(data, name, most_seconds)
    samples, rate = read_wav(data, name)
    _check_length(len(samples) / rate, name, most_seconds)
    return samples, rate


def _check_length(seconds: float, name: str, most_seconds: float) -> None:
    if seconds > most_seconds:
        raise FormatError(f"{name}: has {seconds:.0f} seconds; wanted at most {most_seconds:g}")


def _by_library(data: bytes, name: str, most_seconds: float) -> tuple[Array, int]:
    if importlib.util.find_spec("soundfile") is None:
        kind = next((kind for magic, kind in _KNOWN.items() if data.startswith(magic)), "a file that is not WAV")
        raise MissingExtraError("soundfile", "audio", f"reading {name} ({kind})")
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            check_rate(rate, name)
            _check_length(file.frames / rate, name, most_seconds)  # a small file may have many
            samples = file.read(dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, TypeError, ValueError):
        raise FormatError(f"{name}: is not a WAV file, nor one that the library soundfile reads") from None
    return samples, rate
