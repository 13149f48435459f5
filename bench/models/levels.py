"""Prompts of few and many tokens at several levels of CPU features: no level should be slower than a lesser one.

Run: python -m bench.models.levels [MODEL] [--levels amx avx512-bf16] [--tokens 1 2 8 32 512] [--threads 1] [--rounds 3] [--json
FILE]. The levels run in turn, each in processes of its own; a figure is the least time of a run of so many tokens, with the
last logits. 1 token is one that is generated. `times` is the least of the other levels, divided by the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench import rows
from camshaft import LanguageModel
from camshaft.models.files.pull import resolve_model

RUNS_S = 0.5  # at least so long per number of tokens, and at least RUNS runs
RUNS = 5


def least_ms(model: str, tokens: list[int], threads: int) -> dict[int, float]:
    """The least milliseconds of a run of each number of tokens."""
    with LanguageModel(model, threads=threads, context=1024) as lm:
        plans, slot = lm.plans, lm.plans.cache.open_slot()
        plans.cache.reserve(slot, max(tokens) + 1)
        return {n: min(_runs(lm, slot, n)) for n in tokens}


def _runs(lm: LanguageModel, slot: int, n: int) -> list[float]:
    taken: list[float] = []
    while len(taken) <= RUNS or sum(taken) < 1000 * RUNS_S:
        started = rows.clock()
        lm.plans.run(range(40, 40 + n), range(n), [slot] * n, (n - 1,))
        taken.append(1000 * (rows.clock() - started))
    return taken[1:]


def measured(options: argparse.Namespace, threads: int) -> dict[str, dict[int, float]]:
    """The least milliseconds by level and tokens."""
    found: dict[str, dict[int, float]] = {level: {} for level in options.levels}
    for _ in range(options.rounds):
        for level in options.levels:
            command = [
                sys.executable,
                "-m",
                "bench.models.levels",
                options.model,
                "--child",
                "--threads",
                str(threads),
                "--tokens",
            ]
            child = {**os.environ, "CAMSHAFT_CPU_FEATURES": level, "CAMSHAFT_MEASURE": "0"}
            ended = subprocess.run([*command, *map(str, options.tokens)], env=child, stdout=subprocess.PIPE, check=True)
            for n, ms in json.loads(ended.stdout).items():
                found[level][int(n)] = min(ms, found[level].get(int(n), ms))
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a name or the path of a .gguf")
    parser.add_argument("--levels", nargs="+", default=["amx", "avx512-bf16"], help="the highest first")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 17, 32, 33, 64, 128, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)
    options = rows.with_clock(parser, parser.parse_args())
    if options.child:
        print(json.dumps(least_ms(options.model, options.tokens, options.threads[0])))
        return
    name = resolve_model(options.model).name
    made = [
        {
            "bench": "levels",
            "model": name,
            "threads": threads,
            "tokens": n,
            "clock": rows.clock_name(),
            "ms": {level: ms[n] for level, ms in found.items()},
        }
        for threads in options.threads
        for found in [measured(options, threads)]
        for n in options.tokens
    ]
    rows.write(options.json, made)
    print(
        rows.table(
            ("threads", "tokens", *(f"{level} ms" for level in options.levels), "times"), [_line(r) for r in made]
        )
    )


def _line(row: dict[str, object]) -> tuple[object, ...]:
    ms = list(row["ms"].values()) if isinstance(row["ms"], dict) else []
    return row["threads"], row["tokens"], *(f"{x:.2f}" for x in ms), f"{min(ms[1:], default=ms[0]) / ms[0]:.2f}"


if __name__ == "__main__":
    main()
