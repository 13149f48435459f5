"""The memory that fine-tuning takes beside what `camshaft finetune --plan` says before it starts.

    python -m bench.train.training_memory [MODEL] [--only N] [--json FILE]

This process plans each run; a process of its own then runs it, and samples its anonymous memory after each step. "grown" is
by how much that exceeds what it was before the model was opened; the bound is the plan's weights plus 1.2 times all else of it.
What a process takes for any batch (the tokenizer, the graph, compiled code) is no part of the plan: the bench fails where a run
is over its bound by more than that. Pages of the mapped file are not anonymous: the system takes them back as it likes.
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

# Options of a run of rows of 128 tokens, among them the budget of its memory.
RUNS: tuple[dict[str, Any], ...] = ({"batch": 2}, {"batch": 2, "memory": 330_000_000}, {"batch": 8})
SHARE, STEPS = 1.2, 3
FIXED = 250_000_000  # with SmolLM2's vocabulary and its graph of a step 213 MB


def anonymous_nbytes() -> int:
    """Bytes of this process's memory that no file backs."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


def written(folder: str) -> Path:
    """The data: eight texts of about 128 tokens."""
    data, text = Path(folder, "data.jsonl"), "The quick brown fox jumps over the lazy dog and runs on. " * 9
    data.write_text("\n".join(json.dumps({"text": text[i : i + 440]}) for i in range(8)), "utf-8")
    return data


def planned(model: str, given: dict[str, Any]) -> dict[str, Any]:
    """What --plan says."""
    from camshaft import train
    from camshaft.train.tuning.finetuning import plan_finetune

    with tempfile.TemporaryDirectory() as folder:
        plan = plan_finetune(model, written(folder), options=train.FinetuneOptions(steps=STEPS, length=128, **given))
    weights, others = plan.memory["weights"], sum(plan.memory.values()) - plan.memory["weights"]
    return {"plan": dict(plan.memory), "recomputed": plan.recomputed, "bound": int(weights + SHARE * others)}


def run(model: str, given: dict[str, Any]) -> int:
    """Runs the steps in this process, and returns by how much its anonymous memory grew at most."""
    from camshaft import train

    before, found = anonymous_nbytes(), [0]
    options = train.FinetuneOptions(steps=STEPS, length=128, **given)
    with tempfile.TemporaryDirectory() as folder:
        data, out = written(folder), Path(folder, "out.gguf")
        train.finetune(model, data, out, options=options, each=lambda progress, steps: found.append(anonymous_nbytes()))
    return max(found) - before


def main() -> None:
    """Measure and print; exit code 1 where a run is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only", type=int, choices=range(len(RUNS)))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.run is not None:
        print(run(args.model, RUNS[args.run]))
        return
    rows = []
    for i, given in enumerate(RUNS) if args.only is None else [(args.only, RUNS[args.only])]:
        row = {"what": "memory of QLoRA", "model": args.model, **given} | planned(args.model, given)
        command = [sys.executable, "-m", "bench.train.training_memory", args.model, "--run", str(i)]
        grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append(row | {"grown": grown, "beyond_the_plan": grown - sum(row["plan"].values())})
        rows[-1] |= {"within_bound": grown <= row["bound"], "within_bound_and_fixed": grown <= row["bound"] + FIXED}
        sizes = ", ".join(f"{kind} {n / 1e6:.0f}" for kind, n in row["plan"].items())
        shown = f"grown {grown / 1e6:.0f} of at most {row['bound'] / 1e6:.0f} MB"
        print(f"{given}: {shown}, {row['recomputed']} layers computed once more; plan: {sizes}", flush=True)
    write(args.json, rows)
    sys.exit(0 if all(row["within_bound_and_fixed"] for row in rows) else 1)


if __name__ == "__main__":
    main()
