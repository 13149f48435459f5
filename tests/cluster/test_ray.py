"""On Ray itself, as two nodes of one core on this machine: answers of replicas, the end of one in a stream, of a node in a batch.

python -m pytest -m soak tests/cluster/test_ray.py    (extra: cluster; 40 s on a quiet machine, most of it for Ray's processes)
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ray.serve")

from bench.serving.cluster import nodes
from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.cluster.batch import run_batch
from camshaft.cluster.serving import served
from camshaft.serve.batch.run import Tally
from camshaft.serve.guard import Guard
from camshaft.serve.load.stream import AnswerError, post_stream, target_of
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.request_log import LogPlace
from tests.serve.batch.small_batches import COMPLETION, line_of, results_of, write_lines
from tests.support.fixtures import tiny_model

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="replicas are found in /proc"),
]
PORT, SLOTS, NAME = 18993, 3, f"tiny-{os.getpid()}"
OPTIONS: dict[str, Any] = {"context": 1500, "sessions": SLOTS, "threads": 1, "activations": "f32"}
DRAWN = {"temperature": 1.2, "max_tokens": 24, "ignore_eos": True}
Sent = tuple[str, int]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with nodes(2) as made:
        yield made


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    path = tiny_model("llama", tmp_path_factory.mktemp("ray"))
    return ModelSpec(str(path), NAME, options=OPTIONS, queue=64)


async def _events(body: dict[str, Any]) -> Any:
    target = target_of(f"http://127.0.0.1:{PORT}")
    asked = {**body, "model": NAME, "stream": True, "stream_options": {"include_usage": True}}
    async for event in post_stream(target, "/completions", asked):
        yield event


def _answer(body: dict[str, Any]) -> Sent:
    """The text of a streamed completion, and the cached tokens of its prompt. Raises AnswerError with the server's message."""

    async def read() -> Sent:
        text, cached = "", 0
        async for event in _events(body):
            text += "".join(choice["text"] for choice in event["choices"])
            cached = (event["usage"] or {"prompt_tokens_details": {"cached_tokens": 0}})["prompt_tokens_details"][
                "cached_tokens"
            ]
        return text, cached

    return asyncio.run(read())


def _cpu_ticks() -> dict[int, int]:
    """The CPU time of each replica's process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f":0-{NAME}" in (folder / "cmdline").read_text():
                    found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[11])
            except OSError:  # it has ended
                continue
    return found


@pytest.fixture(scope="class")
def serving(cluster: Any, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Replicas on both nodes, until the tests of a class end, and the log of requests."""
    log = tmp_path_factory.mktemp("log") / "requests"
    with served(cluster.address, [spec], Guard(), replicas=None, host="127.0.0.1", port=PORT, log=LogPlace(log)):
        yield log


@pytest.mark.usefixtures("serving")
class TestServing:
    def test_answers_are_those_of_an_engine_alone(self, spec: ModelSpec) -> None:
        asked = [{**DRAWN, "prompt": [5 + i, *[6 + i % 3] * (2 + 5 * i)], "seed": i} for i in range(8)]
        with LanguageModel(spec.model, **OPTIONS) as lm:
            options = [
                GenerateOptions(max_tokens=24, ignore_eos=True, sampling=Sampling(temperature=1.2, seed=body["seed"]))
                for body in asked
            ]
            wanted = ["".join(lm.generate(body["prompt"], each)) for body, each in zip(asked, options, strict=True)]
        with ThreadPoolExecutor(4) as pool:
            found = [text for text, _ in pool.map(_answer, asked * 2)]
        assert found == wanted * 2

    def test_requests_of_all_replicas_are_in_one_log(self, serving: Path) -> None:
        n, bodies = 37, [{"prompt": [7 + i] * 37, "max_tokens": 3, "ignore_eos": True} for i in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(_answer, bodies))
        lines, until = list[Any](), time.monotonic() + 20  # a line is written after its client has all
        while len(lines) < len(bodies) and time.monotonic() < until:
            time.sleep(0.05)
            found = [json.loads(line) for line in serving.read_text("utf-8").splitlines()]
            lines = [line for line in found if line.get("prompt_tokens") == n]
        assert [(line["status"], line["model"], line["generated_tokens"]) for line in lines] == [(200, NAME, 3)] * 4

    def test_prompts_that_come_again_find_their_blocks(self) -> None:
        drawn = random.Random(2)
        prompts = [[4 + drawn.randrange(60) for _ in range(65)] for _ in range(12)]
        with ThreadPoolExecutor(4) as pool:
            again = [list(pool.map(lambda ids: _answer({"prompt": ids, "max_tokens": 1}), prompts)) for _ in range(2)]
        assert sum(cached for _, cached in again[1]) >= 0.9 * 64 * len(prompts)

    def test_the_end_of_a_replica_in_a_stream_is_an_error_at_once_and_the_next_request_has_an_answer(self) -> None:
        body = {"prompt": [5, 6, 7], "max_tokens": 1400, "ignore_eos": True, "seed": 1}
        wanted, before = _answer({**body, "max_tokens": 20}), _cpu_ticks()
        assert len(before) == 2
        seconds = list[float]()

        async def read() -> None:
            loop, n = asyncio.get_running_loop(), 0
            try:
                async for _ in _events(body):
                    n += 1
                    if n == 300:
                        after = _cpu_ticks()
                        os.kill(max(before, key=lambda pid: after[pid] - before[pid]), signal.SIGKILL)
                        seconds.append(loop.time())
            finally:
                seconds.append(loop.time())

        with pytest.raises(AnswerError, match="the replica that answered has ended"):
            asyncio.run(read())
        assert seconds[1] - seconds[0] < 10  # it is 0.1 s; no measurement
        assert _answer({**body, "max_tokens": 20}) == wanted


def test_a_node_that_is_lost_in_a_batch_loses_and_doubles_nothing(
    cluster: Any, spec: ModelSpec, tmp_path: Path
) -> None:
    lines = [
        line_of(str(i), COMPLETION, {"prompt": [5, 6 + i % 20, 7 + i % 7], **DRAWN, "seed": i % 50}) for i in range(500)
    ]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    (lost,) = cluster.worker_nodes
    ends = threading.Thread(target=lambda: cluster.remove_node(lost, allow_graceful=False))

    def progress(tally: Tally) -> None:
        if tally.n_done >= 100 and ends.ident is None:
            ends.start()

    tally = run_batch(cluster.address, spec, source, target, embed=None, most_open=SLOTS, progress=progress)
    ends.join()
    rows = results_of(target)
    assert sorted(int(row["custom_id"]) for row in rows) == list(range(500))
    assert (tally.n_answered, tally.n_failed) == (500, 0)
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}
    with LanguageModel(spec.model, **OPTIONS) as lm:
        for i in (0, 99, 499):
            sampling = Sampling(temperature=1.2, seed=i % 50)
            alone = lm.generate([5, 6 + i % 20, 7 + i % 7], max_tokens=24, ignore_eos=True, sampling=sampling)
            assert "".join(alone) == texts[str(i)]
