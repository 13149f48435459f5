"""Connect to a Ray cluster, and what its nodes have."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from camshaft.errors import CamshaftError, MissingExtraError, SettingError

EXTRA = "cluster"
_CONNECT_S = 5.0
_CLASS = re.compile(r"^[\w.]*(Error|Exception): ")


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

    Raises SettingError for anything that is not an address, and ClusterError if no cluster answers there."""
    ray = import_ray(purpose)
    if address != "auto":
        _check_address(address)
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


def _check_address(address: str) -> None:
    """Raise unless something listens at HOST:PORT, which Ray itself waits for during two minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"--ray {address!r}; wanted HOST:PORT of a Ray cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"--ray {address}: no Ray cluster answers: {error}") from None


@dataclass(frozen=True)
class Places:
    """A place on each node that has CPUs: by these, servers and batches put one copy of a model on a node."""

    of_nodes: tuple[float, ...]  # the CPUs of each node

    @property
    def n(self) -> int:
        """The number of nodes."""
        return len(self.of_nodes)

    @property
    def cpus(self) -> float:
        """Returns the CPUs of each replica: all CPUs of the smallest node."""
        return min(self.of_nodes)


def places_of(ray: Any) -> Places:
    """The places of a cluster now. Raises ClusterError if no node has a CPU."""
    found = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    places = Places(tuple(n for n in found if n >= 1))
    if not places.n:
        raise ClusterError("the cluster has no node with a CPU")
    return places


def cause_of(error: object) -> str:
    """Returns the end of a Ray error's text, which has the message of the process that raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _CLASS.sub("", lines[-1]) if lines else type(error).__name__
