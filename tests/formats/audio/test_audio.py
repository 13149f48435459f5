"""Sound files: WAV of every kind, damaged ones, other formats, and resampling."""

from __future__ import annotations

import importlib.util
import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.errors import FormatError, MissingExtraError, SettingError
from camshaft.formats.audio import resample
from camshaft.formats.audio.read import read_audio
from camshaft.formats.audio.resample import mono, resampled
from camshaft.formats.audio.wav import read_wav
from tests.support.models.speech import chunk, riff, sound, wav
from tests.support.quick import full

SAMPLES = np.stack([sound(0.01), -sound(0.01, 8), sound(0.01, 9)], axis=1)


@pytest.mark.parametrize(
    ("bits", "is_float", "step"),
    [(8, False, 1 / 64), (16, False, 1e-4), (24, False, 1e-6), (32, False, 1e-6), (32, True, 1e-7), (64, True, 1e-7)],
)
@pytest.mark.parametrize("extensible", [False, True])
def test_samples_are_read_in_every_width(bits: int, is_float: bool, step: float, extensible: bool) -> None:
    found, rate = read_wav(wav(SAMPLES, 44100, bits=bits, is_float=is_float, extensible=extensible), "x.wav")
    assert (found.shape, rate, found.dtype) == ((160, 3), 44100, np.float32)
    assert np.abs(found - SAMPLES).max() < step


def _form(code: int = 1, channels: int = 1, rate: int = 16000, frame: int = 2, bits: int = 16) -> bytes:
    return chunk(b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * frame % 2**32, frame, bits))


GOOD = chunk(b"data", bytes(32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (riff(), "without a format"),
        (riff(_form()), "without samples"),
        (riff(GOOD, _form()), "before a 'fmt ' chunk"),
        (riff(chunk(b"fmt ", bytes(8)), GOOD), "has 8 bytes; wanted 16 or more"),
        (riff(_form(channels=0), GOOD), "has 0 channels; wanted 1 to 256"),
        (riff(_form(rate=0), GOOD), "has 0 samples a second; wanted 1000 to 1000000"),
        (riff(_form(rate=10**9), GOOD), "has 1000000000 samples a second"),
        (riff(_form(bits=12), GOOD), "samples of 12 bits"),
        (riff(_form(frame=3), GOOD), "in frames of 3 bytes for 1 channels"),
        (riff(_form(code=7), GOOD), "has WAV code 7 (mu-law)"),
        (riff(_form(code=0xFFFE), GOOD), "extended 'fmt ' chunk has 16 bytes"),
        (wav(SAMPLES)[:-40], "says 960 bytes of samples and has 920: it is cut off"),
    ],
)
def test_a_damaged_file_is_one_clear_line(data: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_audio(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_ordinary_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for path, wanted in (
        (tmp_path, "is a folder"),
        (tmp_path / "none.wav", "there is no such file"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(FormatError, match=wanted):
            read_audio(path)
    if os.path.exists("/dev/zero"):
        with pytest.raises(FormatError, match="is not a regular file; wanted a file"):
            read_audio("/dev/zero")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_file_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises((FormatError, MissingExtraError)):
        read_audio(wav(SAMPLES)[:cut])


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_a_file_that_was_streamed_has_all_that_follows(size: int) -> None:
    data = riff(_form()) + b"data" + struct.pack("<I", size) + bytes(20)
    assert read_wav(data, "x")[0].shape == (10, 1)


def test_channels_are_averaged_and_samples_checked() -> None:
    assert mono(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32)).tolist() == [0.5, 0.5]
    with pytest.raises(FormatError, match="not finite"):
        mono(np.array([0.0, np.nan], np.float32))
    for wrong in (np.zeros((2, 2, 2), np.float32), np.zeros((4, 0), np.float32), np.zeros(4, np.int16), [0.0]):
        with pytest.raises(SettingError, match="wanted floats"):
            mono(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [8000, 11025, full(15999), 44100, full(48000), full(96000), full(99991)])
def test_a_tone_keeps_its_place_and_height(rate: int) -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(rate // 5) / rate).astype(np.float32)
    made = resampled(tone, rate, 16000)
    wanted = np.sin(2 * np.pi * 1000 * np.arange(len(made)) / 16000)
    assert len(made) == -(-len(tone) * 16000 // rate)
    assert np.abs(made - wanted)[300:-300].max() < 2e-3


def test_what_the_new_rate_cannot_hold_is_left_out() -> None:
    tone = np.sin(2 * np.pi * 9000 * np.arange(9600) / 48000).astype(np.float32)
    assert np.abs(resampled(tone, 48000, 16000)[100:-100]).max() < 2e-4


def test_both_ways_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = resampled(sound(0.2), 44100, 16000)
    monkeypatch.setattr(resample, "_by_blocks", resample._by_table)
    assert np.abs(resampled(sound(0.2), 44100, 16000) - made).max() < 1e-5


def test_an_odd_rate_is_taken_and_impossible_ones_refused() -> None:
    assert len(resampled(sound(0.05), 15999, 16000)) == 801
    for rate in (0, -1, 10**9, True, 16000.0):
        with pytest.raises(FormatError, match="samples a second"):
            resampled(sound(0.05), rate, 16000)  # type: ignore[arg-type]


def test_other_formats_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"\(FLAC\) needs the package 'soundfile': pip install 'camshaft\[audio\]'"
    ):
        read_audio(b"fLaC" + bytes(40))


def test_flac_is_read_by_the_library(tmp_path: Path) -> None:
    soundfile: Any = pytest.importorskip("soundfile")
    data = io.BytesIO()
    soundfile.write(data, SAMPLES, 22050, format="FLAC")
    found, rate = read_audio(data.getvalue())
    assert rate == 22050
    assert np.abs(found - SAMPLES).max() < 1e-4
    with pytest.raises(FormatError, match="one that the library soundfile reads"):
        read_audio(b"nothing that sounds")
