"""How fast a language model runs: tokens per second in this process, first tokens of fresh ones (`camshaft bench`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from camshaft.errors import ModelError
from camshaft.generate.sampling import Sampling
from camshaft.models.pull import resolve_model
from camshaft.tune.rounds import Spread as Spread

if TYPE_CHECKING:
    from camshaft.generate.language_model import GenerationTimings, LanguageModel

Step = Callable[[int, int], None]
"""Called with (runs done, runs in all)."""

_TEXT = (
    "A mill by the river ground corn for nine villages, and each of them sent one child to learn the miller's trade. "
)


def english(lm: LanguageModel, n_tokens: int) -> list[int]:
    """So many tokens of English."""
    text = lm.tokenize(_TEXT)
    return (text * (n_tokens // len(text) + 1))[:n_tokens]


def benchmark(
    lm: LanguageModel, prompt_tokens: int, generate_tokens: int, repeat: int, step: Step
) -> dict[str, Spread]:
    """Rates of reading `prompt_tokens` of English and of generating `generate_tokens` after one token, one run of each
    uncounted, then `repeat` of each, by turns."""
    prompt = english(lm, prompt_tokens)
    reading, writing = [], []
    for run in range(repeat + 1):
        step(run, repeat + 1)
        reading.append(_run(lm, prompt, 1).prompt_tokens_per_s)
        writing.append(_run(lm, prompt[:1], generate_tokens).generated_tokens_per_s)
    step(repeat + 1, repeat + 1)
    return {"prompt_tokens_per_s": Spread.of(reading[1:]), "generated_tokens_per_s": Spread.of(writing[1:])}


def benchmark_together(
    lm: LanguageModel, sequences: int, generate_tokens: int, repeat: int, step: Step
) -> dict[str, Spread]:
    """Tokens per second of `sequences` that generate `generate_tokens` each, together, after one token; one run uncounted."""
    start = lm.tokenize(_TEXT)[:1]
    rates = []
    for run in range(repeat + 1):
        step(run, repeat + 1)
        batch = lm.generate_batch(
            [start] * sequences, max_tokens=generate_tokens, sampling=Sampling(greedy=True), ignore_eos=True
        )
        batch.texts()
        rates.append(sum(g.timings.generated_tokens_per_s for g in batch.generations))
    step(repeat + 1, repeat + 1)
    return {"together_tokens_per_s": Spread.of(rates[1:])}


def _run(lm: LanguageModel, ids: list[int], max_tokens: int) -> GenerationTimings:
    generation = lm.generate(ids, max_tokens=max_tokens, sampling=Sampling(greedy=True), ignore_eos=True)
    for _ in generation:
        pass
    return generation.timings


def first_token(model: str, repeat: int, step: Step, **options: str | int | None) -> dict[str, Spread]:
    """Seconds from the start of `camshaft generate` to its first byte: cold (nothing cached, no kernel compiled, no
    backend proved; once) and warm (`repeat` times)."""
    command = [sys.executable, "-m", "camshaft.cli", "generate", str(resolve_model(model).resolve())]
    command += ["--raw", "-p", _TEXT, "-n", "8", "--greedy"]
    for name, value in options.items():
        command += [] if value is None else ["--" + name.replace("_", "-"), str(value)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        env = os.environ | {"CAMSHAFT_CACHE_DIR": cache}
        taken = []
        for run in range(repeat + 1):
            step(run, repeat + 1)
            taken.append(_first_byte_s(command, env))
    step(repeat + 1, repeat + 1)
    return {"first_token_cold_s": Spread.of(taken[:1]), "first_token_warm_s": Spread.of(taken[1:])}


def _first_byte_s(command: list[str], env: dict[str, str]) -> float:
    started = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        elapsed_s = time.perf_counter() - started
        _, complaint = child.communicate()
    if child.returncode:
        lines = complaint.decode("utf-8", "replace").strip().splitlines()
        raise ModelError(f"a fresh process failed: {lines[-1] if lines else child.returncode}")
    return elapsed_s
