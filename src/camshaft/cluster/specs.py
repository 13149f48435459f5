"""Specs of models for the nodes of a cluster."""

from __future__ import annotations

import os
from dataclasses import replace

from camshaft.serve.models.config import ModelSpec


def on_nodes(spec: ModelSpec) -> ModelSpec:
    """The spec for processes with other working folders: paths of files that are here become absolute."""
    options = dict(spec.options)
    if "adapters" in options:
        options["adapters"] = tuple((_absolute(path), strength) for path, strength in options["adapters"])
    return replace(spec, model=_absolute(spec.model), options=options)


def _absolute(path: str) -> str:
    return os.path.abspath(path) if os.path.exists(path) else path
