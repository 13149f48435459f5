"""SpeechConfig: the sizes of a Whisper model, read from a GGUF file's metadata and checked.

GGUF has no names for Whisper: these are camshaft's own (docs/models.md lists them), by the pattern of T5's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.models.file_keys import Keys
from camshaft.models.layer_options import MOST_LAYERS

# fmt: off
# English names of the languages that Whisper models know.
LANGUAGES = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian", "ko": "korean", "fr": "french",
    "ja": "japanese", "pt": "portuguese", "tr": "turkish", "pl": "polish", "ca": "catalan", "nl": "dutch",
    "ar": "arabic", "sv": "swedish", "it": "italian", "id": "indonesian", "hi": "hindi", "fi": "finnish",
    "vi": "vietnamese", "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay", "cs": "czech",
    "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian", "th": "thai", "ur": "urdu",
    "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian", "la": "latin", "mi": "maori", "ml": "malayalam",
    "cy": "welsh", "sk": "slovak", "te": "telugu", "fa": "persian", "lv": "latvian", "bn": "bengali", "sr": "serbian",
    "az": "azerbaijani", "sl": "slovenian", "kn": "kannada", "et": "estonian", "mk": "macedonian", "br": "breton",
    "eu": "basque", "is": "icelandic", "hy": "armenian", "ne": "nepali", "mn": "mongolian", "bs": "bosnian",
    "kk": "kazakh", "sq": "albanian", "sw": "swahili", "gl": "galician", "mr": "marathi", "pa": "punjabi",
    "si": "sinhala", "km": "khmer", "sn": "shona", "yo": "yoruba", "so": "somali", "af": "afrikaans", "oc": "occitan",
    "ka": "georgian", "be": "belarusian", "tg": "tajik", "sd": "sindhi", "gu": "gujarati", "am": "amharic",
    "yi": "yiddish", "lo": "lao", "uz": "uzbek", "fo": "faroese", "ht": "haitian creole", "ps": "pashto",
    "tk": "turkmen", "nn": "nynorsk", "mt": "maltese", "sa": "sanskrit", "lb": "luxembourgish", "my": "myanmar",
    "bo": "tibetan", "tl": "tagalog", "mg": "malagasy", "as": "assamese", "tt": "tatar", "haw": "hawaiian",
    "ln": "lingala", "ha": "hausa", "ba": "bashkir", "jw": "javanese", "su": "sundanese", "yue": "cantonese",
}

ARCHITECTURE = "whisper"
# Sound that models hear: samples a second, samples of a frame's spectrum, and samples from frame to frame.
SAMPLE_RATE, N_FFT, HOP = 16000, 400, 160
# Frames that become one position of the encoder: the second convolution's stride.
STRIDE = 2
_MOST_POSITIONS, _MOST_MELS = 1 << 16, 1024


@dataclass(frozen=True)
class SpeechConfig:
    """Sizes in elements. `audio_context` is the positions of a window of sound, `text_context` those of tokens.

    `suppressed` tokens are never chosen, `suppressed_first` not as the first; None where the file does not say.
    `multilingual`: whether the model knows languages beside English, and to translate."""

    dim: int
    ffn_dim: int
    n_heads: int
    n_encoder_layers: int
    n_decoder_layers: int
    n_mels: int
    audio_context: int
    text_context: int
    vocab_size: int
    norm_eps: float
    multilingual: bool
    suppressed: tuple[int, ...] | None
    suppressed_first: tuple[int, ...] | None

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.dim // self.n_heads

    @property
    def n_frames(self) -> int:
        """Frames of a window: 3000 in released models."""
        return STRIDE * self.audio_context

    @property
    def window_seconds(self) -> float:
        """Seconds of a window: 30 in released models."""
        return self.n_frames * HOP / SAMPLE_RATE


def read_speech_config(metadata: Mapping[str, Any], vocab_size: int) -> SpeechConfig:
    """Read the sizes. Raises ModelError, naming the key, for a missing or impossible value."""
    keys = Keys(metadata, ARCHITECTURE)
    layers = [keys.size(name, most=MOST_LAYERS) for name in ("block_count", "decoder_block_count")]
    config = SpeechConfig(
        dim=keys.size("embedding_length"),
        ffn_dim=keys.size("feed_forward_length"),
        n_heads=keys.size("attention.head_count"),
        n_encoder_layers=layers[0],
        n_decoder_layers=layers[1],
        n_mels=keys.size("audio.mel_count", most=_MOST_MELS),
        audio_context=keys.size("audio.context_length", most=_MOST_POSITIONS),
        text_context=keys.size("context_length", most=_MOST_POSITIONS),
        vocab_size=vocab_size,
        norm_eps=keys.positive("attention.layer_norm_epsilon", 1e-5),
        multilingual=keys.flag("multilingual", True),
        suppressed=_token_ids(keys, "suppress_tokens", vocab_size),
        suppressed_first=_token_ids(keys, "begin_suppress_tokens", vocab_size),
    )
    if config.dim % config.n_heads:
        raise ModelError(f"{config.dim} elements in {config.n_heads} heads; wanted heads that divide the elements")
    if config.text_context < 8:
        raise ModelError(f"the key 'whisper.context_length' is {config.text_context}; wanted 8 or more")
    return config


def _token_ids(keys: Keys, key: str, vocab_size: int) -> tuple[int, ...] | None:
    name = f"{ARCHITECTURE}.{key}"
    given = keys.metadata.get(name)
    if given is None:
        return None
    values = np.asarray(given) if isinstance(given, (list, tuple, np.ndarray)) else np.zeros((), object)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ModelError(f"the key {name!r} is {shown_value(given)}; wanted an array of token ids")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < vocab_size:
        raise ModelError(f"the key {name!r} has an id that no token has; wanted ids from 0 to {vocab_size - 1}")
    return tuple(int(value) for value in values)
