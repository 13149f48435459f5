"""The models of a server: from a TOML file and the command's options to cards that load them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from camshaft.errors import CamshaftError, SettingError
from camshaft.generate.options import activations_of, backend_of, check_sizes, kv_cache_of
from camshaft.generate.speculation.speculator import AUTO, NGRAM
from camshaft.models.config import POOLINGS
from camshaft.serve.models.entry import EMBEDDING, RERANK, SPEECH
from camshaft.serve.models.served import served_name
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.requests import fields
from camshaft.serve.requests.errors import HttpError

_MOST = 1e9  # of numbers
# Sizes of memory as people write them.
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([KMG]i?B|B|)")
_RENAMED = {"slots": "sessions"}  # options of LanguageModel


def _is_size(value: object) -> bool:
    """Whether a value is a size such as "8 GiB", or a number of bytes."""
    return isinstance(value, int | str) and _SIZE.fullmatch(str(value)) is not None


def _nbytes_of(size: int | str) -> int:
    """The bytes of what `_is_size`."""
    found = _SIZE.fullmatch(str(size))
    assert found is not None
    return int(float(found[1]) * _UNITS[found[2]])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value == value.strip() != "" and value.isprintable()


_SECONDS = fields.Field(lambda v: _is_number(v) and v > 0, "a number of seconds above 0")
_NAME = fields.Field(_is_name, "a name: printable characters, without blanks around them")
_NUMBER = fields.integer(1, 1 << 31)
# Of one model, and of all that do not say otherwise.
_COMMON: fields.Fields = {
    "context": _NUMBER,
    "slots": _NUMBER,
    "cache_tokens": _NUMBER,
    "queue": _NUMBER,
    "threads": _NUMBER,
    "backend": fields.TEXT,
    "activations": fields.TEXT,
    "kv_cache": fields.TEXT,
    "time_limit_seconds": _SECONDS,
    "idle_unload_seconds": _SECONDS,
    "speculate": fields.Field(
        lambda v: isinstance(v, str) and v.strip() != "", f"{AUTO!r}, {NGRAM!r}, a draft model or 'off'"
    ),
}
_ALIASES = fields.Field(
    lambda v: _is_name(v) or (isinstance(v, list) and all(map(_is_name, v))),
    "a name or a list of names",
)
_FILE: fields.Fields = {
    **_COMMON,
    "memory_limit": fields.Field(_is_size, 'a size such as "8 GiB", or bytes'),
    "models": fields.LIST,
}
_MODEL: fields.Fields = {
    **_COMMON,
    "model": fields.TEXT,
    "name": _NAME,
    "alias": _ALIASES,
    "embed": fields.BOOL,
    "rerank": fields.BOOL,
    "speech": fields.BOOL,
    "pooling": fields.one_of(*(each for each in POOLINGS if each not in ("", "rank"))),
    "preload": fields.BOOL,
    "adapters": fields.OBJECT,
    "mmproj": fields.TEXT,
    "experts_resident": fields.Field(lambda v: _is_number(v) and v > 0, "gigabytes above 0"),
    "mlock": fields.BOOL,
}
_OF_POOLED = frozenset({"model", "name", "alias", "preload", "context", "threads", "idle_unload_seconds"})
# The flag of a model without an engine -> its kind, and the fields that it may have.
_POOLED = {
    "embed": (EMBEDDING, _OF_POOLED | {"embed", "pooling"}),
    "rerank": (RERANK, _OF_POOLED | {"rerank"}),
    "speech": (SPEECH, (_OF_POOLED | {"speech"}) - {"context"}),
}
_ADAPTER: fields.Fields = {
    "path": fields.TEXT,
    "strength": fields.Field(_is_number, "a number"),
    "alias": _ALIASES,
}


@dataclass(frozen=True)
class ServerConfig:
    """The models of a server, and the memory that they may have together."""

    specs: tuple[ModelSpec, ...]
    memory_limit_nbytes: int | None = None


def read_config(path: Path, defaults: ModelSpec) -> ServerConfig:
    """The models of a TOML file. What a model does not say is as at the file's beginning, or else as in `defaults`.

    Raises SettingError for anything that is not TOML, an unknown key by its name, or a value that does not fit."""
    try:
        read = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise SettingError(f"{path} is nested too deeply") from None
    try:
        given = fields.read_fields(read, _FILE)
        models = fields.required(given, "models")
        if not models:
            raise HttpError(400, "'models' is empty; wanted at least one [[models]]")
        base = _with_common(defaults, given, path.parent)
        specs = [spec for i, model in enumerate(models) for spec in _specs(model, f"models[{i}]", base, path.parent)]
    except HttpError as error:
        raise SettingError(f"{path}: {error}") from None
    limit = given.get("memory_limit")
    return ServerConfig(tuple(specs), None if limit is None else _nbytes_of(limit))


def _with_common(spec: ModelSpec, given: Mapping[str, Any], folder: Path) -> ModelSpec:
    """The spec with what a table says of _COMMON."""
    options = {_RENAMED.get(name, name): given[name] for name in _COMMON if name in given}
    queue, idle_s = options.pop("queue", spec.queue), options.pop("idle_unload_seconds", spec.idle_s)
    time_limit_s = options.pop("time_limit_seconds", spec.time_limit_s)
    speculate = spec.speculate
    if "speculate" in options:
        speculate = speculate_of(options.pop("speculate"), folder)
    named = {"queue": queue, "idle_s": idle_s, "time_limit_s": time_limit_s, "speculate": speculate}
    return replace(spec, options={**spec.options, **options}, **named)


def _specs(model: Any, of: str, defaults: ModelSpec, folder: Path) -> list[ModelSpec]:
    """A model, and one more for each of its adapters."""
    given = fields.read_fields(model, _MODEL, of)
    path = _beside(fields.required(given, "model", of), folder)
    spec = replace(
        _with_common(defaults, given, folder),
        model=path,
        name=given.get("name", served_name(path)),
        aliases=_names(given.get("alias", ())),
        preload=given.get("preload", False),
    )
    _check(spec.options, of)
    flag = next((name for name in _POOLED if given.get(name)), None)
    if flag is not None:
        kind, own = _POOLED[flag]
        foreign = sorted(given.keys() - own)
        if foreign:
            raise HttpError(400, f"'{of}.{foreign[0]}' with {flag} = true; it is for other models")
        return [_pooled(spec, kind, given)]
    if "pooling" in given:
        raise HttpError(400, f"'{of}.pooling' without embed = true")
    if "mmproj" in given:
        spec = replace(spec, options={**spec.options, "mmproj": str(folder / given["mmproj"])})
    adapters = given.get("adapters", {}).items()
    unnamed = next((name for name, _ in adapters if not _is_name(name)), None)
    if unnamed is not None:
        raise HttpError(400, f"'{of}.adapters' has {fields.shown(unnamed)}; wanted {_NAME.wanted}")
    return [spec, *(_adapted(spec, name, value, f"{of}.adapters.{name}", folder) for name, value in adapters)]


def _check(options: Mapping[str, Any], of: str) -> None:
    """Raise HttpError for options of a model that no model has, before one is loaded."""
    try:
        activations = activations_of(options.get("activations") or "auto")
        kv_cache_of(options.get("kv_cache") or "auto", activations)
        backend_of(options.get("backend"))
        check_sizes(options.get("context", 1), options.get("sessions", 1), options.get("cache_tokens"))
    except CamshaftError as error:
        raise HttpError(400, f"'{of}': {error}") from None


def _pooled(spec: ModelSpec, kind: str, given: Mapping[str, Any]) -> ModelSpec:
    """A model for vectors or scores. Its context is its own unless it is given here."""
    kept = {name: spec.options[name] for name in ("threads",) if name in spec.options}
    own = {name: given[name] for name in ("context", "pooling") if name in given}
    return replace(spec, kind=kind, options=kept | own)


def _adapted(spec: ModelSpec, name: str, value: Any, of: str, folder: Path) -> ModelSpec:
    given = fields.read_fields({"path": value} if isinstance(value, str) else value, _ADAPTER, of)
    path = folder / fields.required(given, "path", of)
    adapters = (*spec.options.get("adapters", ()), (str(path), float(given.get("strength", 1.0))))
    return replace(
        spec,
        name=f"{spec.name}:{name}",
        aliases=_names(given.get("alias", ())),
        base=spec.name,
        options={**spec.options, "adapters": adapters},
        preload=False,
    )


def speculate_of(value: str, folder: Path) -> str | None:
    """Returns the drafter: 'auto', 'ngram', the path or name of a model, or None for 'off'."""
    return {"off": None, AUTO: AUTO, NGRAM: NGRAM}.get(value, _beside(value, folder))


def _beside(model: str, folder: Path) -> str:
    """A path in the file is relative to the file's folder; what is not there is a name."""
    path = folder / model
    return str(path) if path.is_file() else model


def _names(value: str | Sequence[str]) -> frozenset[str]:
    return frozenset([value] if isinstance(value, str) else value)
