"""Segment and Transcript: what was said and when; as text, SRT, WebVTT and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from camshaft.generate.speech.decoding import Decoded
from camshaft.generate.speech.tokens import SpeechTokens
from camshaft.models.speech.config import HOP, SAMPLE_RATE, STRIDE

# Seconds of a step of times.
STEP = STRIDE * HOP / SAMPLE_RATE


@dataclass(frozen=True)
class Segment:
    """A sentence or part of one: `start` and `end` in seconds from the recording's start, its text and tokens, and how its window
    was decoded: `seek` is the window's first frame."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


@dataclass(frozen=True)
class Transcript:
    """`language` is a code, given or found; `duration` the recording's seconds."""

    text: str
    segments: tuple[Segment, ...]
    language: str
    duration: float
    task: str = "transcribe"


def split_window(ids: Sequence[int], tokens: SpeechTokens, n_frames: int) -> tuple[list[tuple[int, ...]], int]:
    """The segments of a window's tokens, each with its times, and how many frames on the next window begins: at the last pair of
    times, or after the n_frames where there is none, or one time alone is last."""
    first = tokens.first_timestamp
    is_time = [i >= first for i in ids]
    cuts = [i for i in range(1, len(ids)) if is_time[i - 1] and is_time[i]]
    if not cuts:
        return ([tuple(ids)] if ids else []), n_frames
    one_ends = is_time[-2:] == [False, True]
    if one_ends:
        cuts.append(len(ids))
    parts = [tuple(ids[a:b]) for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    moved = n_frames if one_ends else (ids[cuts[-1] - 1] - first) * STRIDE
    return parts, moved if moved > 0 else n_frames


def made_segment(
    part: Sequence[int],
    decoded: Decoded,
    tokens: SpeechTokens,
    text_of: Callable[[Sequence[int]], str],
    place: tuple[int, int, int],
) -> Segment:
    """A segment of a window's part; `place`: its id, the window's first frame and number of frames. Where the part lacks a time
    it starts with the window, or ends with it."""
    number, seek, n_frames = place
    first, offset = tokens.first_timestamp, seek * HOP / SAMPLE_RATE
    times = [(i - first) * STEP for i in part if i >= first]
    starts = times[0] if part[0] >= first else 0.0
    ends = (
        times[-1] if times and (len(times) > 1 or part[0] < first) and times[-1] > 0 else n_frames * HOP / SAMPLE_RATE
    )
    return Segment(
        id=number,
        seek=seek,
        start=round(offset + starts, 3),
        end=round(offset + max(starts, ends), 3),
        text=text_of(part),
        tokens=tuple(part),
        temperature=decoded.temperature,
        avg_logprob=decoded.logprob,
        compression_ratio=decoded.compression,
        no_speech_prob=decoded.no_speech,
    )


def _time(seconds: float, separator: str) -> str:
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{separator}{rest % 1000:03d}"


def _cue(text: str) -> str:
    """Escapes a text for a subtitle: `-->` and empty lines would start a new cue."""
    return "\n".join(line.strip() for line in text.strip().replace("-->", "->").splitlines() if line.strip())


def line_of(segment: Segment, *, timestamps: bool) -> str:
    """One segment as a line, with its times if wanted."""
    times = f"[{_time(segment.start, '.')} --> {_time(segment.end, '.')}] " if timestamps else ""
    return f"{times}{' '.join(segment.text.split())}\n"


def srt_cue(segment: Segment) -> str:
    """A segment as a numbered cue of SubRip."""
    return f"{segment.id + 1}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_cue(segment.text)}\n\n"


VTT_HEADER = "WEBVTT\n\n"


def vtt_cue(segment: Segment) -> str:
    """A segment as a cue of WebVTT."""
    return f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_escaped(_cue(segment.text))}\n\n"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
