"""Losses of LoRA on SmolLM2 step by step: camshaft's with products of bf16 beside PEFT's in f32 and in bf16 by torch.

    python -m bench.train.training_curve [--steps 200] [--batch 2] [--length 64] [--activations bf16] [--json FILE]

Needs the extras `oracles`. All start with the same weights, those of the GGUF file's blocks, the same adapters and the same
pieces of the tests' excerpt. PEFT in bf16 has weights of bf16 and adapters of f32. Prints how far each curve is from PEFT's in
f32. With --keep FILE curves are kept there, so that they may be computed one by one (--only).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from bench.rows import write
from camshaft import train
from scripts.oracles import peft_curve
from tests.support.fixtures import excerpt

Array = np.ndarray[Any, Any]
PEERS = {"PEFT f32": "float32", "PEFT bf16": "bfloat16"}


def ours(windows: train.Windows, args: argparse.Namespace) -> Array:
    """The losses of camshaft's steps."""
    rows = np.tile(np.arange(args.length, dtype=np.int32), (args.batch, 1))
    with train.LoraModel("smollm2") as model:
        options: dict[str, Any] = {"activations": args.activations, "threads": args.threads}
        with train.Step(model.loss, model.adapters(), train.AdamW(), clip=1.0, **options) as step:
            return np.array([step(x, rows, y, lr=rate(n, args)) for n, (x, y) in each(windows, args.steps)])


def theirs(windows: train.Windows, args: argparse.Namespace, dtype: str) -> Array:
    """Those of PEFT's."""
    import torch

    torch.set_num_threads(args.threads)
    with train.LoraModel("smollm2") as model:
        step = peft_curve.steps(model, dtype)
    return np.array([step(x, y, rate(n, args)) for n, (x, y) in each(windows, args.steps)])


def each(windows: train.Windows, steps: int) -> Any:
    """The pieces by the number of the step."""
    return ((n, windows(n)) for n in range(steps))


def rate(n: int, args: argparse.Namespace) -> float:
    """The learning rate after n steps."""
    return train.cosine(peft_curve.RATE, args.steps, warmup=args.steps // 20)(n)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 200), ("batch", 2), ("length", 64), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--activations", choices=("f32", "q8", "bf16"), default="bf16")
    parser.add_argument("--only", choices=("camshaft", *PEERS))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with train.LoraModel("smollm2") as model:
        ids = np.array(model.tokenizer.encode(excerpt(), add_special=False), np.int32)
    windows = train.Windows(ids, args.length, args.batch, seed=7)
    curves: dict[str, Array] = dict(np.load(args.keep)) if args.keep and args.keep.exists() else {}
    for name in [args.only] if args.only else ["camshaft", *PEERS]:
        if name not in curves:
            curves[name] = ours(windows, args) if name == "camshaft" else theirs(windows, args, PEERS[name])
    if args.keep:
        with args.keep.open("wb") as file:  # by its name, savez would add .npz to it
            np.savez(file, **curves)
    if "PEFT f32" not in curves:
        return
    wanted, tenth = curves["PEFT f32"], max(args.steps // 10, 1)
    row: dict[str, Any] = {name: getattr(args, name) for name in ("steps", "batch", "length", "threads", "activations")}
    for name, losses in curves.items():
        apart, parts = losses - wanted, np.array_split(losses - wanted, 10)
        row[name] = {
            "losses": [round(float(x), 4) for x in losses],
            "last_tenth": float(losses[-tenth:].mean()),
            "greatest_difference": float(np.abs(apart).max()),
            "greatest_of_tenths": float(max(abs(part.mean()) for part in parts)),
        }
        print(name, {key: value for key, value in row[name].items() if key != "losses"})
    write(args.json, [row])


if __name__ == "__main__":
    main()
