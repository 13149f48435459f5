"""PrefixRouter: Ray Serve's request router by cached prefixes."""

from __future__ import annotations

from random import Random
from typing import Any

from ray.serve.request_router import LocalityMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from camshaft.cluster.prefixes import RoutedPrefixes, choose


class PrefixRouter(LocalityMixin, RequestRouter):  # type: ignore[misc]
    """Routes calls whose argument `keys` has the keys of the prompt's blocks. Each handle has a router of its own.

    It is not a FIFOMixin, which would give the replica that was chosen for one request to another that came before."""

    def initialize_state(self, most_blocks: int, slack: int, is_random: bool = False) -> None:
        """Set what `choose` needs. `is_random`: as if no prompt was known."""
        self._prefixes: RoutedPrefixes[ReplicaID] = RoutedPrefixes(most_blocks)
        self._slack, self._random, self._is_random = slack, Random(), is_random

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The chosen replica, then those that are tried if it takes no more requests."""
        allowed = self.apply_locality_routing(pending_request)
        replicas = {each.replica_id: each for each in candidate_replicas if each.replica_id in allowed}
        n_open = await self._n_open(replicas)
        if not n_open:
            return [list(replicas.values())]
        keys = [] if pending_request is None or self._is_random else pending_request.kwargs.get("keys", [])
        chosen = choose(keys, n_open, self._prefixes, self._slack, self._random)
        self._prefixes.add(
            chosen, keys
        )  # now: the next request may begin alike, and be chosen for before this one is sent
        return [[replicas[chosen]], [each for name, each in replicas.items() if name != chosen]]

    async def _n_open(self, replicas: dict[ReplicaID, RunningReplica]) -> dict[ReplicaID, int]:
        """The open requests of each replica; those that do not say are left out."""
        found = {name: self.replica_queue_len_cache.get(name) for name in replicas}
        unknown = [replicas[name] for name, n in found.items() if n is None]
        if unknown:
            found |= {each.replica_id: n for each, n in await self._probe_queue_lens(unknown, 0)}
        return {name: n for name, n in found.items() if n is not None}

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Note where a request went, which may not be where it was to go."""
        self._prefixes.add(replica_id, [] if self._is_random else pending_request.kwargs.get("keys", []))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget what replicas had that are gone."""
        super().update_replicas(replicas)
        self._prefixes.keep(set(self.curr_replicas))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """The same for one."""
        super().on_replica_actor_died(replica_id)
        self._prefixes.keep(set(self.curr_replicas))
