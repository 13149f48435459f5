"""The special tokens of a Whisper vocabulary, found by their texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from camshaft.errors import ModelError, SettingError
from camshaft.formats.mapped import shown
from camshaft.models.speech.config import LANGUAGES, SpeechConfig
from camshaft.text.tokenizer import Tokenizer

_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TASKS = ("transcribe", "translate")
# Names of <|nospeech|> in files, the newest first.
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of special tokens. Ids below `end` are of text, those from `first_timestamp` on of times in steps of 0.02 s, up to
    `last_timestamp`. `languages` has ids by code."""

    end: int
    start: int
    transcribe: int
    translate: int
    previous: int
    no_speech: int
    no_timestamps: int
    first_timestamp: int
    last_timestamp: int
    languages: Mapping[str, int]
    blank: tuple[int, ...]

    def start_ids(self, language: str | None, task: str, *, timestamps: bool) -> list[int]:
        """Returns the ids that start a transcript; `language` is None for English-only models."""
        ids = [self.start]
        if language is not None:
            ids += [self.languages[language], self.translate if task == "translate" else self.transcribe]
        return ids if timestamps else [*ids, self.no_timestamps]

    def never(self, config: SpeechConfig) -> list[int]:
        """Ids that no text has: the special ones, and those that the file names."""
        special = {self.start, self.transcribe, self.translate, self.previous, self.no_speech, self.no_timestamps}
        between = range(self.end + 1, self.first_timestamp)  # languages, and what other models have there
        return sorted({*special, *between, *(config.suppressed or ())} - {self.end})

    def language_of(self, given: str) -> str:
        """The code of a language by code or English name. Raises SettingError, naming some, for one that the model lacks."""
        word = given.strip().lower()
        code = next((code for code, name in LANGUAGES.items() if name == word), word)
        if code not in self.languages:
            known = ", ".join(list(self.languages)[:8])
            raise SettingError(f"no language {shown(given)}; the model has {len(self.languages)}, such as {known}")
        return code


def read_tokens(tokenizer: Tokenizer, config: SpeechConfig) -> SpeechTokens:
    """Find the tokens. Raises ModelError, naming one that the vocabulary lacks, or if there are too few times."""
    ids = tokenizer.vocabulary.ids

    def needed(*texts: str) -> int:
        found = next((ids[text] for text in texts if text in ids), None)
        if found is None:
            raise ModelError(f"the vocabulary has no token {texts[0]}, which a speech model needs")
        return found

    end, start = needed("<|endoftext|>"), needed("<|startoftranscript|>")
    first = needed("<|notimestamps|>") + 1
    matches = ((_LANGUAGE.fullmatch(text), number) for text, number in ids.items() if number > start)
    languages = {match[1]: number for match, number in sorted(matches, key=lambda pair: pair[1]) if match is not None}
    if config.multilingual and not languages:
        raise ModelError("the vocabulary of a model of many languages has no token such as <|en|>")
    last = first + config.audio_context
    if last >= config.vocab_size or not end < start < first:
        raise ModelError(
            f"the vocabulary has {config.vocab_size} tokens with <|notimestamps|> at {first - 1}; wanted"
            f" {config.audio_context + 1} times after it, and all text before <|endoftext|>"
        )
    blank = config.suppressed_first
    return SpeechTokens(
        end=end,
        start=start,
        transcribe=needed("<|transcribe|>"),
        translate=needed("<|translate|>"),
        previous=needed("<|startofprev|>"),
        no_speech=needed(*_NO_SPEECH),
        no_timestamps=first - 1,
        first_timestamp=first,
        last_timestamp=last,
        languages=languages,
        blank=(*tokenizer.encode(" ", add_special=False), end) if blank is None else blank,
    )
