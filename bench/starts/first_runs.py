"""Speed of the first, second and tenth `camshaft generate` with an empty cache, and after `camshaft tune`.

Run: python -m bench.starts.first_runs [MODEL] [--threads N] [--runs 10] [--repeat 7] [--no-tune] [--json FILE]. Each run is a
process. Between runs the script waits for the background measurement, as a reader of the answer does. Then one copy of the
cache is tuned, and runs with either copy alternate: `untuned_of_tuned` is the median ratio of their rates, and
`different_thunks` counts the thunks of the plan for one token that run another kernel.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import rows
from bench.starts.first_token import environment, threads_option

PROMPT = "Explain in some detail why the sky is blue, and why sunsets are red. " * 6
RATES = ("prompt_tokens_per_s", "generated_tokens_per_s")
WAIT_S = 60.0


def run(model: str, threads: int | None, cache: Path) -> dict[str, Any]:
    """The timings of one generation in a process, with `wall_s` of the whole process."""
    command = [sys.executable, "-m", "camshaft.cli", "generate", model, "-p", PROMPT, "-n", "128", "--greedy", "--json"]
    started = time.perf_counter()
    ended = subprocess.run(
        [*command, *threads_option(threads)], env=environment(str(cache)), stdout=subprocess.PIPE, check=True
    )
    wall_s = time.perf_counter() - started
    report: dict[str, Any] = json.loads(ended.stdout)
    return {**report["timings"], "wall_s": wall_s, "plans": report["plans"]}


def chosen(model: str, threads: int | None, cache: Path) -> list[tuple[str, str]]:
    """The op and variant of each thunk of the plan for one token."""
    command = [sys.executable, "-m", "camshaft.cli", "plan", model, "--json", *threads_option(threads)]
    ended = subprocess.run(command, env=environment(str(cache)), stdout=subprocess.PIPE, check=True)
    return [(thunk["op"], thunk["variant"]) for thunk in json.loads(ended.stdout)["thunks"]]


def wait(cache: Path) -> float:
    """Wait for the background process and return the seconds that it took."""
    started, jobs = time.perf_counter(), cache / "state" / "measure"
    while jobs.is_dir() and any(jobs.glob("*.0.json")) and time.perf_counter() - started < WAIT_S:
        time.sleep(0.05)
    while _is_measuring() and time.perf_counter() - started < WAIT_S:
        time.sleep(0.05)
    return time.perf_counter() - started


def _is_measuring() -> bool:
    listed = subprocess.run(["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True, check=False).stdout
    return "camshaft.tune.measured_choice" in listed


def row(name: str, timings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A JSON row of one run."""
    rates = {rate: round(timings[rate], 1) for rate in RATES}
    seconds = {part: round(timings[part], 3) for part in ("wall_s", "first_token_s")}
    return {"bench": "first_runs", "run": name, **rates, **seconds, "plans": timings["plans"], **more}


def measure(options: argparse.Namespace, cache: Path) -> list[dict[str, Any]]:
    """The rows of a model."""
    made = []
    for number in range(1, options.runs + 1):
        timings = run(options.model, options.threads, cache)
        waited_s = wait(cache)
        if number in (1, 2, 3, options.runs):
            made.append(row(str(number), timings, background_s=round(waited_s, 2)))
    if options.no_tune:
        return made
    tuned = cache.with_name("tuned")
    shutil.copytree(cache, tuned)
    command = [sys.executable, "-m", "camshaft.cli", "tune", options.model, "--sessions", "1"]
    subprocess.run(
        [*command, *threads_option(options.threads)], env=environment(str(tuned)), stdout=subprocess.DEVNULL, check=True
    )
    run(options.model, options.threads, tuned)  # compiles and caches its plans
    pairs = [[run(options.model, options.threads, c) for c in (cache, tuned)] for _ in range(options.repeat)]
    ratios = {rate: round(statistics.median(ours[rate] / theirs[rate] for ours, theirs in pairs), 3) for rate in RATES}
    median = {rate: statistics.median(theirs[rate] for _, theirs in pairs) for rate in RATES}
    last = pairs[-1][1] | median
    ours, theirs = (chosen(options.model, options.threads, c) for c in (cache, tuned))
    different = sum(mine != other for mine, other in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
    made.append(row("tuned", last, untuned_of_tuned=ratios, thunks=len(theirs), different_thunks=different))
    return made


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="name or path of a .gguf file")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--no-tune", action="store_true", help="leave out the comparison with a tuned cache")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from camshaft.models.files.pull import resolve_model

    options.model = str(resolve_model(options.model))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = measure(options, Path(folder) / "cache")
    print(rows.facts_line(rows.machine()))
    columns = ("run", *RATES, "wall_s", "first_token_s", "background_s", "untuned_of_tuned", "different_thunks")
    print(rows.table(columns, [tuple(str(r.get(c, "")) for c in columns) for r in made]))
    if options.json:
        rows.write(options.json, made)


if __name__ == "__main__":
    main()
