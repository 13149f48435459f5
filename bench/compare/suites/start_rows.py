"""Rows of startup: time from process start to first token against llama-cpp-python, and memory use of loading."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compare.model_files import Watch, random_qwen, smollm2
from bench.compare.suites.suite import OURS, Peer, Suite, Target, Task

PROMPT = "Why is the sky blue?"
MODELS = {"SmolLM2 Q4_1": smollm2, "0.5B Q4_K_M": random_qwen}
MOST_MEMORY = 1.25


def first_token(threads: int, watch: Watch) -> Iterator[Suite]:
    """Warm starts: the first start, which compiles kernels, is the warm-up round."""
    peers = Peer("llama.cpp", "starts:LlamaStarts"), Peer(OURS, "starts:Starts", peer_python=False)
    tasks = []
    for name, file in MODELS.items():
        order = {"model": str(file(watch)), "prompt": PROMPT, "threads": threads}
        tasks.append(Task(f"{name}, process start to first token", order, "s", 1, Target(ratio=1.0)))
    yield Suite("first-token", threads, peers, tuple(tasks))


def loading(threads: int, watch: Watch) -> Iterator[Suite]:
    """Peak memory beyond that of a process that imported camshaft and compiled a kernel, relative to file + KV cache + arena."""
    tasks = []
    for name, file in MODELS.items():
        order = {"model": str(file(watch)), "threads": threads}
        tasks.append(Task(f"{name}, memory of loading", order, "x file", 1, Target(figure=MOST_MEMORY)))
    yield Suite("loading", threads, (Peer(OURS, "ours/loading:Memory", peer_python=False),), tuple(tasks))
