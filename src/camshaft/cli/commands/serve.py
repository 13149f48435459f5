"""`camshaft serve`: answer HTTP requests as OpenAI's interface does."""

from __future__ import annotations

import ipaddress
import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import command
from camshaft.errors import MissingExtraError

DEFAULT_PORT = 8080
DEFAULT_SLOTS = 16  # as many generate in one run of a plan

_Host = Annotated[str, typer.Option(metavar="NAME", help="The address to listen at; 0.0.0.0: all of this machine's.")]
_Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port to listen at; 0: any free one.")]
Slots = Annotated[int, typer.Option(metavar="N", min=1, help="Answers generated at once; other requests wait.")]
_Queue = Annotated[
    int, typer.Option(metavar="N", min=1, help="Answers that may wait; further requests get status 429.")
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Require one of the API keys in FILE: one a line, or its sha256:HEX."),
]
Embed = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also serve vectors of texts, by this model, at /v1/embeddings.")
]
_Rerank = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also score documents for queries, by this model, at /v1/rerank.")
]


@command
def serve(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    host: _Host = "127.0.0.1",
    port: _Port = DEFAULT_PORT,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    slots: Slots = DEFAULT_SLOTS,
    queue: _Queue = 256,
    embed: Embed = None,
    rerank: _Rerank = None,
    api_key_file: _KeyFile = None,
) -> None:
    """Serve a model over HTTP, with OpenAI's interface at /v1. Ctrl-C stops when the answers in progress are complete."""
    try:
        from camshaft.serve import run
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "serve", "camshaft serve") from None
    from camshaft.generate.engine.engine import Engine
    from camshaft.serve.guard import Guard, read_keys
    from camshaft.serve.served import Embedder, Ranker, Served, served_name

    logging.basicConfig(level=logging.WARNING, format="camshaft: %(message)s")
    keys = () if api_key_file is None else read_keys(api_key_file)
    with run.listen(host, port) as listening:
        if not keys and not _is_loopback(listening.getsockname()[0]):
            _notice(f"no --api-key-file: everybody who reaches {run.url_of(listening)} may use the model")
        with ExitStack() as stack:
            lm = stack.enter_context(running.open(model, context, sessions=slots))
            engine = stack.enter_context(Engine(lm, max_queue=queue))
            embedder = ranker = None
            if embed is not None:
                opened = stack.enter_context(options.open_embedder(embed, threads=running.threads))
                embedder = Embedder(served_name(embed), opened)
            if rerank is not None:
                ranking = stack.enter_context(options.open_reranker(rerank, threads=running.threads))
                ranker = Ranker(served_name(rerank), ranking)
            served = Served(served_name(model), engine, embedder=embedder, ranker=ranker)
            guard = Guard(keys, frozenset({"localhost", host.lower()}))
            address = f"{served.name} at {run.url_of(listening)}/v1, {slots} at once, context {context}; Ctrl-C stops"
            run.make_server(served, guard, lambda: _notice(f"serving {address}")).run(sockets=[listening])


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _notice(text: str) -> None:
    print("camshaft:", text, file=sys.stderr, flush=True)
