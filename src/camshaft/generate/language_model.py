"""LanguageModel: load a GGUF model, generate text with it, and compute logits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from camshaft.errors import ContextError, ModelError, count, shortened
from camshaft.generate import options as model_options
from camshaft.generate.batch import Batch, prompts_with_options
from camshaft.generate.conversation import CONVERSATION_OPTIONS, Conversation, Messages
from camshaft.generate.generation import Generation, GenerationTimings
from camshaft.generate.grammar.matcher import GrammarCompiler
from camshaft.generate.measures.description import PlanDescription, Timings, describe
from camshaft.generate.model_plans import ModelPlans
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.prompts import Prompts
from camshaft.generate.sampling.drawing import Drawing
from camshaft.generate.sampling.sampler import SamplerPlans
from camshaft.generate.session import Session
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.generate.vision.tokens import BLIND
from camshaft.models.adapters.adapter import Adapters, Given, open_adapters
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.families import FAMILIES
from camshaft.models.files.pull import resolve_model
from camshaft.models.vision.images import ImageSource
from camshaft.process import ForkLock, no_collection, renewed, thread_count

Array = np.ndarray[Any, Any]

__all__ = ["Batch", "Conversation", "Generation", "GenerationTimings", "LanguageModel", "PlanDescription", "Timings"]


class LanguageModel(Prompts, Drawing):
    """A language model ready for inference. Thread-safe: concurrent sessions run one at a time. A context manager.

    path_or_name: a .gguf file, a folder in Hugging Face's layout (converted once), or a name that `camshaft pull` accepts.
    backend: name of a backend or device; None uses the override, else the CPU.
    threads: worker threads; None uses all available cores.
    context: maximum tokens per session; a model with learned positions has no more of them.
    activations: 'q8' quantizes the inputs of quantized matmuls to 8 bits, with an f16 KV cache; 'auto' too, but for prompts on a
        CPU with AMX, whose inputs it rounds to bf16; 'f32' keeps both f32.
    kv_cache: 'auto', 'f16', 'bf16', 'f32', 'q8_0' (8.5 bits per number) or 'q4_0' (4.5 bits).
    sessions: maximum number of open sessions.
    cache_tokens: memory for keys and values, in tokens of all sessions together; None: of each one's whole context.
    adapters: LoRA adapters (GGUF files and PEFT folders) that are added to the model, each alone or in a pair with a strength.
    mmproj: the file of the model's vision encoder, with which it sees images (extra `images`).
    experts_resident: gigabytes of memory for experts: the most used stay, others are read from files; None: all if they fit.
    mlock: keep all weights in memory: the system swaps none of them, and refuses where it has too little (`ulimit -l`).
    Raises ModelError, FormatError or BackendError for an unusable file or backend, PlanError if weights cannot be locked.
    """

    def __init__(
        self,
        path_or_name: str | Path,
        *,
        backend: str | None = None,
        threads: int | None = None,
        context: int = model_options.DEFAULT_CONTEXT,
        activations: str = "auto",
        kv_cache: str = "auto",
        sessions: int = model_options.DEFAULT_SESSIONS,
        adapters: Given = (),
        mmproj: str | Path | None = None,
        experts_resident: float | None = None,
        cache_tokens: int | None = None,
        mlock: bool = False,
    ) -> None:
        started = time.perf_counter()
        model_options.check_sizes(context, sessions, cache_tokens)
        self.name, self.context = model_options.name_of(path_or_name), context
        self.activations = model_options.activations_of(activations)
        self.kv_cache = model_options.kv_cache_of(kv_cache, self.activations)
        backend = model_options.backend_of(backend)
        self._backend, self.backend, self.threads = backend, backend or "simd", thread_count(threads)
        self.lock, self._making_grammars = ForkLock(), ForkLock()
        self._grammars: GrammarCompiler | None = None
        renewed(self)
        self._closed = False
        self._model_file = open_model_file(resolve_model(self.name))
        self._file, self.vision = self._model_file.file, None
        try:
            self.config = self._read_config()
            if self.config.is_bounded:
                self.context = context = min(context, self.config.context_length)
            if mmproj is not None:
                self._open_vision(mmproj)
            with no_collection():
                self.plans = self._planned(sessions, adapters, experts_resident, cache_tokens, mlock=mlock)
                self.tokenizer = self._model_file.tokenizer()  # while a cached plan's weights load in the background
                loaded = time.perf_counter()
                self.plans.prepare()
                if mlock:
                    self.plans.weights.finish()
        except MemoryError as error:
            self._close_files()
            raise ContextError(
                f"no memory for {count(sessions, 'session')} of {count(context, 'token')}: lower context= or sessions="
            ) from error
        except BaseException:
            self._close_files()
            raise
        self.samplers = SamplerPlans(self.plans.logits, backend, self.threads, self.plans.plan_cache)
        self.timings = Timings(loaded - started, time.perf_counter() - loaded)

    def _planned(
        self, sessions: int, adapters: Given, experts_resident: float | None, cache_tokens: int | None, *, mlock: bool
    ) -> ModelPlans:
        return ModelPlans(
            self._file,
            self.config,
            context=self.context,
            n_slots=sessions,
            activations=model_options.compiled_activations(
                self.activations, self._file.tensors.values(), self._backend
            ),
            form=model_options.KV_CACHES[self.kv_cache],
            backend=self._backend,
            threads=self.threads,
            adapters=self._opened(adapters),
            seeing=BLIND if self.vision is None else self.vision.seeing,
            experts_resident=experts_resident,
            cache_tokens=cache_tokens,
            mlock=mlock,
        )

    def __repr__(self) -> str:
        sizes = f"backend {self.backend}, {count(self.threads, 'thread')}, context {self.context}"
        return f"LanguageModel({shortened(self.name)!r}: {sizes}{', closed' if self._closed else ''})"

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        options: GenerateOptions | None = None,
        *,
        messages: Messages | None = None,
        images: Sequence[ImageSource] = (),
        **keywords: Unpack[GenerateKeywords],
    ) -> Generation:
        """Generate text after `prompt` or `messages`, in a new session that begins and ends with the iteration.

        `prompt` is a message (the chat template is applied unless `raw`) or token ids; `messages` are a whole chat, a list of
        {'role': ..., 'content': ...}. `images` (files, bytes, arrays, Pillow images) come before the prompt, or where its text
        has the model's markers; a message's content may be a list of {'type': 'text', 'text': ...} and {'type': 'image',
        'image': ...}. `options` or keywords say how: see GenerateOptions; keywords take precedence. If all
        sessions are in use, the iteration waits until another thread's generation ends.

        Raises SettingError for an invalid option, ContextError if the prompt does not fit the context. The iteration raises
        ContextError if no session becomes free, and LogitsError if the model computes NaN.
        """
        options = generate_options(options, keywords)
        ids = self.ids_of(prompt, messages, images, raw=options.raw)
        self.check_open()
        session = Session(self, waits=True, goes_back=False)
        return session.start(ids, options, lambda generation: session.close())

    def generate_batch(
        self,
        prompts: Iterable[str | Sequence[int]],
        options: GenerateOptions | Sequence[GenerateOptions] | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> Batch:
        """Generate text after every prompt in one batch: an iterator of (prompt index, text piece), or `.texts()` for all.

        Each sequence gets the same text as from `generate`, but a step reads the weights once for all. At most `sessions`
        sequences run at once; the others wait. `options` are for all prompts, or one per prompt. Raises as `generate`.
        """
        several, each = prompts_with_options(prompts, options, keywords)
        ids = [self.prompt_ids(prompt, raw=one.raw) for prompt, one in zip(several, each, strict=True)]
        self.check_open()
        return Batch(self, ids, each)

    def session(self) -> Session:
        """Open a session. Raises ContextError if `sessions` are open already."""
        self.check_open()
        return Session(self)

    def check_open(self) -> None:
        """Raise ModelError if the model is closed."""
        if self._closed:
            raise ModelError(f"the model {self.name} is closed")

    def conversation(
        self,
        options: GenerateOptions | None = None,
        *,
        system: str | None = None,
        messages: Messages = (),
        context_shift: bool = True,
        **keywords: Unpack[GenerateKeywords],
    ) -> Conversation:
        """Start a conversation: `say(text)` applies the chat template and processes only the new tokens.

        It begins with the message `system`, if given, and `messages`. When the context is full, the oldest turns after the
        system message are dropped, unless `context_shift` is False. An answer has at most 512 tokens by default."""
        self.check_open()
        given = generate_options(options, keywords, CONVERSATION_OPTIONS)
        return Conversation(self, given, system=system, messages=messages, context_shift=context_shift)

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> Array:
        """Return the logits after each of n tokens, f32 [n, vocab], in runs of `chunk` tokens.

        Raises ContextError for an empty list, more tokens than the context, or an id outside the vocabulary.
        """
        self.check_open()
        with Session(self, waits=True, goes_back=False) as session:
            return session.process(token_ids, every_row=True, chunk=chunk)

    def _read_config(self) -> ModelConfig:
        config = read_config(self._file.metadata)
        if FAMILIES[name := config.architecture].encoder:
            raise ModelError(f"{name} is an encoder, which writes no text; open it as camshaft.EmbeddingModel")
        return config

    def _open_vision(self, path: str | Path) -> None:
        from camshaft.generate.vision.vision_model import VisionModel  # not needed without images

        given = path, self.config, self._file.metadata, self.name
        self.vision = VisionModel(*given, threads=self.threads, activations=self.activations)

    def _opened(self, adapters: Given) -> Adapters:
        return open_adapters(self._file, adapters, lambda: self._model_file.base_digest)

    def use_adapters(self, adapters: Given) -> None:
        """Replaces the model's adapters; an empty list removes them. The model's own weights stay
        packed. Raises ContextError while sessions are open; else as the constructor, and then none are left."""
        with self.lock:
            self.check_open()
            if not self.plans.cache.slots.end_idle():
                raise ContextError(
                    "adapters cannot change while sessions are open or text is generated; end them first"
                )
            opened = self._opened(adapters)
            self.samplers.close()
            try:
                self.plans.switch(opened)
            finally:
                self.samplers = SamplerPlans(self.plans.logits, self._backend, self.threads, self.plans.plan_cache)

    def describe_plan(self) -> PlanDescription:
        """Describe the plan for single tokens, and the memory use of all plans."""
        self.check_open()
        return describe(self.plans)

    def close(self) -> None:
        """Release plans, weights and file; may be called twice."""
        with self.lock:
            self._closed = True
            try:
                self.samplers.close()
                self.plans.close()
                self._model_file.save(self.tokenizer)
            finally:
                self._close_files()

    def _close_files(self) -> None:
        self._file.close()
        if self.vision is not None:
            self.vision.close()
