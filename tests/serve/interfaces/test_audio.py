"""Recordings over HTTP: OpenAI's shapes, limits, and what is refused by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from camshaft import SpeechModel
from camshaft.generate.engine.request_queue import QueueFullError

pytest.importorskip("starlette")
pytest.importorskip("python_multipart")

from starlette.testclient import TestClient

from camshaft.serve.app import make_app
from camshaft.serve.guard import Guard
from camshaft.serve.models.entry import SPEECH, Card
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import MOST_RECORDINGS, Listener
from camshaft.serve.openai import audio
from camshaft.serve.requests import respond
from tests.support.models.speech import sound, tiny_whisper, wav

ADDRESS = "/v1/audio/transcriptions"
GIVEN = {"language": "de", "temperature": "0.01"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeechModel]:
    with SpeechModel(tiny_whisper(tmp_path_factory.mktemp("speech")), threads=1, activations="f32") as opened:
        yield opened


class Kept(Listener):
    """One whose model stays open for other tests."""

    def close(self) -> None:
        self._thread.shutdown()


@pytest.fixture(scope="module")
def client(model: SpeechModel) -> Iterator[Any]:
    card = Card("whisper", lambda: Kept("whisper", model), SPEECH)
    models = Models([card])
    models.put("whisper", card.open())
    with TestClient(make_app(models, Guard()), base_url="http://localhost") as made:
        yield made


@pytest.fixture(scope="module")
def recording() -> bytes:
    return wav(sound(2.0))


def post(client: Any, recording: bytes, address: str = ADDRESS, **fields: Any) -> Any:
    return client.post(address, files={"file": ("a.wav", recording)}, data=fields)


def test_each_shape_says_the_same(client: Any, recording: bytes, model: SpeechModel) -> None:
    wanted = model.transcribe(recording, language="de", temperature=0.01)
    answer = post(client, recording, model="whisper", **GIVEN).json()
    assert answer == {"text": wanted.text, "usage": {"type": "duration", "seconds": 2}}
    verbose = post(client, recording, response_format="verbose_json", **GIVEN).json()
    assert (verbose["language"], verbose["duration"], verbose["task"]) == ("german", 2.0, "transcribe")
    assert [s["text"] for s in verbose["segments"]] == [s.text for s in wanted.segments]
    assert verbose["segments"][0].keys() == {
        *("id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob"),
        *("compression_ratio", "no_speech_prob"),
    }
    text = post(client, recording, response_format="text", **GIVEN)
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text == wanted.text + "\n"
    assert post(client, recording, response_format="srt", **GIVEN).text.startswith("1\n00:00:0")
    assert post(client, recording, response_format="vtt", **GIVEN).text.startswith("WEBVTT\n\n00:00:0")


def test_translations_are_told_so(client: Any, recording: bytes) -> None:
    given = {"response_format": "verbose_json", "temperature": "0.01"}
    answer = post(client, recording, "/v1/audio/translations", **given)
    assert answer.json()["task"] == "translate"
    refused = post(client, recording, "/v1/audio/translations", language="de")
    assert refused.status_code == 400
    assert "language" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"response_format": "doc"}, 400, "'response_format'"),
        ({"temperature": "hot"}, 400, "wanted a number from 0 to 1"),
        ({"temperature": "nan"}, 400, "wanted a number from 0 to 1"),
        ({"language": "xx"}, 400, "no language 'xx'"),
        ({"stream": "true"}, 400, "'stream'"),
        ({"timestamp_granularities[]": "word"}, 400, "(others are not supported)"),
        ({"include[]": "logprobs"}, 400, "include[]"),
        ({"chunking_strategy": "auto"}, 400, "chunking_strategy"),
        ({"model": "gpt-4o"}, 404, "there is no model 'gpt-4o' for recordings"),
    ],
)
def test_fields_are_refused_by_name(fields: dict[str, str], status: int, message: str, client: Any) -> None:
    answer = post(client, wav(sound(0.1)), **fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"RIFF\0\0\0\0WAVE", "it is cut off"),
        (wav(np.zeros(0)), "has no samples"),
        (wav(sound(0.1), 0), "has 0 samples a second"),
    ],
)
def test_files_that_are_no_sound_are_a_400(data: bytes, message: str, client: Any) -> None:
    answer = post(client, data)
    assert (answer.status_code, "\n" in answer.json()["error"]["message"]) == (400, False)
    assert message in answer.json()["error"]["message"]


def test_bodies_that_are_no_form_are_a_400(client: Any, recording: bytes) -> None:
    json = client.post(ADDRESS, json={"file": "a"})
    assert (json.status_code, json.json()["error"]["code"]) == (400, "invalid_form")
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        broken = client.post(ADDRESS, content=b"nothing of it", headers={"Content-Type": kind})
        assert broken.status_code == 400, kind
    missing = client.post(ADDRESS, files={"other": ("a.wav", recording)})
    assert "'other'" in missing.json()["error"]["message"]
    text = client.post(ADDRESS, files={"file": (None, "a text")})
    assert "wanted a sound file" in text.json()["error"]["message"]


def test_long_and_large_recordings_are_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MOST_SECONDS", 1)
    assert "has 2 seconds; wanted at most 1" in post(client, wav(sound(2.0))).json()["error"]["message"]
    monkeypatch.setattr(audio, "MOST_AUDIO_NBYTES", 20_000)
    large = post(client, wav(sound(2.0)))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")


def test_more_recordings_than_places_are_a_429(model: SpeechModel) -> None:
    held, listener = threading.Event(), Kept("whisper", model)
    waiting = [listener.submit(held.wait) for _ in range(MOST_RECORDINGS)]
    with pytest.raises(QueueFullError, match="recordings wait already"):
        listener.submit(held.wait)
    held.set()
    assert all(future.result(10) for future in waiting)
    assert listener.submit(lambda: 1).result(10) == 1
    listener.close()


def test_a_client_that_goes_ends_the_work(client: Any, recording: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def gone(request: Any) -> None:
        while not begun.is_set():
            await respond.asyncio.sleep(0.01)

    def endless(self: Any, samples: Any, options: Any, **given: Any) -> None:
        begun.set()
        try:
            while True:
                given["on_progress"](0.0, 1.0)
        finally:
            ended.set()

    monkeypatch.setattr(respond, "_disconnected", gone)
    monkeypatch.setattr(SpeechModel, "transcribe", endless)
    assert post(client, recording).status_code == respond.CLIENT_CLOSED
    assert ended.wait(10)


def test_a_server_without_such_a_model_says_how_to_get_one() -> None:
    with TestClient(make_app(Models([]), Guard()), base_url="http://localhost") as none:
        answer = post(none, b"x")
    assert "start it with --speech MODEL" in answer.json()["error"]["message"]


@pytest.mark.oracle
def test_the_client_of_openai_works(client: Any, recording: bytes) -> None:
    openai = pytest.importorskip("openai")
    theirs = openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client)
    made = theirs.audio.transcriptions.create(
        model="whisper", file=("a.wav", recording), language="de", temperature=0.01
    )
    assert made.text
    verbose = theirs.audio.transcriptions.create(
        model="whisper", file=("a.wav", recording), response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert verbose.segments
    with pytest.raises(openai.BadRequestError, match="wanted 16 or more"):
        theirs.audio.translations.create(model="whisper", file=("a.wav", recording[:30]))
