"""LanguageModel: load a GGUF model, generate text with it, and compute logits."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from camshaft.errors import ContextError, ModelError, SettingError, count, shortened
from camshaft.garbage import no_collection
from camshaft.generate import options as model_options
from camshaft.generate.batch import Batch
from camshaft.generate.conversation import Conversation, Messages, checked_messages
from camshaft.generate.generation import Closing, Generation, GenerationTimings, TokenLogprob
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.grammar.matcher import GrammarCompiler
from camshaft.generate.model_plans import ModelPlans
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.sampling.breakers import BreakerFinder, Breakers
from camshaft.generate.sampling.parameters import Sampling
from camshaft.generate.sampling.sampler import Sampler, SamplerPlans, log_probabilities
from camshaft.generate.session import Session
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.models.adapters.adapter import Adapters, Given, open_adapters
from camshaft.models.config import read_config
from camshaft.models.families import FAMILIES, family_name
from camshaft.models.files.pull import resolve_model
from camshaft.settings import thread_count
from camshaft.text.chat import ChatTemplate, encode_chat
from camshaft.text.vocabulary import fill_tokens, vocabulary_size

if TYPE_CHECKING:
    from camshaft.plan.schedule import Thunk

Array = np.ndarray[Any, Any]

__all__ = ["Batch", "Conversation", "Generation", "GenerationTimings", "LanguageModel", "PlanDescription", "Timings"]

DEFAULT_SESSIONS = 8
CONVERSATION_OPTIONS = GenerateOptions(max_tokens=512)


@dataclass(frozen=True)
class Timings:
    """Seconds: `load_s` to open the file and tokenizer, `compile_s` to compile the prompt plan and pack weights."""

    load_s: float
    compile_s: float


@dataclass(frozen=True)
class PlanDescription:
    """The compiled plan for single tokens: thunks, whether each waits for earlier ones, and memory use: of the KV cache and the
    recurrent layers' states, that of one session."""

    thunks: tuple[Thunk, ...]
    waits: tuple[bool, ...]
    arena_nbytes: int
    temp_nbytes_sum: int
    weights_nbytes: int
    kv_cache_nbytes: int
    state_nbytes: int = 0


class LanguageModel(Closing):
    """A language model ready for inference. Thread-safe: concurrent sessions run one at a time. A context manager.

    path_or_name: a .gguf file, or a model name that `camshaft pull` accepts.
    backend: name of a backend or device; None uses the override, else the CPU.
    threads: worker threads; None uses all available cores.
    context: maximum tokens per session; a model with learned positions has no more of them.
    activations: 'auto' and 'q8' quantize the inputs of quantized matmuls to 8 bits, with an f16 KV cache; 'f32' keeps both f32.
    kv_cache: 'auto', 'f16', 'bf16', 'f32', 'q8_0' (8.5 bits per number) or 'q4_0' (4.5 bits).
    sessions: maximum number of open sessions.
    adapters: LoRA adapters (GGUF files and PEFT folders) that are added to the model, each alone or in a pair with a strength.

    Raises ModelError, FormatError or BackendError for an unusable file or backend.
    """

    def __init__(
        self,
        path_or_name: str | Path,
        *,
        backend: str | None = None,
        threads: int | None = None,
        context: int = 2048,
        activations: str = "auto",
        kv_cache: str = "auto",
        sessions: int = DEFAULT_SESSIONS,
        adapters: Given = (),
    ) -> None:
        started = time.perf_counter()
        model_options.check_sizes(context, sessions)
        if not isinstance(path_or_name, (str, os.PathLike)):
            raise ModelError(f"got the model {path_or_name!r:.80}; wanted a .gguf file or the name of a model")
        self.name, self.context = str(path_or_name), context
        self.activations = model_options.activations_of(activations)
        self.kv_cache = model_options.kv_cache_of(kv_cache, self.activations)
        backend = model_options.backend_of(backend)
        self._backend, self.backend, self.threads = backend, backend or "simd", thread_count(threads)
        self.lock = threading.RLock()
        self._grammars: GrammarCompiler | None = None
        self._making_grammars = threading.Lock()
        _models.add(self)
        self._closed = False
        self._model_file = open_model_file(resolve_model(str(path_or_name)))
        self._file = self._model_file.file
        try:
            name = family_name(self._file.metadata)
            if FAMILIES[name].encoder:
                raise ModelError(f"{name} is an encoder, which writes no text; open it as camshaft.EmbeddingModel")
            self.config = read_config(self._file.metadata, name, vocabulary_size(self._file.metadata))
            if FAMILIES[self.config.architecture].learned_positions:
                self.context = context = min(context, self.config.context_length)
            with no_collection():
                self.plans = ModelPlans(
                    self._file,
                    self.config,
                    context=context,
                    n_slots=sessions,
                    quantized=model_options.ACTIVATIONS[self.activations],
                    form=model_options.KV_CACHES[self.kv_cache],
                    backend=backend,
                    threads=self.threads,
                    adapters=self._opened(adapters),
                )
                self.tokenizer = self._model_file.tokenizer()  # while a cached plan's weights load in the background
                loaded = time.perf_counter()
                self.plans.prepare()
        except MemoryError as error:
            self._file.close()
            raise ContextError(
                f"no memory for {count(sessions, 'session')} of {count(context, 'token')}: lower context= or sessions="
            ) from error
        except BaseException:
            self._file.close()
            raise
        self.samplers = SamplerPlans(self.plans.logits, backend, self.threads, self.plans.plan_cache)
        self.timings = Timings(loaded - started, time.perf_counter() - loaded)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template. Raises ModelError if it has none, or if the model is closed."""
        self.check_open()
        return ChatTemplate.from_gguf(self._file.metadata, self.tokenizer.vocabulary.tokens)

    @cached_property
    def fill_tokens(self) -> dict[str, int]:
        """The ids of the tokens by which the model fills in the middle of a text: 'fim_pre', 'fim_suf', 'fim_mid', 'fim_pad',
        'fim_rep' (before a project's name) and 'fim_sep' (before a file's), as far as it has them."""
        self.check_open()
        return fill_tokens(self._file.metadata, self.tokenizer.vocabulary.ids)

    def __repr__(self) -> str:
        sizes = f"backend {self.backend}, {count(self.threads, 'thread')}, context {self.context}"
        return f"LanguageModel({shortened(self.name)!r}: {sizes}{', closed' if self._closed else ''})"

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text. Each byte that is not valid UTF-8 counts as U+FFFD."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(ids)

    def prompt_ids(self, prompt: str | Sequence[int], *, raw: bool, first: bool = True) -> list[int]:
        """Token ids of a prompt: ids are checked; text is tokenized as is if `raw`, else as a user message of the template."""
        if not isinstance(prompt, str):
            if isinstance(prompt, bytes) or not hasattr(prompt, "__iter__"):
                raise SettingError(f"the prompt came as {type(prompt).__name__}; wanted a text or a list of token ids")
            return self._checked(prompt)
        if raw:
            return self.tokenize(prompt, add_special=first)
        return encode_chat(self.tokenizer, self.chat_template.render([{"role": "user", "content": prompt}]))

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
            raise SettingError(f"token ids came as {type(ids).__name__}; wanted a list of whole numbers")
        for i in ids:
            whole = isinstance(i, (int, np.integer)) and not isinstance(i, bool)
            if not whole or not 0 <= i < self.config.vocab_size:
                raise ContextError(f"token id {i!r}; wanted a whole number from 0 to {self.config.vocab_size - 1}")
        return [int(i) for i in ids]

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        options: GenerateOptions | None = None,
        *,
        messages: Messages | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> Generation:
        """Generate text after `prompt` or `messages`, in a new session that begins and ends with the iteration.

        `prompt` is a message (the chat template is applied unless `raw`) or token ids; `messages` are a whole chat, a list of
        {'role': ..., 'content': ...}. `options` or keywords say how: see GenerateOptions; keywords take precedence. If all
        sessions are in use, the iteration waits until another thread's generation ends.

        Raises SettingError for an invalid option, ContextError if the prompt does not fit the context. The iteration raises
        ContextError if no session becomes free, and LogitsError if the model computes NaN.
        """
        options = generate_options(options, keywords)
        if (prompt is None) == (messages is None):
            came = "neither a prompt nor messages" if prompt is None else "a prompt and messages"
            raise SettingError(f"generate got {came}; wanted one of them")
        ids = self._chat_ids(messages, options) if prompt is None else self.prompt_ids(prompt, raw=options.raw)
        self.check_open()
        session = Session(self, waits=True, goes_back=False)
        return session.start(ids, options, lambda generation: session.close())

    def _chat_ids(self, messages: Messages | None, options: GenerateOptions) -> list[int]:
        if options.raw:
            raise SettingError("generate got messages and raw=True; messages need the chat template")
        chat = checked_messages(() if messages is None else messages)
        if not chat:
            raise SettingError("generate got no messages; wanted at least one")
        return encode_chat(self.tokenizer, self.chat_template.render(chat))

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
        if isinstance(prompts, str):
            raise SettingError(f"prompts came as one text, {prompts!r:.40}; wanted a list of prompts")
        if isinstance(prompts, (bytes, Mapping)) or not isinstance(prompts, Iterable):
            raise SettingError(f"prompts came as {type(prompts).__name__}; wanted a list of prompts")
        prompts = list(prompts)
        several = list(options) if isinstance(options, Sequence) else [options] * len(prompts)
        if len(several) != len(prompts):
            raise SettingError(f"{len(several)} options for {len(prompts)} prompts; wanted one, or one per prompt")
        each = [generate_options(one, keywords) for one in several]
        ids = [self.prompt_ids(prompt, raw=one.raw) for prompt, one in zip(prompts, each, strict=True)]
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

    def end_tokens(self, options: GenerateOptions) -> frozenset[int]:
        """The ids of the tokens that end the text."""
        return frozenset() if options.ignore_eos else self.tokenizer.eos_ids

    def sampler(self, sampling: Sampling, grammar: Grammar | None = None) -> Sampler:
        """A sampler over this model's logits. Raises SettingError if a biased token is not in the vocabulary, and GrammarError or
        MissingExtraError for a grammar that cannot be used."""
        foreign = next((i for i in sampling.logit_bias if i >= self.config.vocab_size), None)
        if foreign is not None:
            last = self.config.vocab_size - 1
            raise SettingError(f"Sampling logit_bias={{{foreign}: ...}}: wanted ids of tokens from 0 to {last}")
        matcher = None if grammar is None else self.grammars.compile(grammar)  # up to seconds, in which others generate
        with self.lock:
            breakers = self._breakers.find(tuple(sampling.dry_sequence_breakers)) if sampling.has_dry else Breakers()
        return Sampler(sampling, self.context, breakers, matcher)

    @property
    def grammars(self) -> GrammarCompiler:
        """What makes matchers of grammars over this model's vocabulary."""
        with self._making_grammars:
            self._grammars = self._grammars or GrammarCompiler(self.tokenizer, self.config.vocab_size)
            return self._grammars

    @cached_property
    def _breakers(self) -> BreakerFinder:
        return BreakerFinder(self.tokenizer)

    def token_logprob(self, row: int, token: int, n_top: int) -> TokenLogprob:
        """The log probability of a token drawn from a row of the last run's logits, and those of the `n_top` most probable."""
        drawn, *top = [
            TokenLogprob(i, self.tokenizer.spelling(i), logprob)
            for i, logprob in log_probabilities(self.samplers.logits_of(row), token, n_top)
        ]
        return replace(drawn, top=tuple(top))

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> Array:
        """Return the logits after each of n tokens, f32 [n, vocab], in runs of `chunk` tokens.

        Raises ContextError for an empty list, more tokens than the context, or an id outside the vocabulary.
        """
        ids = self._checked(token_ids)
        self.check_open()
        with Session(self, waits=True, goes_back=False) as session:
            return session.process(ids, every_row=True, chunk=chunk)

    def _opened(self, adapters: Given) -> Adapters:
        return open_adapters(self._file, adapters, lambda: self._model_file.base_digest)

    def use_adapters(self, adapters: Given) -> None:
        """Adds other adapters to the model in place of those before; none for an empty list. The model's own weights stay
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
            except BaseException:
                self.plans.switch(Adapters(self._file))
                raise
            finally:
                self.samplers = SamplerPlans(self.plans.logits, self._backend, self.threads, self.plans.plan_cache)

    def describe_plan(self) -> PlanDescription:
        """Describe the plan for single tokens, and the memory use of all plans."""
        self.check_open()
        bound = self.plans.single.bound
        return PlanDescription(
            bound.schedule.thunks,
            bound.schedule.waits,
            bound.memory_plan.arena_nbytes + sum(bound.memory_plan.device_nbytes.values()),
            bound.memory_plan.temp_nbytes_sum,
            self.plans.weights.nbytes,
            self.plans.cache.session_nbytes,
            self.plans.cache.state_nbytes,
        )

    def close(self) -> None:
        """Release plans, weights and file; may be called twice."""
        with self.lock:
            self._closed = True
            try:
                self.samplers.close()
                self.plans.close()
                self._model_file.save(self.tokenizer)
            finally:
                self._file.close()


# In a forked child another thread of the parent may have locked it, so each model gets a new one.
_models: weakref.WeakSet[LanguageModel] = weakref.WeakSet()


def _renew_locks() -> None:
    for model in list(_models):
        model.lock, model._making_grammars = threading.RLock(), threading.Lock()
        model._grammars = None  # its thread is the parent's
        if "plans" in vars(model):
            model.plans.cache.slots.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
