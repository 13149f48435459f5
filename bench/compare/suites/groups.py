"""GROUPS: the groups of rows by the name that `--only` takes, and the targets of geometric means."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.compare.model_files import Watch
from bench.compare.suites import array_rows, executor_rows, language_rows, product_rows, start_rows
from bench.compare.suites.suite import Suite
from camshaft.errors import CamshaftError

Group = Callable[[int, Watch], Iterator[Suite]]
"""Yields the suites of a group for a number of threads; each is created when it is about to run."""

GROUPS: dict[str, Group] = {
    "models": language_rows.models,
    "formats": language_rows.formats,
    "sequences": language_rows.sequences,
    "context": language_rows.context,
    "products": product_rows.products,
    "matmul": array_rows.matmul,
    "attention": array_rows.attention,
    "elementwise": array_rows.elementwise,
    "executor": executor_rows.executor,
    "first-token": start_rows.first_token,
    "loading": start_rows.loading,
    "busy": language_rows.busy,
}
WANTED_MEANS = {"f32 matmul": 1.0, "bf16 matmul": 1.0}


class GroupError(CamshaftError):
    """An unknown group name."""


def chosen(names: str | None) -> dict[str, Group]:
    """The groups in a text such as 'models,executor' (None: all), in the table's order."""
    wanted = [name.strip() for name in names.split(",")] if names is not None else list(GROUPS)
    unknown = [name for name in wanted if name not in GROUPS]
    if unknown or not wanted:
        raise GroupError(f"--only {names}: there is no group {unknown[0]!r}; wanted some of {', '.join(GROUPS)}")
    return {name: group for name, group in GROUPS.items() if name in wanted}
