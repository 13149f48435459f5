"""SpeechModel: a Whisper model opened to turn recordings into text."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.errors import SettingError
from camshaft.formats.audio.read import read_audio
from camshaft.formats.audio.resample import mono, resampled
from camshaft.generate.speech.decoding import decode_window, detect_language, is_silent
from camshaft.generate.speech.options import TRANSCRIBE_RULES, TranscribeOptions
from camshaft.generate.speech.plans import SpeechPlans
from camshaft.generate.speech.rules import Rules
from camshaft.generate.speech.tokens import read_tokens
from camshaft.generate.speech.transcript import STEP, Segment, Transcript, made_segment, split_window
from camshaft.generate.stored.file_plans import FileModel
from camshaft.models.speech.config import ARCHITECTURE, HOP, SAMPLE_RATE, read_speech_config
from camshaft.text.vocabulary import vocabulary_size

Array = np.ndarray[Any, Any]
Audio = str | os.PathLike[str] | bytes | Array
# Above this temperature the text of a window is not a guide to the next one.
_DRAWN = 0.5


class SpeechModel(FileModel):
    """A model that turns speech into text. Thread-safe: calls run one at a time. A context manager.

    path_or_name: a .gguf file of the architecture whisper, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    activations: 'q8' quantizes the inputs of quantized matmuls to 8 bits, and 'auto', or rounds them to bf16 on a CPU with AMX;
        'f32' does not, and keeps keys in f32.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    architecture, kind = ARCHITECTURE, "a speech model"
    _plans: SpeechPlans

    def _planned(self, activations: str, form: DType) -> SpeechPlans:
        self.config = read_speech_config(self._file.metadata, vocabulary_size(self._file.metadata))
        self._tokens = read_tokens(self.tokenizer, self.config)
        return SpeechPlans(self._file, self.config, activations=activations, form=form, threads=self.threads)

    def __repr__(self) -> str:
        kind = f"{len(self.languages)} languages" if self.config.multilingual else "English"
        return f"SpeechModel({self.name!r}: {kind}, windows of {self.config.window_seconds:g} s)"

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model knows."""
        return tuple(self._tokens.languages) if self.config.multilingual else ("en",)

    def transcribe(
        self,
        audio: Audio,
        options: TranscribeOptions | None = None,
        *,
        rate: int | None = None,
        on_segment: Callable[[Segment], None] = lambda segment: None,
        on_progress: Callable[[float, float], None] = lambda done, total: None,
        **keywords: Any,
    ) -> Transcript:
        """Transcribes a recording: a file's path or bytes, or samples f32 [n] or [n, channels] at `rate` (16000).

        `keywords` are fields of TranscribeOptions. `on_segment` gets each segment once it is decided, `on_progress` seconds done
        and in all; an exception of theirs ends the work. Raises FormatError for a file that is not an audio file,
        MissingExtraError for one that needs a library, SettingError for an option or samples that cannot be, LogitsError if the
        model computes NaN."""
        wanted = self._options(options, keywords)
        samples = _samples(audio, rate)
        with self._lock:
            self._check_open()
            work = _Transcription(self, wanted, samples)
            return work.run(on_segment, on_progress)

    def detect_language(self, audio: Audio, *, rate: int | None = None) -> dict[str, float]:
        """The probability of each language, of the first window, the likeliest first. Raises as `transcribe`."""
        samples = _samples(audio, rate)
        with self._lock:
            self._check_open()
            if not self.config.multilingual:
                return {"en": 1.0}
            self._plans.encode(self._features(samples[: int(self.config.window_seconds * SAMPLE_RATE)]))
            return detect_language(self._plans, self._tokens)

    def _options(self, given: TranscribeOptions | None, keywords: dict[str, Any]) -> TranscribeOptions:
        unknown = [name for name in keywords if name not in TRANSCRIBE_RULES]
        if unknown:
            raise TypeError(f"transcribe() has no option {unknown[0]!r}; wanted {', '.join(TRANSCRIBE_RULES)}")
        if given is not None and not isinstance(given, TranscribeOptions):
            raise SettingError(f"options came as {type(given).__name__}; wanted TranscribeOptions")
        made = replace(given or TranscribeOptions(), **keywords)
        if self.config.multilingual:
            return made if made.language is None else replace(made, language=self._tokens.language_of(made.language))
        if made.task == "translate" or (made.language or "en").lower() not in ("en", "english"):
            raise SettingError(f"{self.name} knows English alone; wanted task 'transcribe' and language None or 'en'")
        return replace(made, language=None)

    def _features(self, samples: Array) -> Array:
        """Features of a recording, which silence fills up to one window."""
        window = self.config.n_frames * HOP
        return self._plans.features(np.pad(samples, (0, max(0, window - len(samples)))))

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i < self._tokens.end])


class _Transcription:
    """One recording's way through the model."""

    def __init__(self, model: SpeechModel, options: TranscribeOptions, samples: Array) -> None:
        self._model, self._options, self._tokens = model, options, model._tokens
        self._duration, self._samples = len(samples) / SAMPLE_RATE, samples
        tokens, config = self._tokens, model.config
        self._rules = Rules(
            tokens=tokens,
            never=np.array(tokens.never(config), np.int64),
            blank=np.array(tokens.blank, np.int64),
            timestamps=options.timestamps,
            first_limit=round(options.max_initial_timestamp / STEP),
        )
        self._rng = np.random.default_rng(options.seed)
        words = options.prompt.strip()
        # The tokens before a window: those of the prompt, then those of what was said.
        self._given = model.tokenizer.encode(f" {words}", add_special=False, parse_special=False) if words else []

    def run(self, on_segment: Callable[[Segment], None], on_progress: Callable[[float, float], None]) -> Transcript:
        model, seek, segments = self._model, 0, list[Segment]()
        features = model._features(self._samples)
        n_frames, language = max(1, len(self._samples) // HOP), self._options.language
        while seek < n_frames:
            model._plans.encode(features[:, seek : seek + model.config.n_frames])
            if language is None and model.config.multilingual:
                language = next(iter(detect_language(model._plans, self._tokens)))
            size = min(model.config.n_frames, n_frames - seek)
            found, moved = self._window(language, seek, size, len(segments))
            for segment in found:
                segments.append(segment)
                on_segment(segment)
            seek += moved
            on_progress(min(seek, n_frames) * HOP / SAMPLE_RATE, self._duration)
        text = "".join(segment.text for segment in segments)
        return Transcript(text.strip(), tuple(segments), language or "en", self._duration, self._options.task)

    def _window(self, language: str | None, seek: int, size: int, n_before: int) -> tuple[list[Segment], int]:
        """The segments of the window that was encoded, and how many frames on the next one begins."""
        options, tokens, model = self._options, self._tokens, self._model
        decoded = decode_window(
            model._plans, self._prefix(language), tokens, self._rules, options, model._text, self._rng
        )
        if is_silent(decoded, options):
            return [], size
        parts, moved = split_window(decoded.ids, tokens, size)
        texts = [part for part in parts if model._text(part).strip()]
        self._remember(texts, decoded.temperature)
        places = ((n_before + i, seek, size) for i in range(len(texts)))
        made = [made_segment(p, decoded, tokens, model._text, at) for p, at in zip(texts, places, strict=True)]
        return made, min(moved, size)

    def _prefix(self, language: str | None) -> list[int]:
        """The tokens before an answer: the end of what was said before, and those that an answer begins with."""
        options, tokens = self._options, self._tokens
        start = tokens.start_ids(language, options.task, timestamps=options.timestamps)
        most = self._model.config.text_context // 2 - 1
        return [tokens.previous, *self._given[-most:], *start] if self._given else start

    def _remember(self, parts: Sequence[Sequence[int]], temperature: float) -> None:
        if not self._options.condition_on_previous_text or temperature > _DRAWN:
            self._given = []
            return
        self._given += [i for part in parts for i in part]


def _samples(audio: Audio, rate: int | None) -> Array:
    """A recording as samples f32 [n] at SAMPLE_RATE."""
    if not isinstance(audio, np.ndarray):
        if rate is not None:
            raise SettingError(f"rate={rate!r} beside a file, which says its own; wanted it beside samples")
        found, rate = read_audio(audio)
    else:
        found, rate = audio, SAMPLE_RATE if rate is None else rate
    samples = resampled(mono(found), rate, SAMPLE_RATE)
    if not len(samples):
        raise SettingError("the recording has no samples")
    return samples
