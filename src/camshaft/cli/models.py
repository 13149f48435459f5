"""`camshaft models`: list the models in the cache."""

from __future__ import annotations

import sys

from camshaft.cli import options
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json, size
from camshaft.models.catalog import DEFAULT_MODEL


@command
def models(json: options.Json = False) -> None:
    """List the models in the cache: name, size, path."""
    from camshaft.models import pull as library

    if json:
        print_json({"models_dir": library.models_dir(), "models": library.models()})
        return
    rows = [(model.name, size(model.nbytes), model.path) for model in library.models()]
    print_columns(rows, right=frozenset({1}))
    if not rows:
        print(f"no model in {library.models_dir()}; 'camshaft pull' fetches {DEFAULT_MODEL}", file=sys.stderr)
