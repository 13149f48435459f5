"""The tiny speech model, what transformers says of it, and recordings as WAV files."""

from __future__ import annotations

import json
import lzma
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.fixtures import DATA

Array = np.ndarray[Any, Any]
# Recordings: seconds, seed, language, and whether each window knows the text before it. scripts/oracles/tiny/speech.py asks
# transformers about them.
RECORDINGS = ((1.0, 7, None, False), (5.3, 7, "de", False), (5.3, 9, "fr", False), (5.3, 7, "de", True))
# Nothing but the likeliest tokens.
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "compression_ratio_threshold": None,
    "logprob_threshold": None,
    "no_speech_threshold": None,
    "max_initial_timestamp": 0.24,
}


def tiny_whisper(folder: Path) -> Path:
    """The tiny model as a file."""
    path = folder / "whisper.gguf"
    path.write_bytes(lzma.decompress((DATA / "speech" / "whisper.gguf.xz").read_bytes()))
    return path


def of_transformers() -> dict[str, Any]:
    """Features, logits, languages, and the segments of each recording."""
    with np.load(DATA / "speech" / "whisper.npz") as saved:
        arrays = dict(saved)
    return {**arrays, "segments": json.loads(arrays["segments"].tobytes())}


def sound(seconds: float, seed: int = 7) -> Array:
    """Tones that rise and fall over noise, f32 at 16 kHz, which sound alike on any machine."""
    t = np.arange(int(seconds * 16000)) / 16000
    rng = np.random.default_rng(seed)
    tones = sum(
        a * np.sin(2 * np.pi * (f * t + 40 * np.sin(3 * t + f))) for f, a in ((220, 0.3), (1700, 0.2), (5200, 0.1))
    )
    loud = 0.55 + 0.45 * np.sin(2 * np.pi * 0.7 * t)
    return (tones * loud + 0.01 * rng.normal(size=t.size)).astype(np.float32)


def wav(
    samples: Array, rate: int = 16000, *, bits: int = 16, is_float: bool = False, extensible: bool = False
) -> bytes:
    """Samples from -1 to 1, [n] or [n, channels], as a WAV file."""
    frames = np.atleast_2d(samples.T).T.astype(np.float64)
    channels, width = frames.shape[1], bits // 8
    if is_float:
        data = frames.astype(f"<f{width}").tobytes()
    elif bits == 8:
        data = np.round(frames * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(frames * (2.0 ** (bits - 1) - 1)).astype("<i8").reshape(-1, 1)
        data = whole.view(np.uint8)[:, :width].tobytes()
    code = 3 if is_float else 1
    form = struct.pack(
        "<HHIIHH", 0xFFFE if extensible else code, channels, rate, rate * channels * width, channels * width, bits
    )
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, code) + bytes(14)
    return riff(chunk(b"fmt ", form), chunk(b"LIST", b"odd"), chunk(b"data", data))


def chunk(kind: bytes, body: bytes) -> bytes:
    """A RIFF chunk, with a byte after an odd length."""
    return kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


def riff(*chunks: bytes) -> bytes:
    """A WAV file of chunks."""
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body
