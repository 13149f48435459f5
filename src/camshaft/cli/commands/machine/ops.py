"""`camshaft ops`: list the ops and the validation status of their kernels; `camshaft ops NAME`: show one in detail."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.command import command, plain, print_columns, print_json, print_tree
from camshaft.errors import SettingError

if TYPE_CHECKING:
    from camshaft.validation.status import OpOverview, VariantStatus

_Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Show these ops in detail.")]
_Markdown = Annotated[bool, typer.Option("--markdown", help="Print the machine-independent page docs/ops.md.")]


@command
def ops(names: _Names = None, json: options.Json = False, markdown: _Markdown = False) -> None:
    """List the ops and the validation status of their kernels.

    With names, show those ops in detail. Runs no validation; 'camshaft doctor' does."""
    if markdown and (names or json):
        came = f"the names {' '.join(names)}" if names else "--json"
        raise SettingError(f"--markdown prints the page of all ops: got {came:.80} with it; wanted it alone")
    if markdown:
        from camshaft.graph.passes.decompose import parts_of
        from camshaft.ops.catalog import page

        print(page(parts_of), end="")
        return
    from camshaft.validation.status import overview, row_answers

    rows = overview(names)
    if json:
        print_json({"ops": [_plain(row) for row in rows], "rows": plain(row_answers(rows))})
    elif names:
        for row in rows:
            _print_op(row)
    else:
        _print_all(rows)


def _plain(row: OpOverview) -> dict[str, Any]:
    entry: dict[str, Any] = plain(row.entry)
    return entry | {"statuses": plain(row.statuses)}


def _print_all(rows: Sequence[OpOverview]) -> None:
    from camshaft.validation.status import STATUSES

    used = [status for status in STATUSES if any(row.count(status) for row in rows)]
    table = [["op", *used, "computes"]]
    for row in rows:
        counts = [str(row.count(status) or "") for status in used]
        table.append([row.op.name, *counts, row.op.formula])
    taken = sum(max(len(line[i]) for line in table) + 2 for i in range(len(table[0]) - 1))
    if sys.stdout.isatty() or "COLUMNS" in os.environ:  # a pipe gets the whole formulas
        room = max(shutil.get_terminal_size().columns - taken, 8)
        table = [[*line[:-1], _cut(line[-1], room)] for line in table]
    print_columns(table, right=frozenset(range(1, len(used) + 1)))
    if "not tried" in used or "in part" in used:
        print(
            "'camshaft doctor' validates kernels that were not tried, and the remaining samples of those tried in part."
        )


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."


def _print_op(row: OpOverview) -> None:
    from camshaft import ops as all_ops
    from camshaft.graph.passes.decompose import parts_of

    entry = row.entry
    print(f"{entry.name}: {entry.formula}")
    parts = "primitive" if entry.primitive else parts_of(all_ops.get(entry.name))
    about = {"family": entry.family, "dtypes": entry.dtypes, "gradient": entry.gradient, "decomposition": parts}
    print_tree(about | {"rows": entry.rows}, indent=2)
    if not row.statuses and not entry.variants:
        print("  no kernels of its own: graphs and eager calls compute it by its decomposition")
        return
    table: list[tuple[object, ...]] = [("  variant", "backend", "status", "max error", "allowed", "seconds")]
    table += [(f"  {s.variant}", s.backend, s.status, *map(_number, _figures(s))) for s in row.statuses]
    print_columns(table, right=frozenset({3, 4, 5}))
    reasons = dict.fromkeys(
        (s.reason, s.backend if s.status == "absent" else f"{s.variant} on {s.backend}")
        for s in row.statuses
        if s.reason
    )
    for reason, what in reasons:
        print(f"  {what}: {reason}")


def _figures(status: VariantStatus) -> tuple[float | None, ...]:
    return status.max_error, status.tolerance, status.elapsed_s


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
