"""GROUPS: which rows there are, by the name that `--only` takes, and what is wanted of a family's geometric mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.compare import array_rows, executor_rows, language_rows, product_rows, start_rows
from bench.compare.model_files import Watch
from bench.compare.suite import Suite
from camshaft.errors import CamshaftError

Group = Callable[[int, Watch], Iterator[Suite]]
"""The stands of a group for so many threads, each made when it is its turn."""

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
    """A group that does not exist."""


def chosen(names: str | None) -> dict[str, Group]:
    """Those of a text such as 'models,executor', all of them for None; in the table's order."""
    wanted = [name.strip() for name in names.split(",")] if names is not None else list(GROUPS)
    unknown = [name for name in wanted if name not in GROUPS]
    if unknown or not wanted:
        raise GroupError(f"--only {names}: there is no group {unknown[0]!r}; wanted some of {', '.join(GROUPS)}")
    return {name: group for name, group in GROUPS.items() if name in wanted}
