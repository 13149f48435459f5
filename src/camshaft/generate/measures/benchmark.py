"""Measure a language model: tokens per second, time to the first token in fresh processes, and profiles of its plans."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from camshaft.errors import ModelError, SettingError
from camshaft.generate.options import GenerateOptions
from camshaft.generate.sampling.parameters import Sampling
from camshaft.models.files.pull import resolve_model
from camshaft.tune.rounds import Spread as Spread

if TYPE_CHECKING:
    from camshaft.generate.language_model import GenerationTimings, LanguageModel
    from camshaft.observe.profile import Profile

Step = Callable[[int, int], None]
"""Called with (runs done, total runs)."""

_GREEDY = GenerateOptions(sampling=Sampling(greedy=True), ignore_eos=True, speculate=None)
_TEXT = (
    "A mill by the river ground corn for nine villages, and each of them sent one child to learn the miller's trade. "
)


def english(lm: LanguageModel, n_tokens: int) -> list[int]:
    """Return `n_tokens` token ids of English text."""
    text = lm.tokenize(_TEXT)
    return (text * (n_tokens // len(text) + 1))[:n_tokens]


def benchmark(
    lm: LanguageModel, prompt_tokens: int, generate_tokens: int, repeat: int, step: Step
) -> dict[str, Spread]:
    """Measure prompt processing of `prompt_tokens` tokens and generation of `generate_tokens` tokens after one token.

    The two alternate for `repeat` runs, after one warm-up run of each."""
    prompt = english(lm, prompt_tokens)
    prompt_rates, generation_rates = [], []
    for run in range(repeat + 1):
        step(run, repeat + 1)
        prompt_rates.append(_run(lm, prompt, 1).prompt_tokens_per_s)
        generation_rates.append(_run(lm, prompt[:1], generate_tokens).generated_tokens_per_s)
    step(repeat + 1, repeat + 1)
    return {
        "prompt_tokens_per_s": Spread.of(prompt_rates[1:]),
        "generated_tokens_per_s": Spread.of(generation_rates[1:]),
    }


def benchmark_together(
    lm: LanguageModel, sequences: int, generate_tokens: int, repeat: int, step: Step
) -> dict[str, Spread]:
    """Measure the total tokens per second of `sequences` sequences generated in a batch, after one warm-up run."""
    start = lm.tokenize(_TEXT)[:1]
    rates = []
    for run in range(repeat + 1):
        step(run, repeat + 1)
        batch = lm.generate_batch([start] * sequences, _GREEDY, max_tokens=generate_tokens)
        batch.texts()
        rates.append(sum(g.timings.generated_tokens_per_s for g in batch.generations))
    step(repeat + 1, repeat + 1)
    return {"together_tokens_per_s": Spread.of(rates[1:])}


def _run(lm: LanguageModel, ids: list[int], max_tokens: int) -> GenerationTimings:
    generation = lm.generate(ids, _GREEDY, max_tokens=max_tokens)
    for _ in generation:
        pass
    return generation.timings


def first_token(
    model: str, repeat: int, step: Step, **options: str | float | Sequence[str] | None
) -> dict[str, Spread]:
    """Measure the seconds from the start of `camshaft generate` to its first byte of output: once cold (empty cache: no
    compiled kernels, no validation results), then `repeat` times warm. `options` are the command's."""
    command = [sys.executable, "-m", "camshaft.cli", "generate", str(resolve_model(model).resolve())]
    command += ["--raw", "-p", _TEXT, "-n", "8", "--greedy"]
    command += as_arguments(options)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        env = os.environ | {"CAMSHAFT_CACHE_DIR": cache}
        seconds = []
        for run in range(repeat + 1):
            step(run, repeat + 1)
            seconds.append(_first_byte_s(command, env))
    step(repeat + 1, repeat + 1)
    return {"first_token_cold_s": Spread.of(seconds[:1]), "first_token_warm_s": Spread.of(seconds[1:])}


def as_arguments(options: Mapping[str, str | float | Sequence[str] | None]) -> list[str]:
    """Options as a command's arguments: `threads=2` is --threads 2; None is left out, and lists repeat one."""
    each = [
        (name, one)
        for name, value in options.items()
        for one in (value if isinstance(value, (list, tuple)) else [value])
        if one is not None
    ]
    return [text for name, one in each for text in ("--" + name.replace("_", "-"), str(one))]


def _first_byte_s(command: list[str], env: dict[str, str]) -> float:
    started = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0) as child:
        assert child.stdout is not None
        try:
            child.stdout.read(1)
            elapsed_s = time.perf_counter() - started
            _, stderr = child.communicate()
        except BaseException:  # such as SIGTERM's SystemExit: Popen would wait for the child
            child.kill()
            raise
    if child.returncode:
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        raise ModelError(f"a benchmark process failed: {lines[-1] if lines else child.returncode}")
    return elapsed_s


PHASES = ("prompt", "generate", "both")


def profile_model(
    lm: LanguageModel, prompt_tokens: int, phase: str, runs: int, step: Step = lambda done, total: None
) -> dict[str, Profile]:
    """Return profiles by title: processing `prompt_tokens` tokens (the last chunk if there are several), and generating the
    token after them. `phase` is one of PHASES. Every run repeats the same step in one session; sampling is not included."""
    if phase not in PHASES:
        raise SettingError(f"phase={phase}: wanted {', '.join(PHASES)}")
    prompt = english(lm, prompt_tokens)
    # The properties compile these plans if cached ones run: cached plans cannot be profiled.
    single = lm.plans.single
    whole = lm.plans.prompt if prompt_tokens > 1 else single
    steps = {
        "prompt": (f"prompt of {prompt_tokens} {'token' if prompt_tokens == 1 else 'tokens'}", None, whole),
        "generate": (f"the token after {prompt_tokens}", prompt[:1], single),
    }
    wanted = [row for name, row in steps.items() if phase in (name, "both")]
    profiles: dict[str, Profile] = {}
    with lm.lock, lm.session() as session:
        session.process(prompt)
        for done, (title, ids, plan) in enumerate(wanted):
            step(done, len(wanted))
            if ids is not None:
                session.process(ids)
            profiles[title] = plan.profile(runs=runs)
    step(len(wanted), len(wanted))
    return profiles
