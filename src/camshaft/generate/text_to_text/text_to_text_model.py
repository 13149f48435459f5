"""TextToTextModel: a T5 opened to answer texts: the prompt goes through the encoder, the decoder writes the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from camshaft.dtypes import DType, f32
from camshaft.errors import ContextError, LogitsError, ModelError, PromptError, SettingError, count
from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.generation import FinishReason, Generation
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.sampling.breakers import Breakers
from camshaft.generate.sampling.sampler import Sampler, SamplerPlans
from camshaft.generate.speculation.speculator import AUTO
from camshaft.generate.stored.file_plans import FileModel, FilePlans
from camshaft.models.t5.config import ARCHITECTURE, T5Config, read_t5_config
from camshaft.models.t5.t5 import state_specs
from camshaft.ops.spec import TensorSpec
from camshaft.text.vocabulary import vocabulary_size

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

Array = np.ndarray[Any, Any]
# Options of GenerateOptions that this class has not: the values that leave each off.
_WITHOUT = {"grammar": (None,), "logprobs": (None,), "speculate": (None, AUTO), "prompt_cache": (None,)}


class _Plans(FilePlans):
    """encode: the prompt; decode: a token of the answer. Both use the keys of the prompt."""

    def __init__(self, file: GGUFFile, config: T5Config, *, activations: str, form: DType, threads: int) -> None:
        self.config = config
        self.tokens, self.heard, self.length = (Extent(name, config.context) for name in ("tokens", "heard", "length"))
        specs = state_specs(config, form) | {
            "encoded": TensorSpec((config.context, config.dim), f32),
            "logits": TensorSpec((1, config.vocab_size), f32),
        }
        super().__init__(file, f"t5|{config}|{form}", specs, activations=activations, threads=threads)

    def graph(self, name: str) -> Graph:
        """The graph of a plan."""
        from camshaft.models.t5.t5 import decoder_graph, encoder_graph

        if name == "encode":
            return encoder_graph(self.config, self.file.tensors, self.specs, self.tokens)
        return decoder_graph(self.config, self.file.tensors, self.specs, self.length, self.heard)

    def uses(self, name: str) -> Sequence[str]:
        """The names of the arrays that a plan uses."""
        if name == "encode":
            return [n for n in self.specs if n.startswith(("encode", "cross_"))]
        return [n for n in self.specs if not n.startswith("encode")]

    @cached_property
    def samplers(self) -> SamplerPlans:
        """The plans that draw tokens from the logits."""
        return SamplerPlans(self.arrays["logits"], None, self.threads, self.cache)

    def close(self) -> None:
        """Release the plans, those that draw tokens too, and their memory."""
        if "samplers" in vars(self):
            self.samplers.close()
        super().close()


class TextToTextModel(FileModel):
    """A model that answers a text with a text. Thread-safe: a token of one answer is computed at a time. A context manager.

    path_or_name: a .gguf file of the architecture t5, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    activations: 'auto' and 'q8' quantize the inputs of quantized matmuls to 8 bits; 'f32' does not, and keeps keys in f32.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    architecture, kind = ARCHITECTURE, "a model with an encoder and a decoder"
    _plans: _Plans

    def _planned(self, activations: str, form: DType) -> _Plans:
        self.config = read_t5_config(self._file.metadata, vocabulary_size(self._file.metadata))
        self._n_prompt = 0
        self._answering: object | None = None  # the answer whose prompt was encoded last
        return _Plans(self._file, self.config, activations=activations, form=form, threads=self.threads)

    def encode(self, ids: Sequence[int]) -> Array:
        """Give a prompt to the decoder. Returns the encoder's result f32 [len(ids), dim], a view until the next one.

        Raises ContextError for more tokens than the context or none, and for an id that no token has."""
        n = len(ids)
        if not 1 <= n <= self.config.context:
            raise ContextError(f"a prompt of {count(n, 'token')}; wanted 1 to {self.config.context}, the context")
        self._check_ids(ids)
        with self._lock:
            self._check_open()
            plans = self._plans
            plan = plans.plan("encode")
            plan.inputs["ids"][:n], plan.inputs["positions"][:n] = ids, np.arange(n)
            plan.inputs["slots"][:n], plan.inputs["lengths"][:] = 0, n
            plan.set_extent(plans.tokens, n)
            plans.run(plan)
            self._n_prompt = n
            return plans.arrays["encoded"][:n]

    def step(self, token: int, position: int) -> Array:
        """Process a token of the answer, from `config.start` at position 0 on; returns logits f32 [vocab], a view.

        Raises ContextError for an id or a position that there is not, or before a prompt."""
        self._check_ids((token,))
        if not 0 <= position < self.config.context:
            raise ContextError(f"a token at position {position}; wanted 0 to {self.config.context - 1}")
        with self._lock:
            self._check_open()
            if not self._n_prompt:
                raise ContextError("there is no prompt; wanted one, by `encode`")
            plans = self._plans
            plan = plans.plan("decode")
            plan.inputs["ids"][:], plan.inputs["positions"][:], plan.inputs["slots"][:] = token, position, 0
            plan.inputs["lengths"][:] = self._n_prompt
            plan.set_extent(plans.length, position + 1)
            plan.set_extent(plans.heard, self._n_prompt)
            plans.run(plan)
            logits: Array = plans.arrays["logits"][0]
            return logits

    def _check_ids(self, ids: Sequence[int]) -> None:
        wrong = next((i for i in ids if not 0 <= i < self.config.vocab_size), None)
        if wrong is not None:
            raise PromptError(f"token id {wrong!r}; wanted a whole number from 0 to {self.config.vocab_size - 1}")

    def generate(
        self, prompt: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Generation:
        """Answer a text; the Generation yields pieces. A later call ends an answer that is in progress.

        Raises ContextError for a prompt of more tokens than the context, SettingError for an option that this class has not."""
        given = generate_options(options, keywords)
        for name, off in _WITHOUT.items():
            if getattr(given, name) not in off:
                raise SettingError(
                    f"{name}={getattr(given, name)!r:.60}; a model with an encoder and a decoder has no {name}"
                )
        if given.sampling.has_dry:
            raise SettingError("dry_multiplier other than 0; a model with an encoder and a decoder has no DRY")
        if not isinstance(prompt, str):
            raise SettingError(f"the prompt came as {type(prompt).__name__}; wanted a text")
        ids = self.tokenizer.encode(prompt, parse_special=False)
        with self._lock:
            self._answering = mine = object()
            self.encode(ids)
            draw = self._plans.samplers.alone(Sampler(given.sampling, self.config.context, Breakers()))
        steps = self._steps(mine, given, draw)
        return Generation(len(ids), partial(next, steps), self.tokenizer.stream(at_start=True), given)

    def _steps(self, mine: object, options: GenerateOptions, draw: Any) -> Iterator[int | FinishReason]:
        """The tokens of an answer, then the reason of its end."""
        history = [self.config.start]
        most = self.config.context if options.max_tokens < 0 else min(options.max_tokens, self.config.context)
        while len(history) <= most:
            with self._lock:
                if self._answering is not mine:
                    raise ModelError(f"{self.name} began another answer; this one is over")
                self.step(history[-1], len(history) - 1)
                token = draw(history)
            if token < 0:
                raise LogitsError(f"{self.name} computed logits that are not finite")
            if token in self.tokenizer.eos_ids and not options.ignore_eos:
                yield "stop"
                return
            history.append(token)
            yield token
        yield "length"
