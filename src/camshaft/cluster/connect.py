"""Connect to a Ray cluster, and what its nodes have."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from camshaft.errors import CamshaftError, MissingExtraError, SettingError

EXTRA = "cluster"


class ClusterError(CamshaftError):
    """A cluster cannot be reached, has no room, or failed."""


def import_ray(purpose: str) -> Any:
    """The package ray with Ray Serve and Ray Data. Raises MissingExtraError."""
    try:
        import ray
        import ray.data
        import ray.serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), EXTRA, purpose) from None
    return ray


@contextmanager
def connected(address: str, purpose: str) -> Iterator[Any]:
    """Ray, connected to the cluster at an address: HOST:PORT, or 'auto' for the one of this machine.

    Raises SettingError for what is no address, and ClusterError if no cluster answers there."""
    if address != "auto" and not address.rpartition(":")[2].isdigit():
        raise SettingError(f"--ray {address!r}; wanted HOST:PORT of a Ray cluster's head, or auto")
    ray = import_ray(purpose)
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"--ray {address}: no Ray cluster answers: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def nodes_cpus(ray: Any) -> list[float]:
    """The CPUs of each node that has some. Raises ClusterError if there is none."""
    found = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    found = [n for n in found if n >= 1]
    if not found:
        raise ClusterError("the cluster has no node with a CPU")
    return found
