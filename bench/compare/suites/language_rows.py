"""Rows of language models against llama.cpp: prompt, generation, batches, long contexts, with a busy core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.compare.model_files import Watch, Work, random_qwen, requantized, smollm2, work_of
from bench.compare.suites.suite import OURS, Peer, Suite, Target, Task

PROMPT, GENERATE = 512, 128
LONG, AT_END = 4096, 32
SEQUENCES = (2, 3, 4, 8, 16)
FLOOR = 1.2
WARM = 8  # tokens of the warm-up round; the full length of 16 sequences would take llama.cpp 9 s
FORMATS = "formats"


@dataclass(frozen=True)
class Model:
    """A model's rows: name, file, and targets for prompt and generation (by number of threads)."""

    name: str
    file: Callable[[Watch], Path]
    prompt: Target
    generate: dict[int, Target]


def _format(name: str, *, pure: bool = False, prompt: float = 2.0) -> Model:
    generate = Target(ratio=1.5, floor=FLOOR, share=0.65)
    return Model(
        f"SmolLM2 {name}{', pure' * pure}",
        lambda watch: requantized(name, pure, watch),
        Target(ratio=prompt, floor=FLOOR, share=0.4),
        {1: generate, 2: generate},
    )


SMOLLM2 = Model(
    "SmolLM2 Q4_1",
    smollm2,
    Target(ratio=8.0, share=0.4),
    {1: Target(ratio=2.0, share=0.65), 2: Target(ratio=2.5, share=0.65)},
)
QWEN = Model(
    "0.5B Q4_K_M",
    random_qwen,
    Target(ratio=3.4, share=0.4),
    {1: Target(ratio=2.4, share=0.75), 2: Target(ratio=2.4, share=0.75)},
)
REQUANTIZED = (
    *(_format(name) for name in ("Q4_0", "Q8_0", "Q5_0")),
    _format("Q4_K_S", pure=True, prompt=1.5),
    *(_format(name) for name in ("Q5_K_M", "Q6_K", "IQ4_NL", "Q2_K", "Q3_K_M", "F16", "BF16")),
)


def _suite(group: str, threads: int, work: Work, context: int, tasks: tuple[Task, ...], *, busy: bool = False) -> Suite:
    """llama.cpp and camshaft with the model open."""
    given: dict[str, Any] = {"model": str(work.path), "threads": threads, "context": context}
    peers = (
        Peer("llama.cpp", "llama_language:LlamaCpp", given),
        Peer(OURS, "ours/language:Camshaft", given, peer_python=False),
    )
    return Suite(group, threads, peers, tasks, busy)


def _prompt(name: str, work: Work, target: Target, n: int = PROMPT, **more: Any) -> Task:
    order = {"prompt": work.text(n), **more}
    return Task(f"{name} prompt {n}", order, "tokens/s", n, target, ops=work.prompt_ops(n))


def _generate(name: str, work: Work, target: Target, n: int = GENERATE) -> Task:
    order = {"generate": n, "after": work.text(1)}
    return Task(f"{name} generate {n}", order, "tokens/s", n, target, work.generate_nbytes(n) * n)


def _together(name: str, work: Work, count: int, target: Target, n: int = GENERATE) -> Task:
    order = {"together": count, "generate": n, "after": work.text(1)}
    nbytes = work.generate_nbytes(n, count) * n * count
    title = f"{name} generate {n} x {count}"
    return Task(title, order, "tokens/s", n * count, target, nbytes, warm=order | {"generate": min(n, WARM)})


def _both(group: str, model: Model, threads: int, watch: Watch) -> Suite:
    work = work_of(model.file(watch))
    wanted = model.generate.get(threads, Target())
    tasks = _prompt(model.name, work, model.prompt), _generate(model.name, work, wanted)
    return _suite(group, threads, work, PROMPT + GENERATE + 1, tasks)


def of_file(path: Path, threads: int, prompt: int, generate: int, together: Sequence[int]) -> Suite:
    """The rows of any model file, without targets."""
    work = work_of(path)
    tasks = [_prompt(path.stem, work, Target(), prompt), _generate(path.stem, work, Target(), generate)]
    tasks += [_together(path.stem, work, count, Target(), generate) for count in together]
    return _suite("models", threads, work, prompt + generate * max(together, default=1) + 1, tuple(tasks))


def with_binary(suite: Suite, binary: str, model: Path, arguments: Sequence[str]) -> Suite:
    """The suite with a llama-bench program among its peers, for what such a program measures: single sequences."""
    given = {"binary": binary, "model": str(model), "threads": suite.threads, "arguments": list(arguments)}
    others = tuple(peer.name for peer in suite.peers)
    tasks = tuple(replace(task, peers=others) if "together" in task.order else task for task in suite.tasks)
    return replace(suite, peers=(Peer("llama-bench", "llama_bench:LlamaBench", given), *suite.peers), tasks=tasks)


def models(threads: int, watch: Watch) -> Iterator[Suite]:
    """The default model, and one with mixed k-quants."""
    for model in (SMOLLM2, QWEN):
        yield _both("models", model, threads, watch)


def formats(threads: int, watch: Watch) -> Iterator[Suite]:
    """The default model in other quantizations."""
    for model in REQUANTIZED:
        yield _both(FORMATS, model, threads, watch)


def sequences(threads: int, watch: Watch) -> Iterator[Suite]:
    """Several sequences generated in one batch."""
    work = work_of(smollm2(watch))
    tasks = tuple(_together(SMOLLM2.name, work, count, Target(2.0)) for count in SEQUENCES)
    yield _suite("sequences", threads, work, PROMPT + GENERATE * max(SEQUENCES) + 1, tasks)


def context(threads: int, watch: Watch) -> Iterator[Suite]:
    """A context of 4096: a prompt that nearly fills it, and generation at its end, which continues that prompt."""
    work = work_of(smollm2(watch))
    n = LONG - AT_END
    long = _prompt("context 4096,", work, Target(3.0), n, then=AT_END)
    read, ids = work.generate_nbytes(AT_END, after=n) * AT_END, work.text(n)
    warm = {"prompt": work.text(PROMPT), "then": 4}
    going_on = {"last": True, "prompt": ids, "then": AT_END}
    tasks = (
        replace(long, warm=warm),
        Task(
            f"generate {AT_END} at its end", going_on, "tokens/s", AT_END, Target(2.0), read, warm={"last": True} | warm
        ),
    )
    yield _suite("context", threads, work, LONG + 1, tasks)


def busy(threads: int, watch: Watch) -> Iterator[Suite]:
    """The default model while another process keeps a core busy; llama.cpp has the same load."""
    work = work_of(smollm2(watch))
    name, wanted = "beside a busy process,", Target(ratio=1.0)
    tasks = _prompt(name, work, wanted), _generate(name, work, wanted)
    yield _suite("busy", threads, work, PROMPT + GENERATE + 1, tasks, busy=True)
