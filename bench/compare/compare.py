"""Run the selected groups of suites and store the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bench.compare import interleaved
from bench.compare.interleaved import Limits, Measured, Start
from bench.compare.model_files import Watch
from bench.compare.results import Results, load
from bench.compare.suites import groups
from bench.compare.suites.suite import Suite, Task
from camshaft.observe import machine_peak

QUICK_ROUNDS = 2


@dataclass(frozen=True)
class Options:
    """What to run. `only`: names of groups (None: all); `path`: file for the rows; `resume`: continue with its rows."""

    only: str | None = None
    threads: tuple[int, ...] = (1, 2)
    limits: Limits = field(default_factory=Limits)
    path: Path | None = None
    resume: bool = False


def prepared(options: Options) -> Results:
    """Empty results, or with `resume` those of the file. Raises ResultsError for a file that cannot be continued."""
    groups.chosen(options.only)
    if options.resume and options.path is not None and options.path.is_file():
        results = load(options.path)
    else:
        results = Results(options.path)
    results.wanted, results.rounds = dict(groups.WANTED_MEANS), options.limits.rounds
    return results


def measure_groups(options: Options, results: Results, start: Start, watch: Watch) -> None:
    """Run every suite of the selected groups for each number of threads. `results` has what was measured, even after an
    interrupt."""
    for group in groups.chosen(options.only).values():
        for threads in options.threads:
            for suite in group(threads, watch):
                if options.limits.passed:
                    return
                run_suite(suite, options.limits, results, start, watch)


def run_suite(suite: Suite, limits: Limits, results: Results, start: Start, watch: Watch) -> None:
    """Add rounds to one suite. The machine's peak is measured before the first suite of each group and number of threads."""
    known = {task.name: results.measured(suite.group, task.name, suite.threads) for task in suite.tasks}
    first, others = suite.tasks[0].name, len(suite.tasks) - 1
    names = first + (f" and {others} more" if others else "")
    with watch(f"{suite.group}, {suite.threads} thread{'s' * (suite.threads > 1)}: {names}") as step:

        def keep(task: Task, found: Measured) -> None:
            if found.answers or found.absent:
                results.store(suite, task, found)
            step(sum(m.rounds for m in known.values()), sum(max(m.rounds, limits.wanted(m)) for m in known.values()))

        if any(m.rounds < limits.wanted(m) for m in known.values()) and not results.has_peak(suite):
            results.add_peak(suite, machine_peak.measure(suite.threads))
        interleaved.run(suite, known, limits, start, keep)
