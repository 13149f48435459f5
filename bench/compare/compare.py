"""compare(): runs the groups that were asked for and keeps what is measured. Below bench/compare/__main__.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bench.compare import groups, turns
from bench.compare.model_files import Watch
from bench.compare.results import Results, load
from bench.compare.suite import Suite, Task
from bench.compare.turns import Limits, Measured, Start
from camshaft.observe import machine_peak

QUICK_ROUNDS = 2


@dataclass(frozen=True)
class Options:
    """What to run. `only`: names of groups, None all; `path`: where rows are kept; `resume`: go on with those that lie there."""

    only: str | None = None
    threads: tuple[int, ...] = (1, 2)
    limits: Limits = field(default_factory=Limits)
    path: Path | None = None
    resume: bool = False


def prepared(options: Options) -> Results:
    """Nothing yet, or with `resume` what the file holds. ResultsError for a file that cannot be gone on with."""
    groups.chosen(options.only)
    if options.resume and options.path is not None and options.path.is_file():
        results = load(options.path)
    else:
        results = Results(options.path)
    results.wanted, results.rounds = dict(groups.WANTED_MEANS), options.limits.rounds
    return results


def measure_groups(options: Options, results: Results, start: Start, watch: Watch) -> None:
    """Every stand of every chosen group, for every number of threads. What was measured is in `results` whenever this ends, by
    Ctrl-C too."""
    for group in groups.chosen(options.only).values():
        for threads in options.threads:
            for suite in group(threads, watch):
                if options.limits.passed:
                    return
                run_stand(suite, options.limits, results, start, watch)


def run_stand(suite: Suite, limits: Limits, results: Results, start: Start, watch: Watch) -> None:
    """One stand, on top of what is known of its tasks; the roof is measured before the first of its group and threads."""
    known = {task.name: results.measured(suite.group, task.name, suite.threads) for task in suite.tasks}
    first, others = suite.tasks[0].name, len(suite.tasks) - 1
    names = first + (f" and {others} more" if others else "")
    with watch(f"{suite.group}, {suite.threads} thread{'s' * (suite.threads > 1)}: {names}") as step:

        def keep(task: Task, found: Measured) -> None:
            if found.answers or found.absent:
                results.keep(suite, task, found)
            step(sum(m.rounds for m in known.values()), sum(max(m.rounds, limits.wanted(m)) for m in known.values()))

        if any(m.rounds < limits.wanted(m) for m in known.values()) and not results.is_under_roof(suite):
            results.see_roof(suite, machine_peak.measure(suite.threads))
        turns.run(suite, known, limits, start, keep)
