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
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.speech.config import HOP, SpeechConfig
from camshaft.models.speech.features import RUN_FRAMES, RUN_SAMPLES, normalized, padded
from camshaft.models.speech.whisper import Texts, state_specs
from camshaft.ops.spec import TensorSpec
from camshaft.plan.cached_plan import CachedPlan
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.weights import Weights
from camshaft.settings import setting

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
# Texts that are decoded side by side, and positions of a prompt with logits.
TEXTS, LOGIT_ROWS = 5, 16
_LAYERS_OF_TEXTS = ("keys", "values")


class SpeechPlans:
    """The plans over one file. The caller holds a lock: all share the states, the features and the logits."""

    def __init__(self, file: GGUFFile, config: SpeechConfig, *, quantized: bool, form: DType, threads: int) -> None:
        self.file, self.config, self.threads = file, config, threads
        self.length, self._tokens = Extent("length", config.text_context), Extent("tokens", config.text_context)
        self._rows, self._several = Extent("rows", min(LOGIT_ROWS, config.text_context)), Extent("texts", TEXTS)
        self._texts = Texts(TEXTS, self.length)
        self._specs = state_specs(config, self._texts, form) | {
            "features": TensorSpec((config.n_mels, config.n_frames), f32),
            "encoded": TensorSpec((config.audio_context, config.dim), f32),
            "logits": TensorSpec((max(LOGIT_ROWS, TEXTS), config.vocab_size), f32),
            "samples": TensorSpec((RUN_SAMPLES,), f32),
            "log_mel": TensorSpec((config.n_mels, RUN_FRAMES), f32),
        }
        self._weights, self._activations = Weights(), "q8" if quantized else "f32"
        facts = f"speech|{config}|{TEXTS}|{LOGIT_ROWS}|{form}|{quantized}|{threads}"
        self._cache = PlanCache(file, facts, self._weights, file.tensors, use=True)
        self._plans: dict[str, ExecutionPlan | CachedPlan] = {}
        self._compiled: dict[str, ExecutionPlan] = {}

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        """The memory of every state, input and output that plans share."""
        made = {
            name: aligned_bytes(spec.nbytes, 64).view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
            for name, spec in self._specs.items()
        }
        made["block_table"][:] = np.arange(TEXTS * self._texts.blocks, dtype=np.int32).reshape(TEXTS, -1)
        return made

    def _graph(self, name: str) -> Graph:
        from camshaft.models.speech import features, whisper  # not needed if all plans are cached

        if name == "features":
            return features.features_graph(self.config.n_mels)
        if name == "encode":
            return whisper.encoder_graph(self.config, self.file.tensors, self._specs)
        sizes: dict[str, tuple[int | Extent, Extent | None]] = {
            "prompt": (self._tokens, self._rows),
            "single": (1, None),
            "several": (self._several, None),
        }
        return whisper.decoder_graph(self.config, self.file.tensors, self._specs, self._texts, *sizes[name])

    def _memory(self, name: str) -> dict[str, Array]:
        """The arrays that a plan uses."""
        if name == "features":
            wanted: Sequence[str] = ("samples", "log_mel")
        elif name == "encode":
            wanted = ("features", "encoded", *(n for n in self._specs if n.startswith("cross_")))
        else:
            wanted = ("logits", "block_table", *(n for n in self._specs if "keys." in n or "values." in n))
        return {n: self._arrays[n] for n in wanted}

    def _plan(self, name: str) -> ExecutionPlan | CachedPlan:
        if name not in self._plans:
            cached = self._cache.get(name, lambda: self._memory(name))
            self._plans[name] = self._compile(name) if cached is None else cached
        return self._plans[name]

    def _compile(self, name: str) -> ExecutionPlan:
        from camshaft.plan.compile import compile

        memory = self._memory(name)
        plan = compile(
            self._graph(name),
            threads=self.threads,
            activations=self._activations,
            weights=self._weights,
            memory=memory,
        )
        self._compiled[name] = plan
        self._cache.add(name, plan, memory)
        self._cache.flush()
        return plan

    def _run(self, plan: ExecutionPlan | CachedPlan) -> None:
        self._weights.finish()
        plan.bound.run()

    def features(self, samples: Array) -> Array:
        """The features of a recording, f32 [n_mels, len(samples) // HOP], of samples f32 at 16 kHz, more than N_FFT / 2."""
        plan, found = self._plan("features"), np.empty((self.config.n_mels, len(samples) // HOP), np.float32)
        reflected = padded(samples)
        for first in range(0, found.shape[1], RUN_FRAMES):
            part = reflected[first * HOP : first * HOP + RUN_SAMPLES]
            self._arrays["samples"][:] = 0
            self._arrays["samples"][: len(part)] = part
            self._run(plan)
            n = min(RUN_FRAMES, found.shape[1] - first)
            found[:, first : first + n] = self._arrays["log_mel"][:, :n]
        return normalized(found)

    def encode(self, features: Array) -> Array:
        """Make a window of features, f32 [n_mels, up to n_frames], what the decoder hears; zeros fill it. Returns the encoder's
        result f32 [audio_context, dim], a view that is valid until the next window."""
        plan, n = self._plan("encode"), features.shape[1]
        self._arrays["features"][:, :n] = features
        self._arrays["features"][:, n:] = 0
        self._run(plan)
        return self._arrays["encoded"]

    def prompt(self, ids: Sequence[int], rows: Sequence[int], *, start: int = 0) -> Array:
        """Process tokens of text 0, from position `start` on; returns the logits of some, f32 [len(rows), vocab], a view."""
        plan, n = self._plan("prompt"), len(ids)
        plan.inputs["ids"][:n], plan.inputs["positions"][:n] = ids, np.arange(start, start + n)
        plan.inputs["slots"][:n], plan.inputs["windows"][:n] = 0, 0
        plan.inputs["rows"][: len(rows)] = rows
        plan.set_extent(self._tokens, n)
        plan.set_extent(self._rows, len(rows))
        plan.set_extent(self.length, start + n)
        self._run(plan)
        return self._logits(len(rows))

    def share(self, n_tokens: int, n_texts: int) -> None:
        """Give texts 1 to n_texts - 1 the first tokens of text 0."""
        blocks = -(-n_tokens // 16)
        for layer in range(self.config.n_decoder_layers):
            for name in _LAYERS_OF_TEXTS:
                array = self._arrays[f"{name}.{layer}"]
                for text in range(1, n_texts):
                    first = text * self._texts.blocks
                    array[first : first + blocks] = array[:blocks]

    def step(self, ids: Mapping[int, int], position: int) -> Array:
        """Process the next token of each text by number, all at one position; returns the logits f32 [texts, vocab], a view."""
        name, n = ("single" if len(ids) == 1 else "several"), len(ids)
        plan = self._plan(name)
        plan.inputs["ids"][:n], plan.inputs["slots"][:n] = list(ids.values()), list(ids)
        plan.inputs["positions"][:n], plan.inputs["windows"][:n] = position, 0
        if name == "several":
            plan.set_extent(self._several, n)
        plan.set_extent(self.length, position + 1)
        self._run(plan)
        return self._logits(n)

    def _logits(self, n: int) -> Array:
        found = self._arrays["logits"][:n]
        if not np.isfinite(found).all():
            raise LogitsError(f"{self.file.path} computed logits that are not finite")
        return found

    def close(self) -> None:
        """Release the plans and their memory; measure the kernels of those that were compiled here, for the next ones."""
        if self._compiled and setting("measure"):
            from camshaft.tune import jobs

            if jobs.is_on():
                plans = {name: jobs.used_in(plan.graph, plan.choices, None) for name, plan in self._compiled.items()}
                jobs.measure_later(plans, self.threads, self._cache.saved())
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        self._compiled.clear()
        self._weights.clear()
        self.__dict__.pop("_arrays", None)
