"""What the router of a Ray cluster finds in prefix caches, and what the process that runs a batch does for a line.

    python -m bench.serving.cluster_hits [--prompts 60] [--lines 20000] [--json FILE]

Each prompt of 512 tokens comes twice, in a random order, 8 at once, to a tiny model: on one engine, on two replicas behind the
router, each a node on this machine, and on two behind one that chooses as if no prompt was known. Lines of a batch are read, put
into blocks, and get a result of 600 bytes that is written, without Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from bench.rows import write
from bench.serving.cluster import PORT, nodes
from camshaft.cluster.batch import run_jobs
from camshaft.cluster.rows import Ledger
from camshaft.cluster.serving import APP, Replicas, application, deploy, router_options, started
from camshaft.serve.batch.files import Line, Results, read_lines, result_line
from camshaft.serve.batch.run import Tally
from camshaft.serve.guard import Guard
from camshaft.serve.models.spec import ModelSpec
from tests.support.fixtures import tiny_model

PROMPT_TOKENS, ASKING = 512, 8
RESULT_CHARACTERS, MOST_NBYTES = 500, 1 << 20


def hits(folder: Path, n_prompts: int) -> list[dict[str, Any]]:
    """The tokens that were found in prefix caches."""
    # As many slots as prompts: the cache of one engine has them all.
    given = {"context": PROMPT_TOKENS + 16, "sessions": n_prompts, "threads": 1, "activations": "f32"}
    spec = ModelSpec(str(tiny_model("llama", folder)), "tiny", options=given)
    rows = []
    with nodes(2) as cluster, started(cluster.address, "127.0.0.1", PORT) as ray:
        for name, n, is_random in (("one engine", 1, False), ("by prefix", 2, False), ("at random", 2, True)):
            routing = {"request_router_class": "camshaft.cluster.router:PrefixRouter"}
            kwargs = {**router_options(spec), "is_random": is_random}
            config = {**routing, "request_router_kwargs": kwargs}
            deploy(ray, application(ray, [spec], Guard(), Replicas(n, n), request_router_config=config))
            cached = asyncio.run(_ask_twice(n_prompts))
            rows.append({"routing": name, "replicas": n, "prompts": 2 * n_prompts, "cached_tokens": cached})
            print(rows[-1], file=sys.stderr, flush=True)
            ray.serve.delete(APP)
    return rows


async def _ask_twice(n_prompts: int) -> int:
    """The cached tokens of prompts that come twice, ASKING at once."""
    drawn = random.Random(1)
    prompts = [[4 + drawn.randrange(60) for _ in range(PROMPT_TOKENS)] for _ in range(n_prompts)] * 2
    drawn.shuffle(prompts)
    coming, cached = iter(prompts), list[int]()

    async def client() -> None:
        for prompt in coming:
            cached.append(await asyncio.to_thread(_cached_tokens, prompt))

    await asyncio.gather(*(client() for _ in range(ASKING)))
    return sum(cached)


def _cached_tokens(prompt: Sequence[int]) -> int:
    data = json.dumps({"prompt": prompt, "max_tokens": 2, "temperature": 0}).encode()
    with urlopen(Request(f"http://127.0.0.1:{PORT}/v1/completions", data), timeout=300) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])


def lines_per_s(folder: Path, n: int) -> dict[str, Any]:
    """What the process that runs a batch does, with a job that knows the answers."""
    body = {"messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 64}
    request = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    text = "\n".join(json.dumps({"custom_id": f"request-{i}"} | request) for i in range(n))
    (folder / "in").write_text(text, "utf-8")
    answer = {"status_code": 200, "body": "x" * RESULT_CHARACTERS}

    def job(blocks: Iterable[list[Line]], is_strict: bool) -> Iterator[dict[str, Any]]:
        tokens = dict.fromkeys(("prompt_tokens", "cached_tokens", "generated_tokens"), 1)
        for block in blocks:
            for line in block:
                result = result_line(line.key, str(line.number), answer, None)
                yield {"key": line.key, "result": result, "is_answer": True, **tokens}

    begun = time.process_time()
    with Results(folder / "out") as results:
        tally = Tally(results.check_source(folder / "in", MOST_NBYTES), 0)
        run_jobs(Ledger(results, tally), lambda: read_lines(folder / "in", MOST_NBYTES), job, lambda: None)
    return {"lines": n, "cpu_us_per_line": round(1e6 * (time.process_time() - begun) / n, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [lines_per_s(Path(folder), given.lines), *hits(Path(folder), given.prompts)]
    print("\n".join(map(str, rows)))
    write(given.json, rows)


if __name__ == "__main__":
    main()
