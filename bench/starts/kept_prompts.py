"""How soon a prompt whose beginning was kept has its first token, beside processing all of it.

    python -m bench.starts.kept_prompts [MODEL] [--tokens 2000] [--threads 2] [--rounds 7] [--json FILE]

Interleaved in one process, whose plans are loaded: the whole prompt, and the prompt with its beginning from a file, of which all
tokens but the last 16 are taken. `taking` is that time without processing these.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.rows import table, write
from camshaft import LanguageModel
from camshaft.generate.measures.benchmark import english


def measure(lm: LanguageModel, ids: list[int], kept: Path | None) -> tuple[float, float]:
    """Milliseconds from the call to the first token, by the clock and of all processors."""
    began, busy = time.perf_counter(), time.process_time()
    generation = lm.generate(ids, greedy=True, max_tokens=1, prompt_cache=kept)
    generation.advance()
    found = 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - busy)
    generation.close()
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    for name, default in (("tokens", 2000), ("threads", 2), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"whole": [], "kept": [], "rest": []}
    with tempfile.TemporaryDirectory() as folder, LanguageModel(args.model, threads=args.threads) as lm:
        ids, path = english(lm, args.tokens), Path(folder, "prompt")
        measure(lm, ids, path)
        for _ in range(args.rounds):
            found["whole"].append(measure(lm, ids, None))
            found["kept"].append(measure(lm, ids, path))
            found["rest"].append(measure(lm, ids[-16:], None))
        facts: dict[str, Any] = {"model": Path(args.model).name, "tokens": args.tokens, "threads": args.threads}
        facts["file_mb"] = path.stat().st_size / 1e6
    rows = [
        facts
        | {
            "what": name,
            "ms": median(clock for clock, _ in times),
            "least_ms": min(clock for clock, _ in times),
            "processor_ms": median(busy for _, busy in times),
        }
        for name, times in found.items()
    ]
    lines = [(r["what"], *(f"{r[key]:.1f}" for key in ("ms", "least_ms", "processor_ms"))) for r in rows]
    print(table(("first token after", "ms", "least", "of processors"), lines))
    print(
        f"a file of {facts['file_mb']:.1f} MB; taking it: {rows[1]['least_ms'] - rows[2]['least_ms']:.1f} ms at least"
    )
    write(args.json, [{"bench": "kept_prompts"} | row for row in rows])


if __name__ == "__main__":
    main()
