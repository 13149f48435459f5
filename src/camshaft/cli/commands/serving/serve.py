"""`camshaft serve`: answer HTTP requests as OpenAI's interface does, with one model or several."""

from __future__ import annotations

import ipaddress
import logging
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camshaft.cli import options
from camshaft.cli.command import command
from camshaft.cli.commands.serving import arguments
from camshaft.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from camshaft.serve.guard import Guard
    from camshaft.serve.models.config import ServerConfig
    from camshaft.serve.models.models import Models
    from camshaft.serve.models.spec import ModelSpec
    from camshaft.serve.request_log import LogPlace


@command
def serve(
    models: arguments.Models = None,
    *,
    config: arguments.Config = None,
    host: arguments.Host = "127.0.0.1",
    port: arguments.Port = arguments.DEFAULT_PORT,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    slots: arguments.Slots = arguments.DEFAULT_SLOTS,
    cache_tokens: arguments.CacheTokens = None,
    queue: arguments.Queue = 256,
    time_limit: arguments.TimeLimit = math.inf,
    embed: arguments.Embed = None,
    rerank: arguments.Rerank = None,
    speech: arguments.Speech = None,
    api_key_file: arguments.KeyFile = None,
    cors: arguments.Cors = None,
    slot_save_path: arguments.SlotPath = None,
    speculate: arguments.Speculate = "auto",
    log: arguments.Log = None,
    log_texts: arguments.LogTexts = False,
    ray: arguments.Ray = None,
    replicas: arguments.Replicas = None,
) -> None:
    """Serve models over HTTP, with OpenAI's interface at /v1. Ctrl-C stops when the answers in progress are complete.

    A single model is loaded at the start; of several, each is loaded by the first request that names it."""
    try:
        from camshaft.serve import run
    except ModuleNotFoundError as error:
        raise missing_extra(error, "camshaft serve", ray) from None
    from camshaft.serve.guard import Guard, read_keys, read_origins
    from camshaft.serve.request_log import STDERR, LogPlace, opened

    logging.basicConfig(level=logging.WARNING, format="camshaft: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a client that has gone
    if replicas is not None and ray is None:
        raise SettingError("--replicas is for --ray; wanted both")
    _check_files(slot_save_path, log, ray, log_texts=log_texts)
    keys = () if api_key_file is None else read_keys(api_key_file)
    guard = Guard(keys, frozenset({"localhost", host.lower()}), read_origins(cors or ()))
    given = running.given(context=context, sessions=slots, **({"cache_tokens": cache_tokens} if cache_tokens else {}))
    common = replace(_common(given, queue, slot_save_path, speculate), time_limit_s=_checked_limit(time_limit))
    found = _with_others(_config(models, config, common), common, embed=embed, rerank=rerank, speech=speech)
    sizes = f", {slots} at once, context {context}" if config is None else ""
    description = f"{', '.join(spec.name for spec in found.specs)} at URL/v1{sizes}; Ctrl-C stops"
    place = None if log is None else LogPlace(log if log == STDERR else log.absolute(), log_texts)
    if ray is not None:
        _check_open(keys, host, f"http://{host}:{port}")
        _serve_on_cluster(ray, found, guard, replicas, (host, port), description, place)
        return
    with ExitStack() as stack:
        to_log = None if place is None else stack.enter_context(opened(place))
        listening = stack.enter_context(run.listen(host, port))
        _check_open(keys, listening.getsockname()[0], run.url_of(listening))
        served = stack.enter_context(closing(_loaded(found)))
        ready = description.replace("URL", run.url_of(listening))
        run.make_server(served, guard, lambda: _notice(f"serving {ready}"), to_log).run(sockets=[listening])


def missing_extra(error: ModuleNotFoundError, purpose: str, ray: str | None) -> MissingExtraError:
    """Returns the error that names the extra to install for a command that serves requests on this machine or on a cluster."""
    return MissingExtraError(str(error.name), "serve" if ray is None else "cluster", purpose)


def _common(given: dict[str, Any], queue: int, slot_folder: Path | None, speculate: str) -> ModelSpec:
    """Returns the defaults of all models."""
    from camshaft.serve.models.config import speculate_of
    from camshaft.serve.models.spec import ModelSpec

    drafts = speculate_of(speculate, Path())
    return ModelSpec("", "", options=given, queue=queue, slot_folder=slot_folder, speculate=drafts)


def _checked_limit(seconds: float) -> float:
    if not seconds > 0:
        raise SettingError(f"--time-limit {seconds:g}; wanted seconds above 0")
    return seconds


def _config(models: list[str] | None, config: Path | None, common: ModelSpec) -> ServerConfig:
    """The models that were named, or those of the file."""
    from camshaft.serve.models.config import ServerConfig, read_config
    from camshaft.serve.models.served import served_name

    if config is None:
        named = models or [options.DEFAULT_MODEL]
        is_one = len(named) == 1
        return ServerConfig(
            tuple(replace(common, model=each, name=served_name(each), preload=is_one) for each in named)
        )
    found = read_config(config, common)
    if models:
        raise SettingError(f"MODEL {models[0]!r} and --config were given; wanted one of them")
    return found


def _with_others(
    config: ServerConfig, common: ModelSpec, *, embed: str | None, rerank: str | None, speech: str | None
) -> ServerConfig:
    """The models, and after them those that write no text."""
    from camshaft.serve.models.entry import EMBEDDING, RERANK, SPEECH
    from camshaft.serve.models.served import served_name
    from camshaft.serve.models.spec import ModelSpec

    preload = config.specs[0].preload
    threads = {name: value for name, value in common.options.items() if name == "threads"}
    others = [
        ModelSpec(model, served_name(model), kind=kind, options=threads, preload=preload)
        for model, kind in ((embed, EMBEDDING), (rerank, RERANK), (speech, SPEECH))
        if model is not None
    ]
    return replace(config, specs=(*config.specs, *others))


def _loaded(config: ServerConfig) -> Models:
    """The models of this process, those to preload in memory."""
    from camshaft.serve.models.models import Models
    from camshaft.serve.models.spec import cards_of

    for name in dict.fromkeys(name for spec in config.specs for name in (spec.model, spec.draft_model)):
        if name is not None:
            options.pull(name)
    served = Models(cards_of(config.specs), limit_nbytes=config.memory_limit_nbytes)
    try:
        for spec in config.specs:
            if spec.preload:
                with options.preparing(spec.model):
                    served.put(spec.name, served.entries[spec.name].card.open())
    except BaseException:
        served.close()
        raise
    return served


def _serve_on_cluster(
    address: str,
    config: ServerConfig,
    guard: Guard,
    replicas: str | None,
    at: tuple[str, int],
    description: str,
    log: LogPlace | None,
) -> None:
    from camshaft.cluster.serving import read_replicas, served
    from camshaft.cluster.specs import cluster_specs

    host, port = at
    wanted = None if replicas is None else read_replicas(replicas)
    with served(address, cluster_specs(config), guard, replicas=wanted, host=host, port=port, log=log):
        _notice(f"serving {description.replace('URL', f'http://{host}:{port}')}")
        while True:
            time.sleep(3600)


def _check_files(folder: Path | None, log: Path | None, ray: str | None, *, log_texts: bool) -> None:
    if folder is not None and ray is not None:
        raise SettingError("--slot-save-path is for a server of one process; --ray was given too")
    if log == Path("-") and ray is not None:
        raise SettingError("--log - with --ray; wanted a file, which is written on the head node of the cluster")
    if folder is not None and not folder.is_dir():
        raise SettingError(f"--slot-save-path: there is no folder {folder}")
    if log_texts and log is None:
        raise SettingError("--log-texts without --log; wanted both")


def _check_open(keys: Sequence[bytes], address: str, url: str) -> None:
    if not keys and not _is_loopback(address):
        _notice(f"no --api-key-file: everybody who reaches {url} may use the model")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def _notice(text: str) -> None:
    print("camshaft:", text, file=sys.stderr, flush=True)
