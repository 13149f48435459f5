"""`camshaft tune`: measures kernels on this machine, searches their tunables, and keeps what was found for later plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.progress import Bar
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json

if TYPE_CHECKING:
    from camshaft.tune.graphs import Use
    from camshaft.tune.nodes import Tuned

_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="A model whose kernels to tune; without one, a ladder of shapes of many ops."
    ),
]
_Only = Annotated[str, typer.Option(metavar="WORD", help="Only ops whose names have this in them.")]
_Again = Annotated[bool, typer.Option("--again", help="Also shapes that were measured before.")]


@command
def tune(
    model: _Model = None,
    backend: options.Backend = None,
    threads: options.Threads = None,
    context: options.Context = options.DEFAULT_CONTEXT,
    activations: options.Activations = None,
    only: _Only = "",
    again: _Again = False,
    json: options.Json = False,
) -> None:
    """Measure kernels here and search for better ones.

    Every plan made later uses what is found. A few seconds a shape; the machine should do nothing else meanwhile."""
    from camshaft.tune.graphs import is_measured, tune_uses
    from camshaft.tune.rounds import BenchmarkConfig

    uses = _ladder(backend, only) if model is None else _of_model(model, backend, threads, context, activations, only)
    left = [use for use in uses if again or not is_measured(use)]
    with Bar(f"tuning {model or 'a ladder of shapes'}", unit="shapes") as progress:
        found = tune_uses(left, BenchmarkConfig(threads=threads), progress)
    if json:
        print_json({"model": model, "shapes": len(uses), "measured_before": len(uses) - len(left), "tuned": found})
    else:
        _print(found, len(uses) - len(left))


def _ladder(backend: str | None, only: str) -> list[Use]:
    from camshaft.dispatch.override import check_override, get_backend_override
    from camshaft.tune.ladder import ladder

    return ladder(get_backend_override() if backend is None else check_override(backend), only)


def _of_model(
    model: str, backend: str | None, threads: int | None, context: int, activations: str | None, only: str
) -> list[Use]:
    """What both plans of the model use; the model is closed again, so that its memory does not disturb."""
    from camshaft.dispatch.override import check_override, get_backend_override
    from camshaft.tune.graphs import uses_of

    with options.open_model(model, context=context, backend=backend, threads=threads, activations=activations) as lm:
        graphs = [lm.plans.prompt.graph, lm.plans.single.graph]
        override = get_backend_override() if backend is None else check_override(backend)
        return [use for use in uses_of(graphs, override) if only in use.op.name]


def _print(found: list[Tuned], measured_before: int) -> None:
    if measured_before:
        print(f"{measured_before} shapes were measured before (--again measures them anew)")
    rows: list[tuple[object, ...]] = [("op", "shape", "before", "us", "after", "us", "times as fast")]
    for t in found:
        before, after = (f"{ns / 1000:.4g}" for ns in (t.before_ns, t.after_ns))
        gain = f"{t.gain:.2f}" if t.after != t.before else ""
        rows.append((t.op, t.shape, t.before, before, "" if t.after == t.before else t.after, after, gain))
    if found:
        print_columns(rows, right=frozenset({3, 5, 6}))
    for t in found:
        for failure in t.failures:
            print(f"{t.op} of {t.shape}: {failure.candidate} does not count: {failure.reason}")
    better = [t.gain for t in found if t.after != t.before]
    print(f"{len(found)} shapes tuned, {len(better)} of them faster now")
