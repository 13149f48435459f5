"""What a Ray cluster adds to a request, with 1 to 8 replicas, all on this machine.

    python -m bench.serving.cluster [--replicas 1 2 4 8] [--requests 200] [--rounds 3] [--json FILE] [--chart FILE]

Replicas have a stub in place of an engine: a token each 10 ms, whatever else they do. Its answers take 80 ms; what takes longer
is the way through Ray Serve: HTTP proxy, front, router, replica and back. "no Ray" is the same application in one process with
the same stub. The CPU time of the processes on that way is that of all requests of a load, by request; unlike the times that
pass, it depends little on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.rows import write
from bench.serving.serve import measured
from camshaft.cluster.front import Fronted
from camshaft.cluster.replica import News, Wanted
from camshaft.cluster.serving import Replicas, application, deploy, started
from camshaft.generate.engine.request import Update
from camshaft.serve.guard import Guard
from camshaft.serve.load.chart import chart
from camshaft.serve.load.report import LoadReport
from camshaft.serve.load.workload import Workload
from camshaft.serve.models.entry import Card
from camshaft.serve.models.models import Models
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.run import listen, make_server, url_of
from tests.support.fixtures import tiny_model

STEP_S, TOKENS = 0.010, 8
LOOPBACK, PORT, STORE_NBYTES = "127.0.0.2", 18970, 100 << 20  # Ray takes 127.0.0.1 for the address that others see
# What the titles of the processes on the way have.
PROCESSES = {
    "proxy": "ray::ProxyActor",
    "front": "ray::ServeReplica:camshaft:front",
    "replicas": "ray::ServeReplica:camshaft:0-",
}


@contextmanager
def nodes(n: int, cpus: int = 1) -> Iterator[Any]:
    """A Ray cluster of `n` nodes on this machine, by loopback addresses only."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    given = {"num_cpus": cpus, "object_store_memory": STORE_NBYTES, "node_ip_address": LOOPBACK}
    cluster = Cluster(initialize_head=True, head_node_args={**given, "include_dashboard": False})
    try:
        for _ in range(n - 1):
            cluster.add_node(**given)
        yield cluster
    finally:
        cluster.shutdown()


class Stub:
    """A replica without a model."""

    def __init__(self, spec: ModelSpec) -> None:
        pass

    async def answer(self, *, wanted: Wanted, **others: Any) -> AsyncIterator[list[News]]:
        """A token each STEP_S, counted from the beginning, so that what they take to send adds to none after them."""
        begun = time.perf_counter()
        for i in range(TOKENS):
            await asyncio.sleep(begun + (i + 1) * STEP_S - time.perf_counter())
            reason: Any = "length" if i == TOKENS - 1 else None
            yield [News(0, Update("word ", finish_reason=reason), 0, i + 1, 1e-6, STEP_S)]


class _Local:
    """The handle of a stub in this process."""

    def __init__(self) -> None:
        self.answer, self.remote = self, Stub(ModelSpec("", "")).answer

    def options(self, *, stream: bool) -> _Local:
        return self


def _measured(url: str, clients: int, requests: int, seed: int) -> LoadReport:
    return measured(url, Workload(requests, clients=clients, prompt_tokens=16, answer_tokens=TOKENS, seed=seed))


@contextmanager
def _without_ray(spec: ModelSpec) -> Iterator[str]:
    served = Fronted(spec, 1).open(_Local())
    models, begun = Models([Card(spec.name, lambda: served)]), threading.Event()
    models.put(spec.name, served)
    with listen("127.0.0.1", 0) as listening:
        server = make_server(models, Guard(), begun.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        begun.wait()
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join()


@dataclass(frozen=True)
class Load:
    """A load in one round. `cpu_ms` is by request, of each process on the way."""

    name: str
    clients: int
    report: LoadReport
    cpu_ms: dict[str, float]


def overhead(spec: ModelSpec, counts: Sequence[int], requests: int, rounds: int) -> list[Load]:
    """Loads of 1 and 16 clients in each round: without Ray, then with each number of replicas."""
    loads = []
    with nodes(1, cpus=2) as cluster, started(cluster.address, "127.0.0.1", PORT) as ray, _without_ray(spec) as alone:
        for i in range(rounds):
            for n in (0, *counts):
                if n:
                    free = {"max_replicas_per_node": None, "ray_actor_options": {"num_cpus": 0}}
                    deploy(ray, application(ray, [spec], Guard(), Replicas(n, n), Stub, **free))
                for clients in (1, 16):
                    loads.append(_load(f"http://127.0.0.1:{PORT}" if n else alone, n, clients, requests, i))
    return loads


def _load(url: str, n: int, clients: int, requests: int, seed: int) -> Load:
    _measured(url, clients, 16, -1 - seed)
    before = _cpu_s()
    report = _measured(url, clients, requests, seed)
    after = _cpu_s()
    name = f"{n} replica{'s' * (n > 1)}" if n else "no Ray"
    load = Load(name, clients, report, {each: 1e3 * (after[each] - before[each]) / requests for each in PROCESSES})
    print(_row([load]), file=sys.stderr, flush=True)
    return load


def _cpu_s() -> dict[str, float]:
    """The CPU time of the processes of each kind so far."""
    seconds = dict.fromkeys(PROCESSES, 0.0)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended
                title = (folder / "cmdline").read_text("utf-8", "replace")
                kind = next((name for name, words in PROCESSES.items() if words in title), None)
                if kind is not None:
                    ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                    seconds[kind] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return seconds


def _row(loads: Sequence[Load]) -> dict[str, Any]:
    """Medians over the rounds, with least and greatest: ms above those of the stub, requests per second, CPU time in ms."""
    figures: dict[str, Callable[[LoadReport], float]] = {
        "first_token_above_ms": lambda report: 1e3 * (report.first_token_s.p50 - STEP_S),
        "answer_above_ms": lambda report: 1e3 * (report.answer_s.p50 - TOKENS * STEP_S),
        "requests_per_s": lambda report: report.answers_per_s,
    }
    row: dict[str, Any] = {"replicas": loads[0].name, "clients": loads[0].clients}
    row["failed"] = sum(load.report.failed for load in loads)
    for name, figure in figures.items():
        values = [figure(load.report) for load in loads]
        row[name] = {how.__name__: round(how(values), 1) for how in (median, min, max)}
    cpu = {name: round(median(load.cpu_ms[name] for load in loads), 2) for name in PROCESSES}
    return row | {"cpu_ms": cpu}


def rows_of(loads: Sequence[Load]) -> list[dict[str, Any]]:
    """A row for each number of replicas and clients."""
    kinds = dict.fromkeys((load.name, load.clients) for load in loads)
    return [_row([load for load in loads if (load.name, load.clients) == kind]) for kind in kinds]


def _chart(loads: Sequence[Load]) -> str:
    series: dict[str, dict[str, list[float]]] = {}
    for load in loads:
        for key, values in load.report.times.items():
            series.setdefault(load.name, {}).setdefault(key, []).extend(values)
    title = f"A stub of {TOKENS} tokens, one each {1e3 * STEP_S:g} ms, behind Ray Serve: 1 client"
    return chart(title, series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = str(tiny_model("llama", Path(folder)))
        spec = ModelSpec(model, "tiny", options={"context": 512, "sessions": 64})
        loads = overhead(spec, given.replicas, given.requests, given.rounds)
    rows = rows_of(loads)
    if given.chart:
        given.chart.write_text(_chart([load for load in loads if load.clients == 1]), "utf-8")
    print("\n".join(map(str, rows)))
    write(given.json, rows)


if __name__ == "__main__":
    main()
