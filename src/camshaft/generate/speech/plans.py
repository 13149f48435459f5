"""The plans of a speech model, compiled on first use or loaded from the plan cache; they share all memory.

- features: samples to the logarithmic mel spectrogram
- encode: a window's features to the states that the decoder attends to
- prompt: up to text_context tokens, logits of up to LOGIT_ROWS of them
- single, several: a token of one text, or of each of up to TEXTS
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType, f32
from camshaft.errors import LogitsError
from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.stored.file_plans import FilePlans
from camshaft.models.speech.config import HOP, SpeechConfig
from camshaft.models.speech.whisper import RUN_FRAMES, RUN_SAMPLES, Texts, normalized, padded, state_specs
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

Array = np.ndarray[Any, Any]
# Texts that are decoded side by side, and positions of a prompt with logits.
TEXTS, LOGIT_ROWS = 5, 16


class SpeechPlans(FilePlans):
    """The plans over one file. The caller holds a lock: all share the states, the features and the logits."""

    def __init__(self, file: GGUFFile, config: SpeechConfig, *, activations: str, form: DType, threads: int) -> None:
        self.config = config
        self.length, self._tokens = Extent("length", config.text_context), Extent("tokens", config.text_context)
        self._rows, self._several = Extent("rows", min(LOGIT_ROWS, config.text_context)), Extent("texts", TEXTS)
        self._texts = Texts(TEXTS, self.length)
        specs = state_specs(config, self._texts, form) | {
            "features": TensorSpec((config.n_mels, config.n_frames), f32),
            "encoded": TensorSpec((config.audio_context, config.dim), f32),
            "logits": TensorSpec((max(LOGIT_ROWS, TEXTS), config.vocab_size), f32),
            "samples": TensorSpec((RUN_SAMPLES,), f32),
            "log_mel": TensorSpec((config.n_mels, RUN_FRAMES), f32),
        }
        facts = f"speech|{config}|{TEXTS}|{LOGIT_ROWS}|{form}"
        super().__init__(file, facts, specs, activations=activations, threads=threads)

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The memory of every state, input and output that plans share; each text has blocks of its own."""
        made = super().arrays
        made["block_table"].flat[:] = np.arange(made["block_table"].size)
        return made

    def graph(self, name: str) -> Graph:
        """The graph of a plan."""
        from camshaft.models.speech import whisper  # not needed if all plans are cached

        if name == "features":
            return whisper.features_graph(self.config.n_mels)
        if name == "encode":
            return whisper.encoder_graph(self.config, self.file.tensors, self.specs)
        sizes: dict[str, tuple[int | Extent, Extent | None]] = {
            "prompt": (self._tokens, self._rows),
            "single": (1, None),
            "several": (self._several, None),
        }
        return whisper.decoder_graph(self.config, self.file.tensors, self.specs, self._texts, *sizes[name])

    def uses(self, name: str) -> Sequence[str]:
        """The names of the arrays that a plan uses."""
        if name == "features":
            return "samples", "log_mel"
        if name == "encode":
            return "features", "encoded", *(n for n in self.specs if n.startswith("cross_"))
        return "logits", "block_table", *(n for n in self.specs if "keys." in n or "values." in n)

    def features(self, samples: Array) -> Array:
        """The features of a recording, f32 [n_mels, len(samples) // HOP], of samples f32 at 16 kHz, more than N_FFT / 2."""
        plan, found = self.plan("features"), np.empty((self.config.n_mels, len(samples) // HOP), np.float32)
        reflected = padded(samples)
        for first in range(0, found.shape[1], RUN_FRAMES):
            part = reflected[first * HOP : first * HOP + RUN_SAMPLES]
            self.arrays["samples"][:] = 0
            self.arrays["samples"][: len(part)] = part
            self.run(plan)
            n = min(RUN_FRAMES, found.shape[1] - first)
            found[:, first : first + n] = self.arrays["log_mel"][:, :n]
        return normalized(found)

    def encode(self, features: Array) -> Array:
        """Make a window of features, f32 [n_mels, up to n_frames], what the decoder hears; zeros fill it. Returns the encoder's
        result f32 [audio_context, dim], a view that is valid until the next window."""
        plan, n = self.plan("encode"), features.shape[1]
        self.arrays["features"][:, :n] = features
        self.arrays["features"][:, n:] = 0
        self.run(plan)
        return self.arrays["encoded"]

    def prompt(self, ids: Sequence[int], rows: Sequence[int], *, start: int = 0) -> Array:
        """Process tokens of text 0, from position `start` on; returns the logits of some, f32 [len(rows), vocab], a view."""
        plan, n = self.plan("prompt"), len(ids)
        plan.inputs["ids"][:n], plan.inputs["positions"][:n] = ids, np.arange(start, start + n)
        plan.inputs["slots"][:n], plan.inputs["windows"][:n] = 0, 0
        plan.inputs["rows"][: len(rows)] = rows
        plan.set_extent(self._tokens, n)
        plan.set_extent(self._rows, len(rows))
        plan.set_extent(self.length, start + n)
        self.run(plan)
        return self._logits(len(rows))

    def share(self, n_tokens: int, n_texts: int) -> None:
        """Give texts 1 to n_texts - 1 the first tokens of text 0."""
        blocks = -(-n_tokens // BLOCK_TOKENS)
        for layer in range(self.config.n_decoder_layers):
            for name in ("keys", "values"):
                array = self.arrays[f"{name}.{layer}"]
                for text in range(1, n_texts):
                    first = text * self._texts.blocks
                    array[first : first + blocks] = array[:blocks]

    def step(self, ids: Mapping[int, int], position: int) -> Array:
        """Process the next token of each text by number, all at one position; returns the logits f32 [texts, vocab], a view."""
        name, n = ("single" if len(ids) == 1 else "several"), len(ids)
        plan = self.plan(name)
        plan.inputs["ids"][:n], plan.inputs["slots"][:n] = list(ids.values()), list(ids)
        plan.inputs["positions"][:n], plan.inputs["windows"][:n] = position, 0
        if name == "several":
            plan.set_extent(self._several, n)
        plan.set_extent(self.length, position + 1)
        self.run(plan)
        return self._logits(n)

    def _logits(self, n: int) -> Array:
        found = self.arrays["logits"][:n]
        if not np.isfinite(found).all():
            raise LogitsError(f"{self.file.path} computed logits that are not finite")
        return found
