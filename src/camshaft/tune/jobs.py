"""Queue what a program used for the background process that measures kernels (measured_choice.py), and start that process.

A job is a JSON file in the store's folder, so that one whose process was killed is done after a later program.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camshaft.errors import BackendError, StoreError, reason_of
from camshaft.process import thread_count
from camshaft.settings import setting, settings
from camshaft.store.files import atomic_file, private_folder
from camshaft.store.store import store

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph
    from camshaft.ops.op import NodeSpec, Op
    from camshaft.selection.choice import Choice

# The nodes that carry this share of a plan's estimated time are measured; rivals estimated slower by more than RIVAL_WITHIN
# are not: a cost model was never seen wrong by more than a factor of 2.2.
SHARE = 0.9
RIVAL_WITHIN = 4.0
ATTEMPTS = 3
# Of nodes that are recorded until the process ends: shorter ones are not worth a process, and memory stays bounded.
LEAST_NS, MOST_RECORDED = 20_000.0, 256
_MODULE = "camshaft.tune.measured_choice"


@dataclass(frozen=True)
class Used:
    """A node that was compiled, with its choice and how often it is run."""

    op: Op
    node: NodeSpec
    choice: Choice
    override: str | None
    cold: bool = False
    count: int = 1

    @property
    def ns(self) -> float:
        return self.count * (self.choice.ns or 0.0)


def used_in(graph: Graph, choices: Sequence[Choice], override: str | None) -> list[Used]:
    """The distinct nodes of a plan."""
    from camshaft.tune.graphs import uses_of

    counts: Counter[object] = Counter()
    choice_of: dict[object, Choice] = {}
    for node, choice in zip(graph.nodes, choices, strict=True):
        key = (node.op.name, node.spec.key, node.device or override)
        counts[key] += 1
        choice_of[key] = choice
    uses = [use for use in uses_of([graph], override) if use.key in choice_of]
    return [Used(u.op, u.node, choice_of[u.key], u.override, u.cold, counts[u.key]) for u in uses]


def heaviest(used: Iterable[Used]) -> list[Used]:
    """The nodes that carry SHARE of the estimated time, heaviest first; of these the ones with a choice to measure."""
    ranked = sorted(used, key=lambda u: -u.ns)
    wanted, passed = SHARE * sum(u.ns for u in ranked), 0.0
    found = []
    for u in ranked:
        if passed >= wanted:
            break
        passed += u.ns
        if not u.choice.measured and _has_rival(u.choice):
            found.append(u)
    return found


def _has_rival(choice: Choice) -> bool:
    return choice.ns is not None and any(x.ns is not None and x.ns <= RIVAL_WITHIN * choice.ns for x in choice.losers)


_paused = ContextVar("paused", default=False)


def is_on() -> bool:
    """Whether programs measure in the background: not while plans are instrumented or tuned."""
    if not setting("measure") or setting("tune") or _paused.get():
        return False
    return not settings().instrumented


@contextmanager
def paused() -> Iterator[None]:
    """Measure nothing that the body uses: it measures itself, and a second process would disturb it."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


def measure_later(plans: Mapping[str, Sequence[Used]], threads: int, saved: Any = None) -> None:
    """Queue the heaviest nodes of each plan and start the background process, if any job waits. `saved` are the cached plans
    among them (SavedPlans). If the store cannot be written nothing is measured, with the store's one warning."""
    try:
        ranked = [(rank, name, u) for name, used in plans.items() for rank, u in enumerate(heaviest(used))]
        ranked.sort(key=lambda row: row[0])  # every plan's heaviest first: the budget may not last for all
        uses = [use for _, name, u in ranked if (use := _use_json(name, u)) is not None]
        if uses:
            _write({"uses": uses, "threads": threads, "saved": None if saved is None else asdict(saved)})
        if waiting():
            start()
    except StoreError as error:
        store().go_on_without(error)
    except OSError as error:
        store().go_on_without(StoreError(f"kernels are not measured: {reason_of(error)}"))


@dataclass
class _Record:
    """Kernels that this process compiled. `process` is its id: a forked child does not measure its parent's."""

    process: int = 0
    threads: int | None = None
    used: dict[tuple[str, object, str | None], Used] = field(default_factory=dict)


_record = _Record()


def measure_at_exit(used: Iterable[Used], threads: int | None = None) -> None:
    """Measure these nodes, with the others recorded, when this process has ended: on `threads` threads, or on those that are
    available then. Does nothing where measuring is off."""
    if not is_on():
        return
    if _record.process != os.getpid():
        _record.used.clear()
        _record.process = os.getpid()
        atexit.register(_at_exit, os.getpid())
    _record.threads = threads
    for u in used:
        if len(_record.used) < MOST_RECORDED and not u.choice.measured and _has_rival(u.choice):
            _record.used.setdefault((u.op.name, u.node.key, u.override), u)


def _at_exit(process: int) -> None:
    if process == os.getpid() and is_on():
        used = list(_record.used.values())  # at once: daemon threads may add to it
        measure_later({"": [u for u in used if u.ns >= LEAST_NS]}, _record.threads or thread_count())


def _use_json(plan: str, used: Used) -> dict[str, Any] | None:
    """The use for a job; None if another process cannot make its op or node."""
    from camshaft import ops
    from camshaft.tune.compile_worker import node_json

    if used.op.name not in ops.NAMES or ops.get(used.op.name) is not used.op or ops.has_registered():
        return None
    try:
        node = node_json(used.node)
    except BackendError:
        return None
    return {"plan": plan, "op": used.op.name, "node": node, "override": used.override, "cold": used.cold}


def folder() -> Path:
    """The folder of jobs."""
    return store().leases.folder / "measure"


def waiting() -> list[Path]:
    """The jobs that wait, in a fixed order. Links and whatever else is not a file of ours are left alone."""
    with suppress(OSError):
        found = [Path(e.path) for e in os.scandir(folder()) if e.is_file(follow_symlinks=False)]
        return sorted(path for path in found if path.suffix == ".json" and path.stem.rpartition(".")[2].isdigit())
    return []


def begin(path: Path) -> Path | None:
    """Count an attempt at the job in its name; the last one deletes it. Returns its new path, None without a next attempt."""
    stem, _, attempt = path.stem.rpartition(".")
    if int(attempt) + 1 >= ATTEMPTS:
        path.unlink(missing_ok=True)
        return None
    return path.rename(path.with_name(f"{stem}.{int(attempt) + 1}.json"))


def _write(job: dict[str, Any]) -> None:
    data = json.dumps(job, sort_keys=True).encode()
    private_folder(store().leases.folder)
    private_folder(folder())
    name = sha256(data).hexdigest()[:32]
    with atomic_file(folder() / f"{name}.0.json") as file:
        file.write(data)


def start() -> None:
    """Start the background process. It has no terminal and outlives this process; at most one measures at a time."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        "CAMSHAFT_CACHE_DIR": str(setting("cache_dir").absolute()),
        "CAMSHAFT_MEASURE": "0",
    }
    null = subprocess.DEVNULL
    flags = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) | getattr(subprocess, "DETACHED_PROCESS", 0)
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=null,
        stdout=null,
        stderr=null,
        env=environment,
        start_new_session=True,
        creationflags=flags,
    )
    process.returncode = 0  # it is not waited for: prevents Popen's warning that it still runs
