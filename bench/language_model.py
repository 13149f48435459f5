"""camshaft against llama.cpp on one model file: prompts read and tokens generated per second, by turns in one run.

Run: python bench/language_model.py [MODEL] [--threads 1 2] [--peer-python PYTHON] [--json FILE]. llama-cpp-python is the extra
`bench`; --peer-python names an interpreter of another environment that has it. Each side is a process that lives through all
turns and sleeps on a pipe while the other runs. One turn of each does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import roof
import rows

from camshaft.formats.gguf import open_gguf
from camshaft.models.architectures import architecture
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.pull import resolve_model
from camshaft.text.tokenizer import Tokenizer

TEXT = "The river rose for three days, and on the fourth the miller carried his tools up to the loft and waited there. "
SIDES = ("llama.cpp", "camshaft")


@dataclass(frozen=True)
class Work:
    """What the model's arithmetic is made of, by the file. `read_nbytes`: the weights that each token reads."""

    config: ModelConfig
    read_nbytes: int
    layer_weights: int

    def generate_nbytes(self, n: int, sequences: int = 1) -> float:
        """Bytes per token when generating `n`: weights, which `sequences` share, and keys and values at the mean length."""
        c = self.config
        return self.read_nbytes / sequences + 2.0 * c.n_layers * 2 * c.n_kv_heads * c.head_dim * (n / 2)

    def prompt_ops(self, n: int) -> tuple[float, float]:
        """8-bit and f32 operations per token of a prompt of `n`: every weight of the layers, and causal attention."""
        c = self.config
        return 2.0 * self.layer_weights, 4.0 * c.n_layers * c.n_heads * c.head_dim * (n / 2)


@dataclass(frozen=True)
class Task:
    """One thing to measure, on both sides."""

    op: str
    n: int
    order: dict[str, Any]


class SideProcess:
    """The child that runs one side. It leaves with the context."""

    def __init__(self, python: str, name: str, model: Path, threads: int, context: int) -> None:
        command = [python, str(Path(__file__).with_name("side.py")), name, str(model), str(threads), str(context)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        environment = environment if name == "camshaft" else dict(os.environ)
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __enter__(self) -> Self:
        self.about = self.answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process ended with status {self.process.wait()}; see above")
        return dict(json.loads(line))

    def tokens_per_s(self, task: Task) -> float:
        """Runs the task."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task.order) + "\n")
        self.process.stdin.flush()
        return task.n / float(self.answer()["s"])


def work_of(path: Path) -> tuple[Work, list[int]]:
    """The model's work, and the ids of a text to read."""
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
        config = read_config(file.metadata, architecture(file.metadata).name, tokenizer.n_vocab)
        matrices = {name: t for name, t in file.tensors.items() if len(t.shape) == 2}
        tied = "output.weight" not in matrices
        read = sum(t.nbytes for name, t in matrices.items() if tied or name != "token_embd.weight")
        layers = sum(t.shape[0] * t.shape[1] for name, t in matrices.items() if name.startswith("blk."))
        return Work(config, read, layers), tokenizer.encode(TEXT)


def run(
    sides: Sequence[SideProcess], tasks: Sequence[Task], repeats: int, pause_s: float
) -> dict[tuple[str, str], Any]:
    """Tokens per second of each side and task, by turns: every side reads, then every side generates, and again."""
    found: dict[tuple[str, str], list[float]] = {(side.name, task.op): [] for side in sides for task in tasks}
    for turn in range(repeats + 1):
        for task in tasks:
            for side in sides:
                time.sleep(pause_s)  # until the other side's workers have stopped spinning
                rate = side.tokens_per_s(task)
                if turn:
                    found[side.name, task.op].append(rate)
    return {key: rows.Spread.of(rates) for key, rates in found.items()}


def row(task: Task, side: SideProcess, found: dict[tuple[str, str], Any], work: Work, top: roof.Roof) -> dict[str, Any]:
    """One side's figures for one task, with the share of the roof and, for camshaft, the peer's."""
    rate = found[side.name, task.op]
    sequences = task.order.get("together", 1)
    ints, floats = work.prompt_ops(task.n) if task.op == "prompt" else (0.0, 0.0)
    nbytes = work.generate_nbytes(task.n // sequences, sequences) if "generate" in task.order else 0.0
    made = {
        "bench": "language_model",
        "op": task.op,
        "shape": [task.n],
        "backend": side.about["version"],
        "built_for": side.about["built_for"],
        "threads": top.threads,
        "tokens_per_s": rate.rounded(),
        "ns": rate.map(lambda r: 1e9 / r).rounded(),
        "GB/s": round(nbytes * rate.median / 1e9, 2) or None,
        "GFLOP/s": round((ints + floats) * rate.median / 1e9, 1) or None,
        "roof_share": round(top.least_s(nbytes, {"int8": ints, "f32": floats}) * rate.median, 3),
    }
    peer = found.get((SIDES[0], task.op))
    if side.name == "camshaft" and peer is not None:
        made |= {"peer_tokens_per_s": peer.rounded(), "ratio": round(rate.median / peer.median, 3)}
    return made


def compare(options: argparse.Namespace, threads: int, work: Work, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Both sides with so many threads."""
    before = roof.measure(threads)
    pythons = {"llama.cpp": options.peer_python, "camshaft": sys.executable}
    names = SIDES[1:] if options.no_peer else SIDES
    context = options.prompt_tokens + options.generate_tokens * max(options.sequences or [1]) + 1
    with ExitStack() as stack:
        sides = [
            stack.enter_context(SideProcess(pythons[name], name, options.path, threads, context)) for name in names
        ]
        found = run(sides, tasks, options.repeat, options.pause)
        top = before.best(roof.measure(threads))
        return [row(task, side, found, work, top) for task in tasks for side in sides]


def report(made: Sequence[dict[str, Any]]) -> str:
    """The rows as a table."""

    def spread(rate: dict[str, float] | None) -> str:
        return f"{rate['median']:.4g} ({rate['min']:.4g} to {rate['max']:.4g})" if rate else ""

    lines = [
        (
            r["threads"],
            f"{r['op']} {r['shape'][0]}",
            r["backend"],
            spread(r["tokens_per_s"]),
            r["GB/s"] or "",
            r["GFLOP/s"] or "",
            f"{r['roof_share']:.0%}",
            f"{r['ratio']:.2f}" if "ratio" in r else "",
        )
        for r in made
    ]
    header = (
        "threads",
        "what",
        "by",
        "tokens/s: median (min to max)",
        "GB/s",
        "GFLOP/s",
        "of the roof",
        "times the peer",
    )
    return rows.table(header, lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a name or the path of a .gguf")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--generate-tokens", type=int, default=128)
    parser.add_argument(
        "--sequences", type=int, nargs="*", default=[], help="also so many generating together, up to 16"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of rest before each turn")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--no-peer", action="store_true", help="camshaft alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.repeat < 1 or options.prompt_tokens < 1 or options.generate_tokens < 2:
        parser.error("wanted at least 1 repeat, 1 token to read and 2 to generate")
    options.path = resolve_model(options.model).resolve()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    work, text = work_of(options.path)
    prompt = (text * (options.prompt_tokens // len(text) + 1))[: options.prompt_tokens]
    tasks: tuple[Task, ...] = (
        Task("prompt", len(prompt), {"prompt": prompt}),
        Task("generate", options.generate_tokens, {"generate": options.generate_tokens, "after": prompt[:1]}),
    )
    for count in options.sequences:
        order = {"together": count, "generate": options.generate_tokens, "after": prompt[:1]}
        tasks += (Task(f"generate x {count}", count * options.generate_tokens, order),)
    made = [row for threads in options.threads for row in compare(options, threads, work, tasks)]
    print(report(made))
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
