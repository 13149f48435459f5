"""Rows of starting: seconds from a process's start to its first token, against llama-cpp-python, and memory of loading."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compare.model_files import Watch, random_qwen, smollm2
from bench.compare.suite import OURS, Side, Suite, Target, Task

PROMPT = "Why is the sky blue?"
MODELS = {"SmolLM2 Q4_1": smollm2, "0.5B Q4_K_M": random_qwen}
MOST_MEMORY = 1.25


def first_token(threads: int, watch: Watch) -> Iterator[Suite]:
    """Kernels cached: the first start, which compiles them, does not count."""
    sides = Side("llama.cpp", "starts:LlamaStarts"), Side(OURS, "starts:Starts", peer=False)
    tasks = []
    for name, file in MODELS.items():
        order = {"model": str(file(watch)), "prompt": PROMPT, "threads": threads}
        tasks.append(Task(f"{name}, process start to first token", order, "s", 1, Target(ratio=1.0)))
    yield Suite("first-token", threads, sides, tuple(tasks))


def loading(threads: int, watch: Watch) -> Iterator[Suite]:
    """The most memory, less that of a process that imported camshaft and compiled a kernel, over file, KV cache and arena."""
    tasks = []
    for name, file in MODELS.items():
        order = {"model": str(file(watch)), "threads": threads}
        tasks.append(Task(f"{name}, memory of loading", order, "x file", 1, Target(figure=MOST_MEMORY)))
    yield Suite("loading", threads, (Side(OURS, "ours_loading:Memory", peer=False),), tuple(tasks))
