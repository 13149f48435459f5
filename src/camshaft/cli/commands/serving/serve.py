"""`camshaft serve`: answer HTTP requests as OpenAI's interface does, with one model or several."""

from __future__ import annotations

import ipaddress
import logging
import math
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.command import command
from camshaft.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from camshaft.serve.guard import Guard
    from camshaft.serve.models.config import ServerConfig
    from camshaft.serve.models.models import Models
    from camshaft.serve.models.spec import ModelSpec

DEFAULT_PORT = 8080
DEFAULT_SLOTS = 16  # as many generate in one run of a plan

_Host = Annotated[str, typer.Option(metavar="NAME", help="The address to listen at; 0.0.0.0: all of this machine's.")]
_Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port to listen at; 0: any free one.")]
Slots = Annotated[int, typer.Option(metavar="N", min=1, help="Answers generated at once; other requests wait.")]
_Queue = Annotated[
    int, typer.Option(metavar="N", min=1, help="Answers that may wait; further requests get status 429.")
]
_TimeLimit = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="Seconds that an answer may take, in the queue too; then it ends where it is.",
        show_default=False,
    ),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Require one of the API keys in FILE: one a line, or its sha256:HEX."),
]
Embed = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also serve vectors of texts, by this model, at /v1/embeddings.")
]
Ray = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on the nodes of the Ray cluster at this address: HOST:PORT, or auto."),
]
_Replicas = Annotated[
    str | None,
    typer.Option(
        metavar="N|LEAST:MOST",
        help="With --ray: copies of each model, as many as requests need from LEAST to MOST; default: one a node.",
    ),
]
_Rerank = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also score documents for queries, by this model, at /v1/rerank.")
]
_Speech = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also transcribe recordings, by this model, at /v1/audio.")
]
_Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL ...]",
        help=f"Model names (pulled on first use), hf:OWNER/REPO/FILE, or .gguf paths; default: {options.DEFAULT_MODEL}.",
        show_default=False,
    ),
]
_SlotPath = Annotated[
    Path | None,
    typer.Option(
        "--slot-save-path", metavar="FOLDER", help="Let clients save prompts in FOLDER, and restore them (/slots)."
    ),
]
_Speculate = Annotated[
    str | None,
    typer.Option(
        metavar="ngram|MODEL|off",
        help="Draft tokens, while few requests run: what followed the same ones earlier in a text, or by a smaller MODEL.",
    ),
]
_Cors = Annotated[
    list[str] | None,
    typer.Option(
        "--cors",
        metavar="ORIGIN",
        help="Let web pages of this origin use the server; *: of any. May be given several times.",
    ),
]
_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Serve the models that a TOML file describes.")
]


@command
def serve(
    models: _Models = None,
    *,
    config: _Config = None,
    host: _Host = "127.0.0.1",
    port: _Port = DEFAULT_PORT,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    slots: Slots = DEFAULT_SLOTS,
    queue: _Queue = 256,
    time_limit: _TimeLimit = math.inf,
    embed: Embed = None,
    rerank: _Rerank = None,
    speech: _Speech = None,
    api_key_file: _KeyFile = None,
    cors: _Cors = None,
    slot_save_path: _SlotPath = None,
    speculate: _Speculate = None,
    ray: Ray = None,
    replicas: _Replicas = None,
) -> None:
    """Serve models over HTTP, with OpenAI's interface at /v1. Ctrl-C stops when the answers in progress are complete.

    A single model is loaded at the start; of several, each is loaded by the first request that names it."""
    try:
        from camshaft.serve import run
    except ModuleNotFoundError as error:
        raise missing_extra(error, "camshaft serve", ray) from None
    from camshaft.serve.guard import Guard, read_keys, read_origins

    logging.basicConfig(level=logging.WARNING, format="camshaft: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a client that has gone
    if replicas is not None and ray is None:
        raise SettingError("--replicas is for --ray; wanted both")
    _check_slot_folder(slot_save_path, ray)
    keys = () if api_key_file is None else read_keys(api_key_file)
    guard = Guard(keys, frozenset({"localhost", host.lower()}), read_origins(cors or ()))
    given = running.given(context=context, sessions=slots)
    common = replace(_common(given, queue, slot_save_path, speculate), time_limit_s=_checked_limit(time_limit))
    found = _with_others(_config(models, config, common), common, embed=embed, rerank=rerank, speech=speech)
    sizes = f", {slots} at once, context {context}" if config is None else ""
    said = f"{', '.join(spec.name for spec in found.specs)} at URL/v1{sizes}; Ctrl-C stops"
    if ray is not None:
        _check_open(keys, host, f"http://{host}:{port}")
        _serve_on_cluster(ray, found, guard, replicas, (host, port), said)
        return
    with run.listen(host, port) as listening:
        _check_open(keys, listening.getsockname()[0], run.url_of(listening))
        with closing(_loaded(found)) as served:
            ready = said.replace("URL", run.url_of(listening))
            run.make_server(served, guard, lambda: _notice(f"serving {ready}")).run(sockets=[listening])


def missing_extra(error: ModuleNotFoundError, purpose: str, ray: str | None) -> MissingExtraError:
    """What to install for a command that serves requests here or, by the extra that has the other, on a cluster."""
    return MissingExtraError(str(error.name), "serve" if ray is None else "cluster", purpose)


def _common(given: dict[str, Any], queue: int, slot_folder: Path | None, speculate: str | None) -> ModelSpec:
    """What the models have in common that say nothing else."""
    from camshaft.serve.models.config import speculate_of
    from camshaft.serve.models.spec import ModelSpec

    drafts = None if speculate is None else speculate_of(speculate, Path())
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
    address: str, config: ServerConfig, guard: Guard, replicas: str | None, at: tuple[str, int], said: str
) -> None:
    from camshaft.cluster.serving import read_replicas, served
    from camshaft.cluster.specs import cluster_specs

    host, port = at
    wanted = None if replicas is None else read_replicas(replicas)
    with served(address, cluster_specs(config), guard, replicas=wanted, host=host, port=port):
        _notice(f"serving {said.replace('URL', f'http://{host}:{port}')}")
        while True:
            time.sleep(3600)


def _check_slot_folder(folder: Path | None, ray: str | None) -> None:
    if folder is not None and ray is not None:
        raise SettingError("--slot-save-path is for a server of one process; --ray was given too")
    if folder is not None and not folder.is_dir():
        raise SettingError(f"--slot-save-path: there is no folder {folder}")


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
