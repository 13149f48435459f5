"""The memory that fine-tuning takes beside what `camshaft finetune --plan` says before it starts.

    python -m bench.training_memory [MODEL] [--json FILE]

A process of its own opens the model and makes its tokenizer, notes its resident memory, then plans and runs the steps. "grown" is
by how much the peak of its resident memory exceeds that; the bound is the plan's weights plus 1.2 times all else of it. The bench
fails where one is over its bound. Weights count once: those that are read where the file is mapped, too.
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

# Options of a run: rows of 128 tokens, and the budget of its memory.
RUNS: tuple[dict[str, Any], ...] = (
    {"batch": 2},
    {"batch": 4},
    {"batch": 2, "memory": 330_000_000},
    {"batch": 4, "activations": "q8"},
)
SHARE = 1.2


def resident(field: str) -> int:
    """Bytes of resident memory of this process: VmRSS now, VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


def run(model: str, given: dict[str, Any]) -> dict[str, Any]:
    """Plans and runs three steps in this process."""
    from camshaft import train
    from camshaft.train.tuning.finetuning import plan_finetune

    options = train.FinetuneOptions(steps=3, length=128, **given)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.jsonl")
        text = "The quick brown fox jumps over the lazy dog and runs on. " * 9
        data.write_text("\n".join(json.dumps({"text": text[i : i + 440]}) for i in range(8)), "utf-8")
        with train.LoraModel(model):
            before = resident("VmRSS")
        plan = plan_finetune(model, data, options=options)
        planned = resident("VmHWM")
        train.finetune(model, data, Path(folder, "out.gguf"), options=options)
    weights, others = plan.memory["weights"], sum(plan.memory.values()) - plan.memory["weights"]
    grown = resident("VmHWM") - before
    return {
        "plan": dict(plan.memory),
        "recomputed": plan.recomputed,
        "before": before,
        "grown_by_planning": planned - before,
        "grown": grown,
        "bound": int(weights + SHARE * others),
        "holds": grown <= weights + SHARE * others,
    }


def main() -> None:
    """Measure and print; exit code 1 where a run is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.run is not None:
        print(json.dumps(run(args.model, RUNS[args.run])))
        return
    rows = []
    for i, given in enumerate(RUNS):
        command = [sys.executable, "-m", "bench.training_memory", args.model, "--run", str(i)]
        subprocess.run(command, check=True, capture_output=True)  # compiles, which takes memory too
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append({"what": "memory of QLoRA", "model": args.model, **given} | json.loads(made.stdout))
        row = rows[-1]
        sizes = ", ".join(f"{kind} {n / 1e6:.0f}" for kind, n in row["plan"].items())
        grown = f"grown {row['grown'] / 1e6:.0f} of at most {row['bound'] / 1e6:.0f} MB"
        print(f"{given}: {grown}, {row['recomputed']} layers computed once more; plan: {sizes}", flush=True)
    write(args.json, rows)
    sys.exit(0 if all(row["holds"] for row in rows) else 1)


if __name__ == "__main__":
    main()
