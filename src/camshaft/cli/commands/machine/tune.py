"""`camshaft tune`: measure kernels, search their tunable parameters, and store the results for later plans."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json
from camshaft.errors import SettingError, count

if TYPE_CHECKING:
    from camshaft.tune.graphs import Use
    from camshaft.tune.nodes import Tuned

_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="The model whose kernels to tune; default: a ladder of shapes of common ops."
    ),
]
_Only = Annotated[str, typer.Option(metavar="WORD", help="Tune only ops whose names contain WORD.")]
_Sessions = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of concurrent sessions to tune for; default: both 1 (the commands) and 8 (the library).",
    ),
]
_Again = Annotated[bool, typer.Option("--again", help="Also tune shapes that were measured before.")]


@command
def tune(
    model: _Model = None,
    *,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    sessions: _Sessions = None,
    only: _Only = "",
    again: _Again = False,
    json: options.Json = False,
) -> None:
    """Measure kernels on this machine and search for faster ones.

    Later plans use the results. Takes a few seconds per shape; run nothing else meanwhile."""
    from camshaft.tune.graphs import is_measured, tune_uses
    from camshaft.tune.jobs import paused
    from camshaft.tune.rounds import BenchmarkConfig

    _check_only(only)
    every = _uses(model, sessions, context, running)
    uses = [use for use in every if only in use.op.name]
    if not uses:
        names = ", ".join(sorted({use.op.name for use in every}))
        raise SettingError(f"--only {only}: {model or 'the ladder'} has no such op; wanted a word of {names}")
    remaining = [use for use in uses if again or not is_measured(use)]
    with paused(), Bar(f"tuning {model or 'a ladder of shapes'}", unit="shapes") as progress:
        tuned = tune_uses(remaining, BenchmarkConfig(threads=running.threads), progress)
    if json:
        print_json({"model": model, "shapes": len(uses), "measured_before": len(uses) - len(remaining), "tuned": tuned})
    else:
        _print(tuned, len(uses) - len(remaining))


def _check_only(word: str) -> None:
    """Raise SettingError, with similar names, for a word that no op's name contains. Opens no model."""
    from camshaft import ops

    if not any(word in name for name in ops.NAMES):
        near = get_close_matches(word, ops.NAMES, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "'camshaft ops' lists the names"
        raise SettingError(f"--only {word[:80]}: no op has this in its name; {hint}")


def _uses(model: str | None, sessions: int | None, context: int, running: options.ModelOptions) -> list[Use]:
    """The op uses to measure: a ladder of shapes, or those of a model with each number of sessions."""
    from camshaft.generate.options import DEFAULT_SESSIONS
    from camshaft.selection.override import check_override, get_backend_override
    from camshaft.tune.graphs import ladder, uses_of
    from camshaft.tune.jobs import paused

    override = get_backend_override() if running.backend is None else check_override(running.backend)
    if model is None:
        return ladder(override)
    counts = (options.COMMAND_SESSIONS, DEFAULT_SESSIONS) if sessions is None else (sessions,)
    uses: list[Use] = []
    for n in counts:  # the shapes include the KV cache's size
        # closed before anything is timed: its memory would disturb
        with paused(), running.open(model, context, n) as lm:
            uses += uses_of([lm.plans.prompt.graph, lm.plans.single.graph], override)
    return list({use.key: use for use in uses}.values())


def _print(tuned: list[Tuned], measured_before: int) -> None:
    if measured_before:
        were = "was" if measured_before == 1 else "were"
        print(f"{count(measured_before, 'shape')} {were} measured before (--again measures them again)")
    rows: list[tuple[object, ...]] = [("op", "shape", "before", "us", "after", "us", "times as fast")]
    for t in tuned:
        before, after = (f"{ns / 1000:.4g}" for ns in (t.before_ns, t.after_ns))
        gain = f"{t.gain:.2f}" if t.after != t.before else ""
        rows.append((t.op, t.shape, t.before, before, "" if t.after == t.before else t.after, after, gain))
    if tuned:
        print_columns(rows, right=frozenset({3, 5, 6}))
    for t in tuned:
        for failure in t.failures:
            print(f"{t.op} of {t.shape}: {failure.candidate} was rejected: {failure.reason}")
    better = [t.gain for t in tuned if t.after != t.before]
    print(f"{count(len(tuned), 'shape')} tuned, {len(better)} improved")
