"""Serves models on a Ray cluster: a deployment of replicas per model, and one that answers HTTP in front of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from camshaft.cluster.connect import ClusterError, cause_of, connected, places_of
from camshaft.cluster.front import Front, Fronted
from camshaft.cluster.replica import Replica
from camshaft.errors import SettingError
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.serve.connection import KEEP_OPEN_S, MOST_CONNECTIONS
from camshaft.serve.guard import Guard
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.request_log import LogPlace
from camshaft.serve.run import GRACE_S

APP = "camshaft"
_ROUTER = "camshaft.cluster.router:PrefixRouter"
_MOST_STARTS = 3  # attempts to start a replica before deployment fails
_HEAD = "node:__internal_head__"  # a resource that only Ray's head node has
_RANGE = re.compile(r"(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class Replicas:
    """How many replicas each model has: from `least` to `most`, by the length of their queues."""

    least: int
    most: int

    def options(self, slots: int) -> dict[str, Any]:
        """Options of a deployment whose replicas generate `slots` answers at once."""
        if self.least == self.most:
            return {"num_replicas": self.most}
        scaled = {"min_replicas": self.least, "max_replicas": self.most, "target_ongoing_requests": slots}
        return {"autoscaling_config": scaled}


def read_replicas(text: str) -> Replicas:
    """'N' or 'LEAST:MOST'. Raises SettingError."""
    found = _RANGE.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 <= least <= most or not most:
        raise SettingError(f"--replicas {text!r:.40}; wanted a number from 1 up, or LEAST:MOST such as 1:4")
    return Replicas(least, most)


def deployment_names(specs: Sequence[ModelSpec]) -> list[str]:
    """Returns a name for each model's deployment, with characters that Ray Serve and its metrics allow."""
    return [f"{i}-{re.sub(r'[^A-Za-z0-9_.-]', '-', spec.name)}" for i, spec in enumerate(specs)]


def router_options(spec: ModelSpec) -> dict[str, Any]:
    """Returns the router's options: the blocks of a replica's cache, and by how much queues may differ and still count as
    balanced."""
    slots, context = spec.options["sessions"], spec.options["context"]
    whole = slots * -(-context // BLOCK_TOKENS)
    most = min(whole, -(-spec.options.get("cache_tokens", whole * BLOCK_TOKENS) // BLOCK_TOKENS))
    return {"most_blocks": most, "slack": max(1, slots // 2)}


def _options(spec: ModelSpec, replicas: Replicas, cpus: float) -> dict[str, Any]:
    """Returns the options of a model's deployment."""
    return {
        "ray_actor_options": {"num_cpus": cpus},
        "max_replicas_per_node": 1,
        "max_constructor_retry_count": _MOST_STARTS,
        "max_ongoing_requests": spec.options["sessions"] + spec.queue,
        "graceful_shutdown_timeout_s": GRACE_S,
        "request_router_config": {"request_router_class": _ROUTER, "request_router_kwargs": router_options(spec)},
        **replicas.options(spec.options["sessions"]),
    }


def application(
    ray: Any,
    specs: Sequence[ModelSpec],
    guard: Guard,
    replicas: Replicas | None,
    replica: type[Any] = Replica,
    log: LogPlace | None = None,
    **options: Any,
) -> Any:
    """Returns the application for Ray Serve. Without `replicas` there is one of each model on every node with CPUs. The front,
    which writes `log`, is on the head node, as the proxy is.

    replica, options: another class for the replicas, and other options of their deployments."""
    deployment, places = ray.serve.deployment, places_of(ray)
    wanted = replicas or Replicas(places.n, places.n)
    fronted = [Fronted(spec, wanted.most) for spec in specs]
    handles = [
        deployment(replica)
        .options(name=name, **{**_options(spec, wanted, places.cpus / len(specs)), **options})
        .bind(spec)
        for name, spec in zip(deployment_names(specs), specs, strict=True)
    ]
    front = deployment(ray.serve.ingress()(Front)).options(
        name="front",
        ray_actor_options={"num_cpus": 0, "resources": {_HEAD: 0.001}},
        max_constructor_retry_count=_MOST_STARTS,
        max_ongoing_requests=MOST_CONNECTIONS,
        graceful_shutdown_timeout_s=GRACE_S,
    )
    return front.bind(fronted, guard, handles, log)


def deploy(ray: Any, app: Any) -> None:
    """Deploy the application in place of a running one. Raises ClusterError with the error of a replica that does not start."""
    try:
        ray.serve.run(app, name=APP)
    except RuntimeError as error:
        found = ray.serve.status().applications.get(APP)
        messages = [each.message for each in found.deployments.values() if each.message] if found is not None else []
        raise ClusterError(f"the models were not deployed: {cause_of(messages[0] if messages else error)}") from None


@contextmanager
def started(address: str, host: str, port: int) -> Iterator[Any]:
    """Ray with Ray Serve on the cluster at an address, which answers at `host` and `port` of the head node, until the block ends.

    Raises ClusterError if Ray Serve runs there already."""
    if not port:
        raise SettingError("port 0 with --ray; wanted the number of a port")
    with connected(address, "camshaft serve --ray") as ray:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if ray.serve.status().proxies:
            raise ClusterError(f"Ray Serve runs on the cluster {address} already; end it with: serve shutdown")
        try:
            http = {"host": host, "port": port, "keep_alive_timeout_s": int(KEEP_OPEN_S)}
            ray.serve.start(proxy_location="HeadOnly", http_options=http)
            yield ray
        finally:
            ray.serve.shutdown()


@contextmanager
def served(
    address: str,
    specs: Sequence[ModelSpec],
    guard: Guard,
    *,
    replicas: Replicas | None,
    host: str,
    port: int,
    log: LogPlace | None = None,
) -> Iterator[None]:
    """Models served by a cluster until the block ends. Raises as `started` and `deploy`."""
    with started(address, host, port) as ray:
        deploy(ray, application(ray, specs, guard, replicas, log=log))
        yield
