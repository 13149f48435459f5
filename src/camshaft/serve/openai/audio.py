"""`/v1/audio/transcriptions` and `/v1/audio/translations`, OpenAI's API for speech, with requests as multipart forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from camshaft.errors import CamshaftError, FormatError, MissingExtraError
from camshaft.formats.audio.read import read_audio
from camshaft.formats.mapped import shown
from camshaft.generate.speech.options import TranscribeOptions
from camshaft.generate.speech.transcript import VTT_HEADER, Segment, Transcript, srt_cue, vtt_cue
from camshaft.models.speech.config import LANGUAGES
from camshaft.serve.models.served import Listener
from camshaft.serve.requests.errors import HttpError, http_error
from camshaft.serve.requests.fields import TEXT, Field, Fields, one_of, read_fields, required, takes
from camshaft.serve.requests.respond import CLIENT_CLOSED, CountedBody, Json, body_of, unless_disconnected

# OpenAI takes 25 MB; an hour of 16 bits at 16 kHz has 115 MB.
MOST_AUDIO_NBYTES, MOST_SECONDS = 128 << 20, 2 * 3600
MEDIA_TYPE = "multipart/form-data"
_MOST_FIELDS, _MOST_FIELD_NBYTES = 32, 64 << 10
_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


def _is_temperature(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 1  # false for NaN
    except (TypeError, ValueError):
        return False


_COMMON: Fields = {
    "file": Field(lambda v: isinstance(v, bytes), "a sound file", {"type": "string", "format": "binary"}),
    "model": TEXT,
    "prompt": TEXT,
    "response_format": one_of(*_FORMATS),
    "temperature": Field(_is_temperature, "a number from 0 to 1", {"type": "number", "minimum": 0, "maximum": 1}),
}
_TRANSCRIPTION: Fields = {
    **_COMMON,
    "language": TEXT,
    "timestamp_granularities[]": one_of("segment"),
    "stream": one_of("false"),
}


async def read_form(request: Request, sent: CountedBody) -> dict[str, Any]:
    """Returns the fields of a form: strings, and the bytes of `file`. HttpError if the body is not a form, or too large."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise HttpError(400, f"the body is {kind[:60] or 'of no type'!r}; wanted {MEDIA_TYPE}", code="invalid_form")
    data = await sent.read(request, MOST_AUDIO_NBYTES)
    parser = MultiPartParser(
        request.headers, _once(data), max_files=1, max_fields=_MOST_FIELDS, max_part_size=_MOST_FIELD_NBYTES
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, UnicodeDecodeError) as error:
        why = getattr(error, "message", None) or "it has no boundary"
        raise HttpError(400, f"the form cannot be read: {why}", code="invalid_form") from None
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise HttpError(400, f"{shown(name)} is given twice", code="invalid_value", param=name[:100])
        fields[name] = await value.read() if isinstance(value, UploadFile) else value
    await form.close()
    return fields


async def _once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


@takes(_TRANSCRIPTION, "file", stream="text/plain", form=MEDIA_TYPE)
async def transcriptions(request: Request, listener: Listener) -> Response:
    """Transcribes a recording."""
    return await _answer(request, listener, read_fields(body_of(request), _TRANSCRIPTION), "transcribe")


@takes(_COMMON, "file", stream="text/plain", form=MEDIA_TYPE)
async def translations(request: Request, listener: Listener) -> Response:
    """Translates a recording to English."""
    return await _answer(request, listener, read_fields(body_of(request), _COMMON), "translate")


class _Disconnected(Exception):
    """The client has disconnected: stop working."""


async def _answer(request: Request, listener: Listener, given: dict[str, Any], task: str) -> Response:
    """Transcribe on the listener's thread. If the client disconnects, the work stops after the window in progress."""
    required(given, "file")
    gone = False

    def check(*_: object) -> None:
        if gone:
            raise _Disconnected

    try:
        work = listener.submit(partial(_transcribed, listener, given, task, check))
        made = await unless_disconnected(request, asyncio.wrap_future(work))
    except CamshaftError as error:
        raise _refusal(error) from None
    finally:
        gone = True
    if made is None:
        return Response(status_code=CLIENT_CLOSED)
    kind = given.get("response_format", "json")
    return _SHAPES[kind](made)


def _transcribed(listener: Listener, given: dict[str, Any], task: str, check: Callable[..., None]) -> Transcript:
    check()
    samples, rate = read_audio(given["file"], "the field 'file'", most_seconds=MOST_SECONDS)
    check()
    # OpenAI's 0 means: start at 0, and raise it for windows whose text is poor. That is the default here.
    temperature = float(given.get("temperature", 0))
    options = TranscribeOptions(
        task=task,
        language=given.get("language") or None,
        prompt=given.get("prompt", ""),
        **({"temperature": temperature} if temperature else {}),  # type: ignore[arg-type]
    )
    return listener.model.transcribe(samples, options, rate=rate, on_segment=check, on_progress=check)


def _refusal(error: CamshaftError) -> HttpError:
    """The HTTP error: 400 for a file that cannot be read."""
    if isinstance(error, FormatError | MissingExtraError):
        return HttpError(400, str(error), code="invalid_file", param="file")
    return http_error(error)


def _usage(made: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": max(1, round(made.duration))}


def _verbose(made: Transcript) -> dict[str, Any]:
    return {
        "task": made.task,
        "language": LANGUAGES.get(made.language, made.language),
        "duration": made.duration,
        "text": made.text,
        "segments": [asdict(segment) for segment in made.segments],
        "usage": _usage(made),
    }


def _text(cue: Callable[[Segment], str], header: str = "") -> Callable[[Transcript], Response]:
    return lambda made: PlainTextResponse(header + "".join(map(cue, made.segments)))


_SHAPES: dict[str, Callable[[Transcript], Response]] = {
    "json": lambda made: Json({"text": made.text, "usage": _usage(made)}),
    "verbose_json": lambda made: Json(_verbose(made)),
    "text": lambda made: PlainTextResponse(made.text + "\n"),
    "srt": _text(srt_cue),
    "vtt": _text(vtt_cue, VTT_HEADER),
}
FORMS = {"/v1/audio/transcriptions": transcriptions, "/v1/audio/translations": translations}
