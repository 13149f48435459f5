"""Steps of fine-tuning SmolLM2, by LoRA and whole, beside torch with PEFT in f32 and in bf16, in turn; and a step beside its
forward.

    python -m bench.train.training [--method lora|full] [--activations f32|q8|bf16] [--compute f32|bf16]
        [--batch 2] [--length 128] [--threads 2] [--rounds 5] [--backend cuda] [--model FILE] [--json FILE]

Needs the extras `oracles`. Seconds and CPU seconds of each step; on a busy machine the CPU seconds of one thread say more. The
ratio is to the peer's faster dtype. With `--backend cuda` both train on the first NVIDIA GPU; any weights of SmolLM2's sizes take
the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare.process import LinePeer
from bench.rows import write
from camshaft import train
from camshaft.train.tuning.methods.full import FullModel

PEERS = {"peer_f32": "f32", "peer_bf16": "bf16"}


def timed(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds of a call, and CPU seconds of all threads."""
    started, cpu = time.perf_counter(), time.process_time()
    call()
    return {"s": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}


def measured(args: argparse.Namespace) -> tuple[str, dict[str, list[dict[str, float]]]]:
    """The peer's version, and times by what was measured."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 40000, (args.batch, args.length)).astype(np.int32)
    rows = np.tile(np.arange(args.length - 1, dtype=np.int32), (args.batch, 1))
    batch = ids, rows, ids[:, 1:].copy()
    peer = Path(__file__).with_name("training_peer.py")
    given = [str(v) for v in (args.threads, args.method, args.batch, args.length, args.backend)]
    where: dict[str, Any] = {name: getattr(args, name) for name in ("threads", "activations", "compute", "backend")}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("step", "forward", *PEERS)}
    with ExitStack() as stack:
        kind = train.LoraModel if args.method == "lora" else FullModel
        model = stack.enter_context(kind(args.model))
        step = stack.enter_context(train.Step(model.loss, model.parameters(), train.AdamW(), clip=1.0, **where))
        others = {
            name: stack.enter_context(closing(LinePeer(sys.executable, "-P", peer, *given, dtype)))
            for name, dtype in PEERS.items()
        }
        for i in range(args.rounds + 1):  # the first round compiles
            turn = {"step": timed(lambda: step(*batch, lr=1e-4)), "forward": timed(lambda: step.evaluate(*batch))}
            turn |= {name: other.ask() for name, other in others.items()}
            if i:
                for name, times in turn.items():
                    found[name].append(times)
    return next(iter(others.values())).version, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("lora", "full"), default="lora")
    parser.add_argument("--activations", choices=("f32", "q8", "bf16"), default="f32")
    parser.add_argument("--compute", choices=("f32", "bf16"), default="f32")
    for name, default in (("batch", 2), ("length", 128), ("threads", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--backend", choices=("simd", "cuda"), default="simd")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    version, found = measured(args)
    row: dict[str, Any] = {name: value for name, value in vars(args).items() if name != "json"} | {"peer": version}
    for unit in ("s", "cpu_s"):
        medians = {name: statistics.median(t[unit] for t in times) for name, times in found.items()}
        spans = {name: [min(t[unit] for t in times), max(t[unit] for t in times)] for name, times in found.items()}
        row[unit] = {
            "medians": medians,
            "spans": spans,
            "times_the_peer": min(medians[name] for name in PEERS) / medians["step"],
            "step_by_forward": medians["step"] / medians["forward"],
        }
        print(f"{unit}: {json.dumps(row[unit])}")
    print(f"{args.batch * args.length / row['s']['medians']['step']:.0f} tokens/s; peer: {version}")
    write(args.json, [row])


if __name__ == "__main__":
    main()
