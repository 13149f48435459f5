"""What a cluster's front says of slots, whose requests run elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("starlette")

from camshaft.cluster.front import Fronted
from camshaft.cluster.replica import News
from camshaft.generate.engine.request import Update
from camshaft.generate.options import GenerateOptions
from camshaft.serve.models.spec import ModelSpec
from camshaft.serve.slots import slots
from tests.support.fixtures import tiny_model


class _Goes:
    """The handle of a replica whose answer has begun, and goes on for ever."""

    def __init__(self) -> None:
        self.answer = self

    def options(self, *, stream: bool) -> _Goes:
        assert stream
        return self

    async def remote(self, **given: Any) -> AsyncIterator[list[News]]:
        yield [News(0, Update("a"), 16, 2, 0.1, 0.2)]
        await asyncio.sleep(60)


def test_slots_say_how_far_answers_of_replicas_are(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    spec = ModelSpec(str(path), "tiny", options={"context": 96, "sessions": 2})

    async def ask() -> Any:
        served = Fronted(spec, 1).open(_Goes())
        served.engine.submit([5] * 20, GenerateOptions(), lambda update: None)
        await asyncio.sleep(0.01)
        answer = await slots(cast(Any, None), served)
        served.engine.close()
        return json.loads(answer.body)

    first, second = asyncio.run(ask())
    assert (first["n_prompt_tokens"], first["n_prompt_tokens_cache"], first["n_prompt_tokens_processed"]) == (20, 16, 4)
    assert (first["next_token"], second["is_processing"]) == ([{"n_decoded": 2}], False)
