"""TextToTextModel: a T5 opened to answer texts: the prompt goes through the encoder, the decoder writes the answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import ContextError, LogitsError, ModelError, SettingError, count
from camshaft.extent import Extent
from camshaft.formats.mapped import shown_value
from camshaft.generate import options as model_options
from camshaft.generate.generation import FinishReason, Generation
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.sampling.breakers import Breakers
from camshaft.generate.sampling.sampler import Sampler, SamplerPlans
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.files.pull import resolve_model
from camshaft.models.t5.config import ARCHITECTURE, read_t5_config
from camshaft.models.t5.t5 import state_specs
from camshaft.ops.spec import TensorSpec
from camshaft.plan.cached_plan import CachedPlan
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.weights import Weights
from camshaft.settings import thread_count
from camshaft.text.vocabulary import vocabulary_size

if TYPE_CHECKING:
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
# Options of GenerateOptions that this class has not: the value that leaves each off.
_WITHOUT = {"grammar": None, "logprobs": None, "speculate": None, "prompt_cache": None}


class TextToTextModel:
    """A model that answers a text with a text. Thread-safe: a token of one answer is computed at a time. A context manager.

    path_or_name: a .gguf file of the architecture t5, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    activations: 'auto' and 'q8' quantize the inputs of quantized matmuls to 8 bits; 'f32' does not, and keeps keys in f32.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    def __init__(self, path_or_name: str | Path, *, threads: int | None = None, activations: str = "auto") -> None:
        self.name, self.threads = str(path_or_name), thread_count(threads)
        kind = model_options.activations_of(activations)
        quantized = model_options.ACTIVATIONS[kind]
        form = model_options.KV_CACHES["f16" if quantized else "f32"]
        assert not isinstance(form, str)
        model_file = open_model_file(resolve_model(self.name))
        self._file, self._lock, self._closed = model_file.file, threading.RLock(), False
        try:
            architecture = self._file.metadata.get("general.architecture")
            if architecture != ARCHITECTURE:
                raise ModelError(f"{self.name}: the architecture is {shown_value(architecture)}; wanted {ARCHITECTURE}")
            self.config = read_t5_config(self._file.metadata, vocabulary_size(self._file.metadata))
            self.tokenizer = model_file.tokenizer()
            self._specs = state_specs(self.config, form)
            self._tokens, self._heard = (Extent(name, self.config.context) for name in ("tokens", "heard"))
            self._length = Extent("length", self.config.context)
            self._weights, self._activations = Weights(), "q8" if quantized else "f32"
            facts = f"t5|{self.config}|{form}|{quantized}|{self.threads}"
            self._cache = PlanCache(self._file, facts, self._weights, self._file.tensors, use=True)
            self._plans: dict[str, ExecutionPlan | CachedPlan] = {}
            self._answering: object | None = None  # the answer whose prompt was encoded last
            model_file.save(self.tokenizer)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        """The memory of all states, and of what plans give."""
        specs = self._specs | {
            "encoded": TensorSpec((self.config.context, self.config.dim), f32),
            "logits": TensorSpec((1, self.config.vocab_size), f32),
        }
        return {
            name: aligned_bytes(spec.nbytes, 64).view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
            for name, spec in specs.items()
        }

    @cached_property
    def _samplers(self) -> SamplerPlans:
        return SamplerPlans(self._arrays["logits"], None, self.threads, self._cache)

    def _memory(self, name: str) -> dict[str, Array]:
        """The arrays that a plan uses: both use the keys of the prompt."""
        if name == "encode":
            wanted = ["encoded", *(n for n in self._specs if n.startswith(("cross", "encoder")))]
        else:
            wanted = ["logits", *(n for n in self._specs if not n.startswith("encoder"))]
        return {n: self._arrays[n] for n in wanted}

    def _plan(self, name: str) -> ExecutionPlan | CachedPlan:
        if name not in self._plans:
            cached = self._cache.get(name, lambda: self._memory(name))
            self._plans[name] = self._compile(name) if cached is None else cached
        return self._plans[name]

    def _compile(self, name: str) -> ExecutionPlan:
        from camshaft.models.t5.t5 import decoder_graph, encoder_graph
        from camshaft.plan.compile import compile

        if name == "encode":
            graph = encoder_graph(self.config, self._file.tensors, self._specs, self._tokens)
        else:
            graph = decoder_graph(self.config, self._file.tensors, self._specs, self._length, self._heard)
        memory = self._memory(name)
        plan = compile(graph, threads=self.threads, activations=self._activations, weights=self._weights, memory=memory)
        self._cache.add(name, plan, memory)
        self._cache.flush()
        return plan

    def encode(self, ids: Sequence[int]) -> Array:
        """Give a prompt to the decoder. Returns the encoder's result f32 [len(ids), dim], a view until the next one.

        Raises ContextError for more tokens than the context, or none."""
        n = len(ids)
        if not 1 <= n <= self.config.context:
            raise ContextError(f"a prompt of {count(n, 'token')}; wanted 1 to {self.config.context}, the context")
        with self._lock:
            plan = self._open_plan("encode")
            plan.inputs["ids"][:n], plan.inputs["positions"][:n] = ids, np.arange(n)
            plan.inputs["slots"][:n], plan.inputs["lengths"][:] = 0, n
            plan.set_extent(self._tokens, n)
            self._run(plan)
            self._n_prompt = n
            return self._arrays["encoded"][:n]

    def step(self, token: int, position: int) -> Array:
        """Process a token of the answer, from `config.start` at position 0 on; returns logits f32 [vocab], a view."""
        with self._lock:
            plan = self._open_plan("decode")
            plan.inputs["ids"][:], plan.inputs["positions"][:], plan.inputs["slots"][:] = token, position, 0
            plan.inputs["lengths"][:] = self._n_prompt
            plan.set_extent(self._length, position + 1)
            plan.set_extent(self._heard, self._n_prompt)
            self._run(plan)
            logits: Array = self._arrays["logits"][0]
            return logits

    def _open_plan(self, name: str) -> ExecutionPlan | CachedPlan:
        if self._closed:
            raise ModelError(f"the model {self.name} is closed")
        return self._plan(name)

    def _run(self, plan: ExecutionPlan | CachedPlan) -> None:
        self._weights.finish()
        plan.bound.run()

    def generate(
        self, prompt: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Generation:
        """Answer a text; the Generation yields pieces. A later call ends an answer that is in progress.

        Raises ContextError for a prompt of more tokens than the context, SettingError for an option that this class has not."""
        given = generate_options(options, keywords)
        for name, off in _WITHOUT.items():
            if getattr(given, name) != off:
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
            draw = self._samplers.alone(Sampler(given.sampling, self.config.context, Breakers()))
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

    def close(self) -> None:
        """Release the plans and the file; may be called twice."""
        with self._lock:
            if not self._closed:
                if "_samplers" in vars(self):
                    self._samplers.close()
                for plan in self._plans.values():
                    plan.close()
                self._cache.flush()
                self._weights.clear()
                self.__dict__.pop("_arrays", None)
            self._closed = True
            self._file.close()
