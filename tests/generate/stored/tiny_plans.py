"""What the tiny model says, opened here or in a new process, with the plans of a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from camshaft import LanguageModel
from camshaft.generate.sampling.parameters import Sampling
from camshaft.plan.cached.cached_plan import CachedPlan

IDS = [1, 5, 9, 12, 3, 7, 7, 2]
SAMPLINGS = (Sampling(greedy=True), Sampling(seed=3, repeat_penalty=1.2))


def opened(path: Path, threads: int = 2) -> LanguageModel:
    return LanguageModel(path, threads=threads, context=96, sessions=2)


def said(path: Path) -> list[Any]:
    """What a model says one by one, together, and its logits."""
    with opened(path) as lm:
        alone = [lm.generate(IDS, max_tokens=5, sampling=s, ignore_eos=True) for s in SAMPLINGS]
        texts = ["".join(generation) for generation in alone]
        batch = lm.generate_batch([IDS, IDS[:3]], max_tokens=4, sampling=SAMPLINGS[0], ignore_eos=True).texts()
        return [texts, [generation.ids for generation in alone], batch, lm.logits(IDS).tobytes()]


def runs_cached(path: Path) -> bool:
    """Whether a prompt is run by a plan out of the store."""
    with opened(path) as lm:
        with lm.session() as session:
            session.process(IDS)
        return isinstance(lm.plans._plan("prompt"), CachedPlan) and not lm.plans._compiled


PROGRAM = """
import json, sys
from camshaft.cli import main
from camshaft import LanguageModel
with LanguageModel(sys.argv[1], threads=2, context=96, sessions=2) as lm:
    lm.logits([1, 5, 9, 12, 3, 7, 7, 2])
    n_compiled = len(lm.plans._compiled)
    modules = [name for name in sys.modules]
print(json.dumps({"n_compiled": n_compiled, "modules": modules}))
"""


def started(path: Path) -> dict[str, Any]:
    """A new process that opens the model."""
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ), timeout=120)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found
