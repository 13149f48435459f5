"""SpeechModel: fallbacks, silence, options, hostile files, and what the commands print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import SpeechModel
from camshaft.cli.main import make_app
from camshaft.errors import CamshaftError, FormatError, ModelError, SettingError
from camshaft.generate import options as model_options
from camshaft.generate.speech import speech_model
from camshaft.generate.speech.decoding import Decoded, compression_ratio, is_silent
from camshaft.generate.speech.options import TranscribeOptions
from camshaft.generate.speech.transcript import Segment, line_of, srt_cue, vtt_cue
from tests.support.models.files import changed_model
from tests.support.models.speech import GREEDY, sound, tiny_whisper, wav


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_whisper(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[SpeechModel]:
    with SpeechModel(path, threads=1, activations="f32") as opened:
        yield opened


@pytest.mark.full
def test_a_poor_text_is_tried_at_each_temperature(model: SpeechModel) -> None:
    given = {"language": "en", "condition_on_previous_text": False, "seed": 3}
    strict = {"logprob_threshold": -0.001, "no_speech_threshold": None, "temperature": (0.0, 0.4, 0.8)}
    made = model.transcribe(sound(1.0), **given, **strict)
    assert {s.temperature for s in made.segments} == {0.8}
    assert made == model.transcribe(sound(1.0), **given, **strict)
    other = model.transcribe(sound(1.0), **{**given, "seed": 4}, **strict)
    assert [s.tokens for s in other.segments] != [s.tokens for s in made.segments]
    lax = {"compression_ratio_threshold": None, "logprob_threshold": None}
    assert {s.temperature for s in model.transcribe(sound(1.0), **given, **lax).segments} == {0.0}


@pytest.mark.full
def test_repetitive_texts_are_poor(model: SpeechModel) -> None:
    assert compression_ratio("la " * 100) > 10
    assert compression_ratio("") < 1 < compression_ratio("What is said here is not said once more. ") * 2
    options = {"logprob_threshold": None, "temperature": (0.0, 1.0), "compression_ratio_threshold": 0.0}
    assert {s.temperature for s in model.transcribe(sound(1.0), language="en", **options).segments} == {1.0}


def test_silence_needs_both_the_model_and_an_unlikely_text() -> None:
    def decoded(no_speech: float, logprob: float) -> Decoded:
        return Decoded((1,), "a", 0.0, logprob, 1.0, no_speech)

    options = TranscribeOptions()
    assert is_silent(decoded(0.7, -1.5), options)
    assert not is_silent(decoded(0.7, -0.5), options)
    assert not is_silent(decoded(0.5, -1.5), options)
    assert is_silent(decoded(0.7, -0.5), TranscribeOptions(logprob_threshold=None))
    assert not is_silent(decoded(0.9, -9), TranscribeOptions(no_speech_threshold=None))


def test_a_silent_window_has_no_segment(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_model, "is_silent", lambda decoded, options: True)
    made = model.transcribe(sound(2.5), language="en", **GREEDY)
    assert (made.text, made.segments, made.duration) == ("", (), 2.5)


def test_a_recording_may_be_a_path_bytes_or_samples_at_any_rate(model: SpeechModel, tmp_path: Path) -> None:
    data = wav(sound(1.0), bits=32, is_float=True)
    (tmp_path / "a.wav").write_bytes(data)
    made = [model.transcribe(audio, **GREEDY) for audio in (tmp_path / "a.wav", data, sound(1.0))]
    assert made[0] == made[1] == made[2]
    short = model.transcribe(np.zeros(40, np.float32), rate=8000, **GREEDY)
    assert short.duration == 0.005


def test_times_may_be_left_out_and_are_told_as_they_come(model: SpeechModel) -> None:
    seen: list[Segment] = []
    steps: list[float] = []
    made = model.transcribe(
        sound(2.5), language="en", timestamps=False, on_segment=seen.append,
        on_progress=lambda done, total: steps.append(done), **GREEDY,
    )  # fmt: skip
    assert tuple(seen) == made.segments
    assert [(s.start, s.end) for s in seen] == [(0, 1), (1, 2), (2, 2.5)]
    assert steps == [1.0, 2.0, 2.5]
    assert all(i < model._tokens.end for s in seen for i in s.tokens)


def test_a_prompt_and_translation_change_the_answer(model: SpeechModel) -> None:
    plain = model.transcribe(sound(1.0), language="de", **GREEDY)
    assert model.transcribe(sound(1.0), language="german", **GREEDY) == plain
    assert model.transcribe(sound(1.0), language="de", prompt="the <|de|> thing", **GREEDY).text != plain.text
    assert model.transcribe(sound(1.0), language="de", task="translate", **GREEDY).text != plain.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, "no language 'xx'; the model has 3, such as en, de, fr"),
        ({"task": "sing"}, "wanted 'transcribe' or 'translate'"),
        ({"temperature": ()}, "wanted a number from 0 to 2"),
        ({"best_of": 6}, "wanted a whole number from 1 to 5"),
        ({"no_speech_threshold": 2}, "wanted a number from 0 to 1, or None"),
        ({"rate": 8000}, "beside a file"),
    ],
)
def test_wrong_options_are_named(model: SpeechModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        model.transcribe(wav(sound(0.1)), **options)


def test_a_recording_without_samples_is_refused(model: SpeechModel) -> None:
    with pytest.raises(SettingError, match="has no samples"):
        model.transcribe(wav(np.zeros(0)))
    with pytest.raises(FormatError, match="is empty"):
        model.transcribe(b"")


@pytest.mark.full
def test_a_model_of_english_alone_hears_without_a_language(path: Path, tmp_path: Path) -> None:
    changed = changed_model(path, tmp_path, keys={"whisper.multilingual": False})
    with SpeechModel(changed, threads=1, activations="f32") as english:
        assert english.transcribe(sound(1.0), **GREEDY).language == "en"
        assert english.detect_language(sound(1.0)) == {"en": 1.0}


@pytest.mark.full
def test_the_usual_mode_stays_close(path: Path, model: SpeechModel) -> None:
    with SpeechModel(path, threads=2) as usual:
        found, wanted = (each.detect_language(sound(1.0)) for each in (usual, model))
    assert found == pytest.approx(wanted, abs=0.02)
    assert found != wanted


def test_a_model_of_english_alone(path: Path, tmp_path: Path) -> None:
    changed = changed_model(path, tmp_path, keys={"whisper.multilingual": False})
    with SpeechModel(changed, threads=1, activations="f32") as english:
        assert english.languages == ("en",)
        with pytest.raises(SettingError, match="knows English alone"):
            english.transcribe(sound(1.0), language="de")
    with pytest.raises(ModelError, match="is closed"):
        english.transcribe(sound(1.0))


HOSTILE = [
    ({"whisper.audio.mel_count": 0}, "'whisper.audio.mel_count' is 0"),
    ({"whisper.audio.mel_count": 17}, r"has shape \[32, 16, 3\]; wanted \[32, 17, 3\]"),
    ({"whisper.audio.mel_count": 10**6}, "wanted at most 1024"),
    ({"whisper.block_count": 3}, "no tensor 'enc.blk.2"),
    ({"whisper.decoder_block_count": 5}, "no tensor 'dec.blk.2"),
    ({"whisper.decoder_block_count": 2**31 - 1}, "wanted at most 4096"),
    ({"whisper.attention.head_count": 5}, "wanted heads that divide"),
    ({"whisper.audio.context_length": 2**30}, "wanted at most 65536"),
    ({"whisper.audio.context_length": 60}, "wanted 61 times after it"),
    ({"whisper.context_length": 63}, r"'dec.position_embd.weight' has shape \[64, 32\]; wanted \[63, 32\]"),
    ({"whisper.suppress_tokens": [5000]}, "an id that no token has"),
    ({"whisper.suppress_tokens": "all"}, "wanted an array of token ids"),
    ({"whisper.multilingual": 3}, "wanted true or false"),
    ({"general.architecture": "llama"}, "wanted whisper, a speech model"),
]


@pytest.mark.parametrize(("keys", "message"), HOSTILE)
def test_a_file_that_lies_is_one_clear_line(keys: dict[str, Any], message: str, path: Path, tmp_path: Path) -> None:
    changed = changed_model(path, tmp_path, keys=keys)
    with pytest.raises(CamshaftError, match=message) as caught:
        _open(changed)
    assert "\n" not in str(caught.value)


def _open(path: Path) -> None:
    with SpeechModel(path, threads=1, activations="f32") as opened:
        opened._plans.graph("encode")
        opened._plans.graph("prompt")


def test_other_classes_say_what_runs_a_speech_model(path: Path) -> None:
    from camshaft import LanguageModel

    with pytest.raises(ModelError, match="whisper, a speech model: camshaft transcribe and SpeechModel run it"):
        LanguageModel(path)


def _segment(text: str) -> Segment:
    return Segment(1, 0, 3661.5, 3662.042, text, (), 0.0, -0.5, 1.0, 0.1)


def test_segments_as_lines_and_cues() -> None:
    segment = _segment(" a <b>\n\n--> c & d ")
    assert line_of(segment, timestamps=True) == "[01:01:01.500 --> 01:01:02.042] a <b> --> c & d\n"
    assert srt_cue(segment) == "2\n01:01:01,500 --> 01:01:02,042\na <b>\n-> c & d\n\n"
    assert vtt_cue(segment) == "01:01:01.500 --> 01:01:02.042\na &lt;b&gt;\n-&gt; c &amp; d\n\n"


def run(*words: object) -> tuple[int, str, str]:
    from typer.testing import CliRunner

    result = CliRunner().invoke(make_app(["transcribe"]), ["transcribe", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_lines_subtitles_and_json(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The plans of the other tests.
    monkeypatch.setattr(model_options, "activations_of", lambda name: "f32")
    recording = tmp_path / "a.wav"
    recording.write_bytes(wav(sound(2.0)))
    given = (path, recording, "--language", "de", "--temperature", 0, "--threads", 1)
    status, text, _ = run(*given)
    assert status == 0
    assert text.count("\n") > 1
    timed = run(*given, "--timestamps")[1]
    assert timed.startswith("[00:00:0")
    assert run(*given, "--format", "srt")[1].startswith("1\n00:00:0")
    assert run(*given, "--format", "vtt")[1].startswith("WEBVTT\n\n00:00:0")
    made = json.loads(run(*given, "--format", "json")[1])
    assert made["language"] == "de"
    assert made["duration"] == 2.0
    assert len(made["segments"]) == text.count("\n")


def test_the_command_names_what_is_wrong(path: Path, tmp_path: Path) -> None:
    status, _, error = run(path, tmp_path / "none.wav")
    assert (status, error.count("\n")) == (2, 1)
    assert "none.wav" in error
    assert run(path, path, "--format", "doc")[2] == "camshaft: --format doc; wanted one of text, srt, vtt, json\n"
