"""Batch on a cluster: a Ray Data job over a pool of actors, one a node, each with the model and an engine.

Ray neither starts a lost actor again nor repeats its tasks, since on a cluster that is smaller now both would wait for ever. What
is missing at the end of a job is the input of the next one, over the nodes that are left.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camshaft.cluster.connect import ClusterError, Places, cause_of, connected, places_of
from camshaft.cluster.rows import Ledger
from camshaft.cluster.specs import started_model
from camshaft.serve.batch.envelopes import ENVELOPE_NBYTES
from camshaft.serve.batch.files import Line, Results, check_paths, read_lines, result_line
from camshaft.serve.batch.run import Progress, Tally, answer_lines, is_answer
from camshaft.serve.models.served import MOST_BODY_NBYTES, Embedder
from camshaft.serve.models.spec import ModelSpec

if TYPE_CHECKING:
    import pyarrow

_PLACE_S = 60.0  # how long the places of the actors may take to be free
_LOOK_S = 1.0
_MOST_LINE_NBYTES = MOST_BODY_NBYTES + ENVELOPE_NBYTES
_TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")


@dataclass
class _Collected:
    """The results of a block, as rows of a table."""

    done: frozenset[bytes] = frozenset()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def write(self, key: bytes, custom_id: str | None, response: dict[str, Any] | None, error: Any) -> None:
        """Take a result."""
        line = result_line(key, custom_id, response, error)
        self.rows.append({"key": key, "result": line, "is_answer": is_answer(response)})


class Answerer:
    """An actor: the model of a node, and its engine. Called with a table of lines, it returns one of results."""

    def __init__(self, spec: ModelSpec, embed: ModelSpec | None, most_open: int) -> None:
        embedder = None if embed is None else embed.open()
        assert embedder is None or isinstance(embedder, Embedder)
        self._served, self._most_open = replace(started_model(spec), embedder=embedder), most_open

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        """The results of lines. The first row has the numbers of tokens of all."""
        lines = [Line(row["number"], row["key"], row["text"]) for row in table.to_pylist()]
        collected, tally = _Collected(), Tally(len(lines), 0)
        answer_lines(self._served, lines, collected, tally, most_open=self._most_open, progress=lambda tally: None)
        return _results_table(collected.rows, tally)


def _results_table(rows: Sequence[dict[str, Any]], tally: Tally) -> pyarrow.Table:
    import pyarrow

    counts = {name: [getattr(tally, name)] + [0] * (len(rows) - 1) for name in _TOKENS}
    return pyarrow.table({name: [row[name] for row in rows] for name in rows[0]} | counts)


def _lines_table(lines: Sequence[Line]) -> pyarrow.Table:
    import pyarrow

    return pyarrow.table({name: [getattr(line, name) for line in lines] for name in ("number", "key", "text")})


def run_batch(
    address: str,
    spec: ModelSpec,
    source: Path,
    target: Path,
    *,
    embed: ModelSpec | None,
    most_open: int,
    progress: Progress,
) -> Tally:
    """As `serve.batch.run.run_batch`, with the model on each node of the Ray cluster at an address.

    Raises ClusterError if there is no cluster or no room in it, or if a job ends without a result."""
    check_paths(source, target)
    with Results(target) as results, connected(address, "camshaft batch --ray") as ray:
        tally = Tally(results.check_source(source, _MOST_LINE_NBYTES), len(results.done))
        ledger, begun = Ledger(results, tally), time.perf_counter()

        def report() -> None:
            tally.elapsed_s = time.perf_counter() - begun
            progress(tally)

        report()
        run_jobs(ledger, lambda: read_lines(source, _MOST_LINE_NBYTES), _Job(ray, spec, embed, most_open), report)
    return tally


def run_jobs(
    ledger: Ledger,
    lines: Callable[[], Iterable[Line]],
    job: Callable[[Iterable[list[Line]], bool], Iterator[dict[str, Any]]],
    report: Callable[[], None],
) -> None:
    """Run jobs until every line has a result. `job` takes the blocks of lines, and whether it is to raise what fails.

    Raises what a job raises after one that made no result."""
    tally, is_last = ledger.tally, False
    while tally.n_done < tally.n_requests:
        before = tally.n_done
        for row in job(ledger.blocks(lines()), is_last):
            if ledger.take(row["key"], row["result"], row["is_answer"]):
                report()
            for name in _TOKENS:
                setattr(tally, name, getattr(tally, name) + row[name])
        if is_last and tally.n_done == before:
            raise ClusterError("the job on the cluster made no results, and no error")
        is_last = tally.n_done == before
    report()


@dataclass
class _Job:
    """A Ray Data job that answers lines."""

    ray: Any
    spec: ModelSpec
    embed: ModelSpec | None
    most_open: int

    def __call__(self, blocks: Iterable[list[Line]], is_strict: bool) -> Iterator[dict[str, Any]]:
        """The results, in any order; those of actors that were lost are missing, unless `is_strict`."""
        data, put = self.ray.data, self.ray.put
        refs = [put(_lines_table(block)) for block in blocks]
        if not refs:
            return
        context = data.DataContext.get_current().copy()
        context.max_errored_blocks, context.enable_progress_bars = 0 if is_strict else -1, False
        for name in ("ray.data", "ray"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with data.DataContext.current(context), ExitStack() as stack:
            asked = data.from_arrow_refs(refs)  # runs tasks, which need a CPU that has no place yet
            n, cpus, strategy = stack.enter_context(_places(self.ray, len(refs)))
            answered = self._answered(asked, n, cpus, strategy)
            try:
                for table in answered.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                    yield from table.to_pylist()
            except self.ray.exceptions.RayError as error:
                if is_strict:
                    raise ClusterError(f"the job on the cluster failed: {cause_of(error)}") from error

    def _answered(self, asked: Any, n: int, cpus: float, strategy: Any) -> Any:
        """The data set of results, by a pool of `n` actors."""
        with warnings.catch_warnings():
            # There is no other way yet to give these options of actors.
            warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
            return asked.map_batches(
                Answerer,
                fn_constructor_args=(self.spec, self.embed, self.most_open),
                batch_size=None,
                batch_format="pyarrow",
                # The next block begins while the last answers of one are written.
                compute=self.ray.data.ActorPoolStrategy(
                    size=n, enable_true_multi_threading=True, max_concurrent_calls_per_actor=2
                ),
                num_cpus=cpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy,
            )


@contextmanager
def _places(ray: Any, most: int) -> Iterator[tuple[int, float, Any]]:
    """A place on each of up to `most` nodes: their number, the CPUs of each, and the strategy that puts actors there.

    A node that was lost counts until the cluster notices that, so the places are asked for anew when the nodes change."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    until, n, cpus = time.monotonic() + _PLACE_S, 0, 0.0
    while time.monotonic() < until:
        there = places_of(ray)
        n, cpus = min(there.n, most), there.cpus
        places = placement_group([{"CPU": cpus}] * n, strategy="STRICT_SPREAD")
        try:
            if _are_there(ray, places, there, until):
                yield n, cpus, PlacementGroupSchedulingStrategy(places)
                return
        finally:
            remove_placement_group(places)
    raise ClusterError(f"{n} nodes with {cpus:g} free CPUs each were not there within {_PLACE_S:g} s")


def _are_there(ray: Any, places: Any, there: Places, until: float) -> bool:
    """Whether the places are there before the nodes change, or the time is over."""
    while time.monotonic() < until and places_of(ray) == there:
        if places.wait(_LOOK_S):
            return True
    return False
