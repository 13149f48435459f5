"""`camshaft batch`: answer a file of requests in OpenAI's batch format on this machine."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json
from camshaft.cli.commands.serving.arguments import DEFAULT_SLOTS, Embed, Ray, Slots
from camshaft.cli.commands.serving.serve import missing_extra
from camshaft.errors import count

if TYPE_CHECKING:
    from camshaft.serve.batch.run import Progress, Tally

MAX_QUEUE = 1 << 20  # the batch itself keeps fewer in the engine

_In = Annotated[Path, typer.Argument(metavar="IN", help="The requests: a JSONL file in OpenAI's batch format.")]
_Out = Annotated[Path, typer.Argument(metavar="OUT", help="The results, in any order; an existing file is continued.")]


@command
def batch(
    model: options.Model,
    source: _In,
    target: _Out,
    *,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    slots: Slots = DEFAULT_SLOTS,
    embed: Embed = None,
    ray: Ray = None,
    json: options.Json = False,
) -> None:
    """Answer a file of requests in OpenAI's batch format, each with a line in OUT.

    Ctrl-C keeps the results so far; the same command continues with the rest."""
    try:
        import camshaft.serve.batch.run  # noqa: F401 - needs the extra
    except ModuleNotFoundError as error:
        raise missing_extra(error, "camshaft batch", ray) from None
    from camshaft.serve.batch.files import check_paths

    logging.basicConfig(level=logging.WARNING, format="camshaft: %(message)s")
    check_paths(source, target)  # before a model is pulled
    with Bar(f"answering {source.name}", unit="requests") as bar:

        def progress(now: Tally) -> None:
            bar(now.n_done, now.n_requests, _note(now))

        given = (running, (context, slots), model, (source, target), embed, progress)
        tally = _run_here(*given) if ray is None else _run_on_cluster(ray, *given)
    if json:
        print_json(asdict(tally))
    else:
        print(_summary(tally))


def _run_here(
    running: options.ModelOptions,
    sizes: tuple[int, int],
    model: str,
    files: tuple[Path, Path],
    embed: str | None,
    progress: Progress,
) -> Tally:
    """Run the batch on this machine."""
    from camshaft.generate.engine.engine import Engine
    from camshaft.serve.batch.run import run_batch
    from camshaft.serve.models.served import Embedder, Served, served_name

    context, slots = sizes
    with ExitStack() as stack:
        lm = stack.enter_context(running.open(model, context, sessions=slots))
        embedder = None
        if embed is not None:
            opened = stack.enter_context(options.open_embedder(embed, threads=running.threads))
            embedder = Embedder(served_name(embed), opened)
        engine = stack.enter_context(Engine(lm, max_queue=MAX_QUEUE))
        engine.start()
        served = Served(served_name(model), engine, embedder=embedder)
        # Twice the slots: when an answer ends, the next one has been prepared.
        return run_batch(served, *files, most_open=2 * slots, progress=progress)


def _run_on_cluster(
    address: str,
    running: options.ModelOptions,
    sizes: tuple[int, int],
    model: str,
    files: tuple[Path, Path],
    embed: str | None,
    progress: Progress,
) -> Tally:
    """Run the batch on the nodes of a cluster, which have the model under the same name or path."""
    from camshaft.cluster.batch import run_batch
    from camshaft.cluster.specs import on_nodes
    from camshaft.serve.models.entry import EMBEDDING
    from camshaft.serve.models.served import served_name
    from camshaft.serve.models.spec import ModelSpec

    context, slots = sizes
    given = running.given(context=context, sessions=slots)
    spec = on_nodes(ModelSpec(model, served_name(model), options=given, queue=MAX_QUEUE))
    threads = {name: value for name, value in given.items() if name == "threads"}
    other = None if embed is None else on_nodes(ModelSpec(embed, served_name(embed), kind=EMBEDDING, options=threads))
    # An actor has two blocks at a time, each with as many answers open as there are slots.
    return run_batch(address, spec, *files, embed=other, most_open=slots, progress=progress)


def _rate(tally: Tally) -> float:
    return tally.generated_tokens / tally.elapsed_s if tally.elapsed_s else 0.0


def _note(tally: Tally) -> str:
    left = "" if tally.left_s is None else f", {_time(tally.left_s)} left"
    return f"{_rate(tally):.1f} tokens/s{left}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _summary(tally: Tally) -> str:
    before = f", {tally.n_before} before" if tally.n_before else ""
    return (
        f"{count(tally.n_requests, 'request')}: {tally.n_answered} answered, {tally.n_failed} failed{before}; "
        f"{count(tally.generated_tokens, 'token')} in {tally.elapsed_s:.1f} s ({_rate(tally):.1f} tokens/s), "
        f"{tally.cached_tokens} of {count(tally.prompt_tokens, 'prompt token')} from the prefix cache"
    )
