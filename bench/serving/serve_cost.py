"""What HTTP and scheduling cost a token of one client: the CPU time of a server beside its engine's and the model's alone.

    python -m bench.serving.serve_cost [--model MODEL] [--tokens N] [--rounds N]

A small model shows it best: the products of a large one vary by more. CPU time, since other programs may keep the cores busy; the
server's is that of its process, the client's does not count. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from statistics import median
from time import process_time

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.models.files.pull import resolve_model
from camshaft.serve.load.child import serve_command, server
from camshaft.serve.load.stream import Target, post_stream, target_of

CONTEXT = 2048
PROMPT = "Name a river."


def cpu_s(process: int) -> float:
    """The CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def streamed(target: Target, tokens: int) -> None:
    """One answer of so many tokens as a stream."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    async with aclosing(post_stream(target, "/completions", body)) as events:
        async for _ in events:
            pass


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model, tokens = str(resolve_model(options.model)), options.tokens
    how = GenerateOptions(
        max_tokens=tokens, ignore_eos=True, sampling=Sampling(temperature=0), raw=True, speculate=None
    )
    command = serve_command(model, "--threads", "1", "--slots", "2", "--context", str(CONTEXT))
    with (
        server(command) as (url, process),
        LanguageModel(model, threads=1, context=CONTEXT, sessions=2) as lm,
        Engine(lm) as engine,
    ):

        def by_engine() -> None:
            engine.submit(lm.prompt_ids(PROMPT, raw=True), how, lambda update: None)
            while engine.n_waiting or engine.n_running:
                engine.step()

        here: dict[str, Callable[[], object]] = {
            "the model": lambda: "".join(lm.generate(PROMPT, how)),
            "the engine": by_engine,
        }
        found: dict[str, list[float]] = {name: [] for name in (*here, "the server")}
        for number in range(options.rounds + 1):
            for name, run in here.items():
                begun = process_time()
                run()
                found[name] += [process_time() - begun] if number else []
            begun = cpu_s(process)
            asyncio.run(streamed(target_of(url), tokens))
            found["the server"] += [cpu_s(process) - begun] if number else []
    ms = {name: 1e3 * median(each) / tokens for name, each in found.items()}
    for name, each in ms.items():
        print(f"{name}: {each:.3f} ms of CPU per token, {min(found[name]) * 1e3 / tokens:.3f} at least")
    print(
        f"HTTP: {ms['the server'] - ms['the engine']:.3f} ms; with scheduling {ms['the server'] - ms['the model']:.3f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
