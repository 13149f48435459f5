"""Generation options of a request, under the names of OpenAI's API and of camshaft's Sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from camshaft.errors import SettingError
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.options import GenerateOptions
from camshaft.generate.sampling.parameters import Sampling
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import ANYTHING, BOOL, OBJECT, TEXT, Field, Fields, integer, is_integer, read_fields

MOST_STOPS, MOST_STOP_CHARACTERS = 16, 256
MOST_TOP_LOGPROBS = 20
MOST_TOKENS = 2**31 - 1

SAMPLING = frozenset(field.name for field in dataclasses.fields(Sampling)) - {"greedy"}
# names of vLLM, then of llama.cpp's server and Ollama
_SPELLINGS = {"repetition_penalty": "repeat_penalty", "mirostat_tau": "mirostat_ent", "mirostat_eta": "mirostat_lr"}


def _are_stops(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return (
        isinstance(texts, list)
        and len(texts) <= MOST_STOPS
        and all(isinstance(text, str) and 0 < len(text) <= MOST_STOP_CHARACTERS for text in texts)
    )


def _sampling(name: str) -> Field:
    """A field of Sampling, which checks its values."""
    kinds = {int: "integer", float: "number", dict: "object"}
    kind = kinds.get(type(getattr(Sampling(), _SPELLINGS.get(name, name))))
    return Field(ANYTHING.fits, "as in camshaft.Sampling", {"type": kind} if kind else {})


_SEED = Field(lambda v: is_integer(v) and -(2**63) <= v < 2**64, "a whole number of 64 bits", {"type": "integer"})
_STOP = {"type": "string", "minLength": 1, "maxLength": MOST_STOP_CHARACTERS}
_STOPS = {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]}
OPTIONS: Fields = {
    **{name: _sampling(name) for name in sorted(SAMPLING | _SPELLINGS.keys())},
    "seed": _SEED,
    "max_tokens": integer(-1, MOST_TOKENS),
    "max_completion_tokens": integer(-1, MOST_TOKENS),
    "stop": Field(_are_stops, f"a text or up to {MOST_STOPS}, each of 1 to {MOST_STOP_CHARACTERS} characters", _STOPS),
    "ignore_eos": BOOL,
    "stream": BOOL,
    "stream_options": OBJECT,
    "n": integer(1, 128),
    "priority": integer(-MOST_TOKENS, MOST_TOKENS),  # vLLM's: lower numbers are served first
    # accepted, without an effect on the answer
    "user": TEXT,
    "safety_identifier": TEXT,
    "prompt_cache_key": TEXT,
    "metadata": OBJECT,
}
_STREAM_OPTIONS: Fields = {"include_usage": BOOL, "include_obfuscation": Field(lambda v: v is False, "false")}


def includes_usage(given: Mapping[str, Any]) -> bool:
    """Whether a stream ends with the usage. Raises HttpError for stream_options without a stream."""
    if "stream_options" not in given:
        return False
    if not given.get("stream"):
        raise HttpError(400, "'stream_options' without stream: true", code="invalid_value", param="stream_options")
    return bool(read_fields(given["stream_options"], _STREAM_OPTIONS, "stream_options").get("include_usage", False))


def generate_options(
    given: Mapping[str, Any],
    *,
    max_tokens: int,
    logprobs: int | None,
    n_vocab: int,
    grammar: Grammar | None = None,
    shown_tokens: Sequence[str] = (),
) -> list[GenerateOptions]:
    """Returns the options of each of the `n` answers, which differ in their seeds. `max_tokens` is the default."""
    sampling = read_sampling(given, n_vocab)
    most = given.get("max_completion_tokens", given.get("max_tokens", max_tokens))
    made = GenerateOptions(
        max_tokens=most,
        sampling=sampling,
        stop=tuple([given["stop"]] if isinstance(given.get("stop"), str) else given.get("stop", ())),
        ignore_eos=given.get("ignore_eos", False),
        grammar=grammar,
        logprobs=logprobs,
        shown_tokens=shown_tokens,
    )
    return [made, *(dataclasses.replace(made, sampling=_reseeded(sampling, i)) for i in range(1, given.get("n", 1)))]


def _reseeded(sampling: Sampling, i: int) -> Sampling:
    return sampling if sampling.seed is None else dataclasses.replace(sampling, seed=(sampling.seed + i) % 2**64)


def read_sampling(given: Mapping[str, Any], n_vocab: int) -> Sampling:
    """The Sampling of a request. Raises HttpError with the field that is wrong or not supported."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        field = _SPELLINGS.get(name, name)
        if field in SAMPLING:
            fields[field] = _checked(name, field, value, n_vocab)
    try:
        return Sampling(**fields)
    except SettingError as error:
        raise HttpError(400, str(error), code="invalid_value") from None


def _checked(name: str, field: str, value: Any, n_vocab: int) -> Any:
    if field == "logit_bias":
        value = _biases(value, n_vocab)
    if field == "seed":
        value %= 2**64
    try:
        Sampling(**{field: value})
    except SettingError as error:
        message = str(error).replace(f"Sampling {field}=", f"'{name}' is ")
        raise HttpError(400, message, code="invalid_value", param=name) from None
    return value


def _biases(value: Any, n_vocab: int) -> dict[int, Any]:
    """Returns biases by token id; in JSON the ids are strings."""
    fits = isinstance(value, dict) and all(key.isascii() and key.isdigit() and len(key) < 10 for key in value)
    biases = {int(key): bias for key, bias in value.items()} if fits else {}
    if not fits or not all(i < n_vocab for i in biases):
        wanted = f"an object of numbers by token id, from 0 to {n_vocab - 1}"
        raise HttpError(400, f"'logit_bias' wanted {wanted}", code="invalid_value", param="logit_bias")
    return biases
