"""The memory that fine-tuning takes beside what `camshaft finetune --plan` says before it starts.

    python -m bench.train.training_memory [MODEL] [--only N] [--json FILE]

One process plans each run; another one runs it, and samples its anonymous memory after each step. "grown" is by how much that
exceeds what it was before the model was opened; the bound is the plan's weights and program plus 1.2 times all else of it, and
"bound without program" leaves the program out, which is what a process takes for any batch: the tokenizer, the graph, compiled
code. Pages of the mapped file are not anonymous: the system takes them back as it likes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.rows import write
from camshaft import train
from camshaft.train.memory import anonymous_nbytes
from camshaft.train.tuning.finetuning import plan_finetune

# Options of a run of rows of 128 tokens, among them the budget of its memory.
RUNS: tuple[dict[str, Any], ...] = ({"batch": 2}, {"batch": 2, "memory": 330_000_000}, {"batch": 8})
SHARE, STEPS = 1.2, 3


def written(folder: str) -> Path:
    """The data: eight texts of about 128 tokens."""
    data, text = Path(folder, "data.jsonl"), "The quick brown fox jumps over the lazy dog and runs on. " * 9
    data.write_text("\n".join(json.dumps({"text": text[i : i + 440]}) for i in range(8)), "utf-8")
    return data


def plan(model: str, given: dict[str, Any]) -> dict[str, Any]:
    """What --plan says."""
    with tempfile.TemporaryDirectory() as folder:
        options = train.FinetuneOptions(steps=STEPS, length=128, **given)
        found = plan_finetune(model, written(folder), options=options)
    weights, others = found.memory["weights"], sum(found.memory.values()) - found.memory["weights"]
    program = found.program_nbytes or 0
    said = {"plan": dict(found.memory), "program": program, "recomputed": found.recomputed}
    alone = int(weights + SHARE * others)
    return said | {"bound": alone + program, "bound without program": alone}


def run(model: str, given: dict[str, Any]) -> dict[str, Any]:
    """Runs the steps in this process; by how much its anonymous memory grew at most."""
    before, found = anonymous_nbytes() or 0, [0]
    options = train.FinetuneOptions(steps=STEPS, length=128, **given)
    with tempfile.TemporaryDirectory() as folder:
        data, out = written(folder), Path(folder, "out.gguf")
        each = lambda progress, steps: found.append(anonymous_nbytes() or 0)  # noqa: E731
        train.finetune(model, data, out, options=options, each=each)
    return {"grown": max(found) - before}


def in_process(what: str, model: str, number: int) -> dict[str, Any]:
    """The result of `plan` or `run` in a process of its own."""
    command = [sys.executable, "-m", "bench.train.training_memory", model, f"--{what}", str(number)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    """Measure and print; exit code 1 where a run is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--plan", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only", type=int, choices=range(len(RUNS)))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for function, number in ((plan, args.plan), (run, args.run)):
        if number is not None:
            print(json.dumps(function(args.model, RUNS[number])))
            return
    rows = []
    for i in range(len(RUNS)) if args.only is None else [args.only]:
        row = {"what": "memory of QLoRA", "model": args.model, **RUNS[i]}
        row |= in_process("plan", args.model, i) | in_process("run", args.model, i)
        row |= {
            "beyond_the_plan": row["grown"] - sum(row["plan"].values()),
            "within_bound": row["grown"] <= row["bound"],
        }
        rows.append(row)
        sizes = ", ".join(f"{kind} {n / 1e6:.0f}" for kind, n in (row["plan"] | {"program": row["program"]}).items())
        bounds = row["bound"] / 1e6, row["bound without program"] / 1e6
        shown = "grown {:.0f} of at most {:.0f} MB, without the program {:.0f}".format(row["grown"] / 1e6, *bounds)
        print(f"{RUNS[i]}: {shown}, {row['recomputed']} layers recomputed; plan: {sizes}", flush=True)
    write(args.json, rows)
    sys.exit(0 if all(row["within_bound"] for row in rows) else 1)


if __name__ == "__main__":
    main()
