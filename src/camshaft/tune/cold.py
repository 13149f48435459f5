"""Emptying the caches between two runs, so that a kernel finds its operands in memory, as weights are in a model's plan."""

from __future__ import annotations

from camshaft.dispatch.machine import capabilities
from camshaft.plan.execute import BoundSchedule, bind
from camshaft.plan.memory import make_schedule
from camshaft.plan.schedule import Buffer, Lifetime, copy_thunk
from camshaft.plan.workers import aligned_bytes

ASSUMED_CACHE_NBYTES = 32 << 20


def last_cache_nbytes() -> int:
    """Bytes of the largest cache, 32 MiB where the operating system does not tell."""
    return max(size or 0 for size in capabilities().cache_nbytes.values()) or ASSUMED_CACHE_NBYTES


def evictor(threads: int) -> BoundSchedule:
    """A schedule whose run copies as many bytes as the last cache holds to as many others, by all workers: twice the cache is
    touched, and every worker's own caches with it. It also leaves the workers awake."""
    nbytes = last_cache_nbytes()
    source, destination = (Buffer(name, nbytes, Lifetime.STATE) for name in ("source", "destination"))
    thunk = copy_thunk("evict", source.slice(), destination.slice())
    schedule, memory = make_schedule([thunk])
    buffers = {source: aligned_bytes(nbytes, 64), destination: aligned_bytes(nbytes, 64)}
    return bind(schedule, memory, buffers=buffers, threads=threads)
