"""`camshaft cache`: show the contents of the on-disk cache; `camshaft cache clear`: remove them."""

from __future__ import annotations

from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import command, print_columns, print_json, size

app = typer.Typer(rich_markup_mode=None)
_Kinds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KIND]...",
        help="objects, evidence, measurements, schedules, headers, prompts, packed or models; default: all except models.",
    ),
]


@app.callback(invoke_without_command=True)
def cache(context: typer.Context, json: options.Json = False) -> None:
    """Show the size of the cache and its hit counts.

    Kinds: compiled kernels (objects), validation results (evidence), kernel timings (measurements), compiled plans (schedules),
    parsed model headers (headers), kept prompts (prompts), packed weights (packed), and models."""
    if context.invoked_subcommand is None:
        _show(json=json)
    elif json:
        raise typer.BadParameter("--json comes after the name of the command")


@command
def _show(json: bool) -> None:
    from camshaft.store.store import store
    from camshaft.store.usage import n_processes, usage

    cache_store = store()
    rows, n_users = usage(cache_store), n_processes(cache_store)
    if json:
        print_json({"cache_dir": cache_store.root, "processes": n_users, "kinds": {row.kind: row for row in rows}})
        return
    table: list[tuple[object, ...]] = [("", "entries", "size", "at most", "hits", "misses")]
    for row in rows:
        most = "" if row.max_nbytes is None else size(row.max_nbytes)
        table.append((row.kind, row.n_entries, size(row.nbytes), most, _shown(row.hits), _shown(row.misses)))
    print_columns(table, right=frozenset({1, 2, 3, 4, 5}))
    print(f"{cache_store.root}, in use by {n_users} {'process' if n_users == 1 else 'processes'}")


def _shown(count: int | None) -> object:
    return "" if count is None else count


@app.command()
@command
def clear(kinds: _Kinds = None, json: options.Json = False) -> None:
    """Remove cached data. Everything except models is rebuilt when needed; models are removed only if named."""
    from camshaft.store import usage
    from camshaft.store.store import store

    cache_store = store()
    removed = usage.clear(cache_store, kinds or usage.REBUILT)
    if json:
        print_json({"cache_dir": cache_store.root, "removed": {row.kind: row for row in removed}})
        return
    print_columns(
        [(row.kind, f"{row.n_entries} removed", size(row.nbytes)) for row in removed], right=frozenset({1, 2})
    )
