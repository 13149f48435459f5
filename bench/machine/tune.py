"""Measure the gain of tuning: each shape of a model's plans and the f32 product of 1024 x 1024, before and after.

Run: python -m bench.machine.tune [MODEL] [--threads 2] [--again] [--only WORD] [--json FILE]. Untuned shapes (with --again all)
are tuned first, as `camshaft tune` does. Then the default choice and the tuned one run in new plans, in interleaved rounds: the
speed-up is the lower of the median ratio over rounds and the ratio of minima. Where both are the same kernel nothing is
measured. `noise` is how much the default choice differs from itself in the same rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import rows
from camshaft.generate.language_model import LanguageModel
from camshaft.selection.choice import Choice
from camshaft.selection.select import choose
from camshaft.tune.benchmark import Candidate, benchmark_round_robin
from camshaft.tune.graphs import Use, is_measured, ladder, tune_uses, uses_of
from camshaft.tune.nodes import shape_text
from camshaft.tune.rounds import BenchmarkConfig


def uses(model: str, threads: int, only: str) -> list[Use]:
    """The model's uses and the product's."""
    with LanguageModel(model, threads=threads) as lm:
        found = uses_of([lm.plans.prompt.graph, lm.plans.single.graph], None)
    squares = [use for use in ladder(only="matmul") if {d for s in use.node.inputs for d in s.bounds} == {1024}]
    return [use for use in (*found, *squares) if only in use.op.name]


def candidate(use: Use, choice: Choice) -> Candidate:
    """The chosen variant for the use."""
    return Candidate(use.op, use.node, choice.variant, choice.backend)


def row(use: Use, config: BenchmarkConfig) -> dict[str, Any]:
    """One use as a JSON row."""
    (untuned,) = choose([(use.op, use.node)], use.override, lambda case, node: None)
    (tuned,) = choose([(use.op, use.node)], use.override)
    before, after = candidate(use, untuned), candidate(use, tuned)
    same = before.label == after.label
    first, again, *others = benchmark_round_robin([before, before, *([] if same else [after])], config=config)
    last = first if same else others[0]
    return {
        "bench": "tune",
        "op": use.op.name,
        "shape": shape_text(use.node),
        "cold": use.cold,
        "threads": config.threads,
        "before": before.label,
        "before_ns": round(first.median_ns, 1),
        "before_min_ns": round(first.min_ns, 1),
        "after": after.label,
        "after_ns": round(last.median_ns, 1),
        "after_min_ns": round(last.min_ns, 1),
        "times_as_fast": 1.0 if same else round(1 / last.ratio_to(first), 3),
        "noise": round(max(first.ratio_to(again), again.ratio_to(first)) - 1, 3),
    }


def measured(found: list[Use], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every use, as it is done."""
    config = BenchmarkConfig(threads=options.threads)
    for use in found:
        tuned = tune_uses([use], config) if options.again or not is_measured(use) else [None]
        if tuned:  # there is something to choose
            yield row(use, replace(config, cold=use.cold, runs=60, budget_s=2.0))


def line(r: dict[str, Any]) -> tuple[object, ...]:
    """A row for the table."""
    after = r["after"] if r["after"] != r["before"] else ""
    microseconds = (f"{r[name] / 1000:.4g}" for name in ("before_min_ns", "after_min_ns"))
    before, now = microseconds
    fast = f"{r['times_as_fast']:.2f}" if after else ""
    return r["op"], r["shape"], r["before"], before, after, now, fast, f"{r['noise']:.0%}"


def main() -> None:
    """Tunes, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a name or the path of a .gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="tune also what was measured before")
    parser.add_argument("--only", default="", help="only ops whose names contain this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    made = list(measured(uses(options.model, options.threads, options.only), options))
    header = ("op", "shape", "untuned", "us, least", "tuned", "us, least", "times as fast", "noise")
    print(rows.table(header, [line(r) for r in made]))
    slower = [r for r in made if r["times_as_fast"] < 1 / (1 + max(r["noise"], 0.02))]
    better = [r for r in made if r["times_as_fast"] > 1 + max(r["noise"], 0.02)]
    print(f"\n{len(made)} shapes: {len(better)} faster beyond noise, {len(slower)} slower beyond noise")
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
