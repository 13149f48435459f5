"""Specs of models for the nodes of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from camshaft.errors import SettingError
from camshaft.serve.models.config import ServerConfig
from camshaft.serve.models.entry import CHAT
from camshaft.serve.models.served import Served
from camshaft.serve.models.spec import ModelSpec


def on_nodes(spec: ModelSpec) -> ModelSpec:
    """The spec for processes with other working folders: paths of files that are here become absolute."""
    options = dict(spec.options)
    if "adapters" in options:
        options["adapters"] = tuple((_absolute(path), strength) for path, strength in options["adapters"])
    if "mmproj" in options:
        options["mmproj"] = _absolute(options["mmproj"])
    drafts = spec.speculate if spec.draft_model is None else _absolute(spec.draft_model)
    return replace(spec, model=_absolute(spec.model), options=options, speculate=drafts)


def started_model(spec: ModelSpec) -> Served:
    """The model of a spec on a node, opened, with its engine running: what a replica and an actor of a batch begin with."""
    served = spec.open()
    assert isinstance(served, Served)
    served.start()
    return served


def _absolute(path: str) -> str:
    return os.path.abspath(path) if os.path.exists(path) else path


def cluster_specs(config: ServerConfig) -> Sequence[ModelSpec]:
    """The models of a server for a cluster. Raises SettingError for what a cluster does not do."""
    if config.memory_limit_nbytes is not None:
        raise SettingError("memory_limit with --ray: each model has its own processes; wanted none")
    for spec in config.specs:
        if spec.kind != CHAT:
            raise SettingError(
                f"{spec.name!r} with --ray: a cluster serves models that write text, none for {spec.kind}"
            )
        if "mmproj" in spec.options:
            raise SettingError(f"mmproj of {spec.name!r} with --ray: a cluster's server takes no images; wanted none")
        if spec.idle_s is not None:
            raise SettingError(f"idle_unload_seconds of {spec.name!r} with --ray; wanted --replicas 0:N")
    return [on_nodes(spec) for spec in config.specs]
