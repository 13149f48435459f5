"""The options of a language model and of generating text, checked when they are made."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.emit.target import BF16_TILES
from camshaft.errors import ContextError, ModelError, SettingError, count
from camshaft.formats.tensor import FileTensor
from camshaft.generate.checks import Rules, are_texts, check_fields, integer, is_bool
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.sampling.parameters import SAMPLING_RULES, Sampling, SamplingKeywords
from camshaft.generate.speculation.speculator import AUTO, NGRAM, Speculate
from camshaft.settings import setting, settings


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """How to generate text, and when to end it. Raises SettingError for an invalid value.

    max_tokens: the most tokens to generate; -1: until the model ends the text or the context is full.
    sampling: how to pick a token from the logits.
    stop: a string, or several; the text ends before the first that appears.
    ignore_eos: continue past the model's end token.
    raw: take a text prompt as it is, without the chat template.
    grammar: the form that the text must have; None is any. It ends with the text that it describes.
    speculate: draft tokens and check several in one run, with the same text as a result: 'ngram' drafts what followed the same
        tokens earlier in the text, an open LanguageModel with the same vocabulary drafts itself; None drafts nothing. 'auto'
        drafts as 'ngram' once a text repeats, where the text is the same token by token: for quantized weights on a CPU.
    prompt_cache: keep the keys and values of the prompt for later runs and take what it begins with from earlier ones: 'auto' in
        camshaft's cache, where the least recently used prompts go, or the path of a file with one prompt; None keeps nothing.
    logprobs: record the log probability of each token and those of this many most probable tokens; None records none.
    shown_tokens: control tokens whose spelling is part of the text; others are left out of it.
    """

    max_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    raw: bool = False
    grammar: Grammar | None = None
    logprobs: int | None = None
    shown_tokens: Sequence[str] = ()
    speculate: Speculate | None = AUTO
    prompt_cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_fields(self, GENERATE_RULES)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def merge(self, keywords: GenerateKeywords) -> GenerateOptions:
        """These options with those of `keywords` replaced, in `sampling` too. Raises TypeError for an unknown name."""
        given: dict[str, Any] = {**keywords}
        of_sampling = {name: given.pop(name) for name in SAMPLING_RULES if name in given}
        options = replace(self, **given) if given else self
        return replace(options, sampling=replace(options.sampling, **of_sampling)) if of_sampling else options


class GenerateKeywords(SamplingKeywords, total=False):
    """The fields of GenerateOptions, and of its Sampling, as keywords of a call: `lm.generate("Hi", max_tokens=5, top_k=1)`."""

    max_tokens: int
    sampling: Sampling
    stop: str | Sequence[str]
    ignore_eos: bool
    raw: bool
    grammar: Grammar | None
    logprobs: int | None
    shown_tokens: Sequence[str]
    speculate: Speculate | None
    prompt_cache: str | os.PathLike[str] | None


GENERATE_RULES: Rules = {
    "max_tokens": (integer(-1, math.inf), "a whole number, 0 or more, or -1 for no limit"),
    "sampling": (lambda v: isinstance(v, Sampling), "a camshaft.Sampling"),
    "stop": (
        lambda v: are_texts(v) and "" not in ([v] if isinstance(v, str) else v),
        "a text or a list of texts, none of them empty",
    ),
    "ignore_eos": (is_bool, "True or False"),
    "raw": (is_bool, "True or False"),
    "grammar": (lambda v: v is None or isinstance(v, Grammar), "a camshaft.Grammar or None"),
    "shown_tokens": (lambda v: not isinstance(v, str) and are_texts(v), "a list of texts"),
    "logprobs": (lambda v: v is None or integer(0, math.inf)(v), "a whole number, 0 or more, or None"),
    "prompt_cache": (lambda v: v is None or _is_path(v), "'auto', the path of a file or None"),
    "speculate": (
        lambda v: v is None or (isinstance(v, str) and v in (AUTO, NGRAM)) or _is_model(v),
        "'auto', 'ngram', an open camshaft.LanguageModel or None",
    ),
}


def _is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike)) and bool(str(value)) and "\0" not in str(value)


def _is_model(value: object) -> bool:
    from camshaft.generate.language_model import LanguageModel

    return isinstance(value, LanguageModel)


def generate_options(
    options: GenerateOptions | None, keywords: GenerateKeywords, defaults: GenerateOptions = GenerateOptions()
) -> GenerateOptions:
    """The options of a call: `options`, or `defaults` if None, with the keywords replaced."""
    options = defaults if options is None else options
    if not isinstance(options, GenerateOptions):
        raise SettingError(f"options came as {type(options).__name__}; wanted a camshaft.GenerateOptions")
    return options.merge(keywords)


def check_together(options: GenerateOptions, of: str) -> None:
    """Raise SettingError for options that are for one text at a time."""
    for name, others in {"speculate": (None, AUTO), "prompt_cache": (None,)}.items():
        value = getattr(options, name)
        if value not in others:
            raise SettingError(f"{of} got {name}={value!r:.60}; wanted None: it is for one text alone")


DEFAULT_CONTEXT, DEFAULT_SESSIONS = 2048, 8
# Option of a model -> whether the inputs of quantized matmuls may be rounded.
ACTIVATIONS = {"auto": True, "q8": True, "f32": False}
# Option of a model -> dtype or block format of the KV cache.
KV_CACHES: dict[str, DType | str] = {"f16": f16, "bf16": bf16, "f32": f32, "q8_0": "Q8_0", "q4_0": "Q4_0"}


def activations_of(name: str) -> str:
    """Resolve 'auto' by the setting; return a name of ACTIVATIONS. Raises SettingError for another name."""
    name = settings().activations if name == "auto" else name
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise SettingError(f"activations {name!r}; wanted one of {', '.join(ACTIVATIONS)}")
    return name


def compiled_activations(name: str, tensors: Iterable[FileTensor], backend: str | None = None) -> str:
    """Return the activations of `compile` for a name of ACTIVATIONS and a file's tensors: for 'auto' bf16 on a CPU with tiles of
    them and on NVIDIA GPUs, else q8. A file that has most of its numbers in F16 or F32 is more exact than bf16, so it takes q8,
    which leaves those as they are."""
    if not ACTIVATIONS[name]:
        return "f32"
    numbers = [(tensor.format.name in ("F16", "F32"), math.prod(tensor.shape)) for tensor in tensors]
    if sum(n for is_exact, n in numbers if is_exact) > sum(n for is_exact, n in numbers if not is_exact):
        return "q8"
    return "bf16" if name == "auto" and multiplies_bf16(backend) else "q8"


def multiplies_bf16(backend: str | None, *, gpus: bool = True) -> bool:
    """Return whether the backend or device, one of the `gpus` too, has matrix units for bf16 that kernels of quantized products
    use."""
    from camshaft.backends.cpu.compile import host_target  # not needed to read options
    from camshaft.backends.cpu.features import names

    if backend in (None, "simd"):
        return names(host_target().features) >= BF16_TILES
    return gpus and backend.partition(":")[0] == "cuda"


def kv_cache_of(name: str, activations: str) -> str:
    """Resolve 'auto' by the setting, else to f16, or f32 with f32 activations; return a name of KV_CACHES.

    Raises SettingError for another name.
    """
    name = settings().kv_cache if name == "auto" else name
    if name == "auto":
        return "f16" if ACTIVATIONS[activations] else "f32"
    if not isinstance(name, str) or name not in KV_CACHES:
        raise SettingError(f"kv_cache {name!r}; wanted one of auto, {', '.join(KV_CACHES)}")
    return name


def check_sizes(context: int, sessions: int, cache_tokens: int | None = None) -> None:
    """Raise SettingError unless all are positive integers, and the cache has a whole context; ContextError if positions would
    exceed 31 bits."""
    if any(type(n) is not int or n < 1 for n in (context, sessions)):
        raise SettingError(f"context {context!r}, sessions {sessions!r}; wanted whole numbers from 1 up")
    if cache_tokens is not None and (type(cache_tokens) is not int or cache_tokens < context):
        raise SettingError(f"cache_tokens {cache_tokens!r}; wanted a whole number from the context, {context}, up")
    if context * sessions >= 1 << 31:  # positions and rows of the cache are i32
        raise ContextError(
            f"{count(sessions, 'session')} with a context of {count(context, 'token')}; wanted fewer than 2^31 tokens in all"
        )


def name_of(path_or_name: object) -> str:
    """The path or name of a model as a text. Raises ModelError for what is neither."""
    if not isinstance(path_or_name, (str, os.PathLike)):
        raise ModelError(f"got the model {path_or_name!r:.80}; wanted a .gguf file or the name of a model")
    return str(path_or_name)


def backend_of(name: str | None) -> str | None:
    """The checked backend name, or None if any may be used."""
    if name is None and setting("backend") is None and "camshaft.selection.override" not in sys.modules:
        return None  # no override is possible: skip importing most of camshaft
    from camshaft.selection.override import check_override, get_backend_override

    return get_backend_override() if name is None else check_override(name)
