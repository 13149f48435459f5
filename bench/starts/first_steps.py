"""Time the steps of `camshaft generate` up to the first token, in one process; run by first_token.py.

`python -m bench.starts.first_steps MODEL PROMPT [THREADS]` prints a JSON object of seconds by step.
"""

from __future__ import annotations

import json
import sys
import time

STARTED = time.time()


def main() -> None:
    """Goes the way once."""
    model, prompt, *threads = sys.argv[1:]
    at, found = time.perf_counter(), {"started": STARTED}

    def mark(step: str) -> None:
        nonlocal at
        now = time.perf_counter()
        found[step], at = now - at, now

    from camshaft.cli import main  # noqa: F401

    mark("imports of the command line")
    from camshaft.backends.cpu.device import counts
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.sampling.parameters import Sampling

    mark("imports of the model")
    with LanguageModel(model, threads=int(threads[0]) if threads else None) as lm:
        found["file and tokenizer"], found["compile: graph, proof, kernels, weights"] = (
            lm.timings.load_s,
            lm.timings.compile_s,
        )
        at = time.perf_counter()
        pieces = lm.generate(prompt, max_tokens=2, sampling=Sampling(greedy=True))
        mark("chat template, tokens of the prompt, sampler")
        next(pieces)
        mark("first run and its text")
        found |= {"kernels, of all that": counts.seconds, "n compiled": counts.compiled, "n loaded": counts.loaded}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
