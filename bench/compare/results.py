"""Results: rows of measurements in a JSON file that a later run can continue."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import exp, log
from pathlib import Path
from typing import Any

from bench.compare.figures import Spread, machine
from bench.compare.interleaved import ROUNDS, Measured
from bench.compare.suites.suite import OURS, UNITS, Suite, Target, Task
from camshaft.errors import CamshaftError
from camshaft.observe.machine_peak import MachinePeak
from camshaft.store.files import atomic_file

SCHEMA = 1
SAME = (
    "cpu",
    "llvm_cpu",
    "usable_cores",
    "memory_nbytes",
)  # facts that must match to continue a file


class ResultsError(CamshaftError):
    """A file that is not a results file, or from another machine or commit."""


def source_version() -> str:
    """The commit of this source tree, with '-dirty' for local changes, or the installed version."""
    here = Path(__file__)
    tracked = [
        "git",
        "ls-files",
        "--error-unmatch",
        here.name,
    ]  # fails where the installed package is inside an unrelated repository
    described = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        for command in (tracked, described):
            done = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return version("camshaft")
    return done.stdout.strip()


def row_of(suite: Suite, task: Task, found: Measured, peak: MachinePeak | None) -> dict[str, Any]:
    """A row as JSON: each peer's measurements and spread in the task's unit, ratios to the best peer, targets."""
    unit = UNITS[task.unit]
    peers = {
        name: {
            **found.about.get(name, {}),
            "answers": [float(f"{value:.6g}") for value in values],
            task.unit: Spread.of(values).map(lambda v: unit.of(v, task.amount)).rounded(),
        }
        for name, values in found.answers.items()
    }
    row: dict[str, Any] = {"name": task.name, "group": suite.group, "threads": suite.threads, "unit": task.unit}
    row |= {"family": task.family, "busy": suite.busy, "rounds": found.rounds, "sides": peers, "absent": found.absent}
    row |= {"target": {name: value for name, value in asdict(task.target).items() if value not in (None, {})}}
    if task.nbytes or task.ops:
        row["work"] = {"nbytes": task.nbytes, "ops": dict(task.ops)}
    return row | judged(task, found, peak)


def judged(task: Task, found: Measured, peak: MachinePeak | None) -> dict[str, Any]:
    """The ratio to the best peer (of medians, and the range over rounds), the share of peak, and which targets are met."""
    ours, unit = found.answers.get(OURS), UNITS[task.unit]
    if not ours:
        return {"met": {}}
    median = statistics.median(ours)
    made: dict[str, Any] = {"met": {}}
    peers = {name: statistics.median(values) for name, values in found.answers.items() if name != OURS}
    if peers:
        best = min(peers, key=lambda name: peers[name])
        ratios = [theirs / mine for mine, theirs in zip(ours, found.answers[best], strict=False)]
        made |= {"best_peer": best, "ratio": round(peers[best] / median, 3)}
        made["ratios"] = {name: round(theirs / median, 3) for name, theirs in peers.items()}
        made |= {"ratio_min": round(min(ratios), 3), "ratio_max": round(max(ratios), 3)}
    if peak is not None and (task.nbytes or task.ops):
        made["peak_share"] = peak_share(peak, task.nbytes, task.ops, median)
    made["met"] = met(task.target, made, unit.of(median, task.amount), unit.rate)
    return made


def peak_share(peak: MachinePeak, nbytes: float, ops: Mapping[str, float], seconds: float) -> float:
    """The minimum time at the machine's peak rates over the measured time."""
    return round(peak.least_s(nbytes, ops) / seconds, 3)


def with_peak(row: dict[str, Any], peak: MachinePeak) -> dict[str, Any]:
    """A row with its share recomputed for another peak."""
    if "work" not in row or OURS not in row["sides"]:
        return row
    share = peak_share(peak, **row["work"], seconds=statistics.median(row["sides"][OURS]["answers"]))
    wanted = row["target"].get("share")
    result = {} if wanted is None else {"share": share >= wanted}
    return row | {"peak_share": share, "met": row["met"] | result}


def met(target: Target, made: dict[str, Any], figure: float, rate: bool) -> dict[str, bool]:
    """Which targets are met, of those that can be judged."""
    outcomes = {}
    for name, wanted, got in (
        ("ratio", target.ratio, made.get("ratio")),
        ("floor", target.floor, made.get("ratio")),
        ("share", target.share, made.get("peak_share")),
    ):
        if wanted is not None and got is not None:
            outcomes[name] = bool(got >= wanted)
    outcomes |= {
        name: bool(made["ratios"][name] >= n) for name, n in target.against.items() if name in made.get("ratios", {})
    }
    if target.figure is not None:
        outcomes["figure"] = figure >= target.figure if rate else figure <= target.figure
    return outcomes


def means(rows: Iterable[dict[str, Any]], wanted: dict[str, float]) -> list[dict[str, Any]]:
    """The geometric mean of ratios per family and number of threads. `wanted` has the targets by family."""
    by_family: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row["family"] and "ratio" in row:
            by_family.setdefault((row["group"], row["family"], row["threads"]), []).append(row["ratio"])
    made = []
    for (group, family, threads), ratios in by_family.items():
        mean = round(exp(sum(map(log, ratios)) / len(ratios)), 3)
        row = {"group": group, "family": family, "threads": threads, "n": len(ratios), "ratio": mean}
        row |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
        if family in wanted:
            row |= {"target": wanted[family], "met": mean >= wanted[family]}
        made.append(row)
    return made


@dataclass
class Results:
    """Rows by (group, name, threads), peaks by threads, and the file to store them in, if any. `rounds` is the usual number of
    rounds per row."""

    path: Path | None
    machine: dict[str, Any] = field(default_factory=machine)
    source: str = field(default_factory=source_version)
    peaks: dict[int, MachinePeak] = field(default_factory=dict)
    rows: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    wanted: dict[str, float] = field(default_factory=dict)
    rounds: int = ROUNDS
    seen: set[tuple[str, int]] = field(default_factory=set)

    def has_peak(self, suite: Suite) -> bool:
        """Whether this run has measured the peak for the suite's group and number of threads."""
        return (suite.group, suite.threads) in self.seen

    def add_peak(self, suite: Suite, peak: MachinePeak) -> None:
        """Record a measured peak. The highest value of each rate counts, for existing rows too: noise only lowers it."""
        self.seen.add((suite.group, suite.threads))
        best = peak.best(self.peaks.get(suite.threads, peak))
        self.peaks[suite.threads] = best
        self.rows = {key: with_peak(row, best) if key[2] == suite.threads else row for key, row in self.rows.items()}

    def document(self) -> dict[str, Any]:
        """The results as JSON."""
        rows = list(self.rows.values())
        facts = {"schema": SCHEMA, "source": self.source, "machine": self.machine, "rounds": self.rounds}
        peaks = [asdict(self.peaks[n]) for n in sorted(self.peaks)]
        return facts | {"peaks": peaks, "rows": rows, "means": means(rows, self.wanted)}

    def save(self) -> None:
        """Write the file atomically."""
        if self.path is not None:
            text = json.dumps(self.document(), indent=1) + "\n"
            with atomic_file(self.path) as out:
                out.write(text.encode())

    def measured(self, group: str, name: str, threads: int) -> Measured:
        """The measurements of a row so far."""
        row = self.rows.get((group, name, threads))
        if row is None:
            return Measured()
        answers = {peer: list(about["answers"]) for peer, about in row["sides"].items()}
        return Measured(answers, dict(row["absent"]), {peer: _about(about) for peer, about in row["sides"].items()})

    def store(self, suite: Suite, task: Task, found: Measured) -> None:
        """Replace a row and save the file."""
        self.rows[suite.group, task.name, suite.threads] = row_of(suite, task, found, self.peaks.get(suite.threads))
        self.save()


def _about(peer: dict[str, Any]) -> dict[str, Any]:
    return {name: peer[name] for name in ("version", "built_for") if name in peer}


def load(path: Path) -> Results:
    """Load the rows of an earlier run. Raises ResultsError for another kind of file, machine or commit."""
    fresh = Results(path, machine(), source_version())
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["schema"] != SCHEMA:
            raise ResultsError(f"{path}: schema {stored['schema']}; wanted {SCHEMA}")
        others = [name for name in SAME if stored["machine"][name] != fresh.machine[name]]
        if others or stored["source"] != fresh.source:
            what = f"machine ({', '.join(others)})" if others else f"source ({stored['source']}, here {fresh.source})"
            raise ResultsError(f"{path}: was measured with another {what}; wanted the same to resume, or another file")
        fresh.peaks = {row["threads"]: MachinePeak(**row) for row in stored["peaks"]}
        fresh.rows = {(row["group"], row["name"], row["threads"]): row for row in stored["rows"]}
    except (ValueError, KeyError, TypeError) as error:  # invalid JSON or UTF-8, missing or wrong fields
        raise ResultsError(f"{path}: is not a results file of this command ({error!r:.80})") from error
    return fresh
