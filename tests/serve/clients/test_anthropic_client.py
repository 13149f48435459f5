"""Anthropic's own client, unchanged, against a server on a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from camshaft import LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.served import Served
from tests.serve.conftest import serving

pytestmark = pytest.mark.oracle

USER: Any = [{"role": "user", "content": "hi"}]
HOW: Any = {"model": "tiny", "max_tokens": 6, "extra_body": {"temperature": 0}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["a"]}
TOOL: Any = {"name": "add", "input_schema": SCHEMA | {"additionalProperties": False}}


@pytest.fixture(scope="module")
def anthropic(roomy: LanguageModel) -> Iterator[Any]:
    module = pytest.importorskip("anthropic")
    with (
        Engine(roomy) as engine,
        serving(Served("tiny", engine)) as url,
        module.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        yield client


def test_messages_and_streams(anthropic: Any, roomy: LanguageModel) -> None:
    wanted = "".join(roomy.generate(messages=USER, max_tokens=6, sampling=Sampling(greedy=True)))
    message = anthropic.messages.create(messages=USER, **HOW)
    assert message.content[0].text == wanted
    assert message.stop_reason == "max_tokens"
    with anthropic.messages.stream(messages=USER, **HOW) as stream:
        assert "".join(stream.text_stream) == wanted
        assert stream.get_final_message().usage.output_tokens == 6
    assert anthropic.messages.count_tokens(messages=USER, model="tiny").input_tokens > 3


def test_a_tool_and_its_result(anthropic: Any) -> None:
    how = HOW | {"max_tokens": 80, "tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with anthropic.messages.stream(messages=USER, **how) as stream:
        message = stream.get_final_message()
    (block,) = message.content
    assert (block.type, block.name, message.stop_reason) == ("tool_use", "add", "tool_use")
    assert 10 <= block.input["a"] <= 99
    assert anthropic.messages.create(messages=USER, **how).content[0].input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "24"}
    said = [*USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert anthropic.messages.create(messages=said, **HOW).stop_reason == "max_tokens"


def test_errors(anthropic: Any) -> None:
    module = pytest.importorskip("anthropic")
    with pytest.raises(module.BadRequestError, match=r"thinking.*: the chat template of .* has no reasoning"):
        anthropic.messages.create(messages=USER, **HOW, thinking={"type": "enabled", "budget_tokens": 1024})
    with pytest.raises(module.NotFoundError, match="there is no model"):
        anthropic.messages.create(messages=USER, **HOW | {"model": "other"})
