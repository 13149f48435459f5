"""Clients that nobody here wrote, unchanged, against a server on a socket: Ollama's own, LiteLLM's and LangChain's, and requests
that schemathesis makes of the OpenAPI file. They are in the extra `clients`."""

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
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["a"]}
CLOSED = SCHEMA | {"additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": CLOSED}}


@pytest.fixture(scope="module")
def url(roomy: LanguageModel) -> Iterator[str]:
    with Engine(roomy) as engine, serving(Served("tiny", engine)) as address:
        yield address


@pytest.fixture
def wanted(roomy: LanguageModel) -> str:
    return "".join(roomy.generate(messages=USER, max_tokens=6, sampling=Sampling(greedy=True)))


def test_ollama(url: str, wanted: str) -> None:
    client = pytest.importorskip("ollama").Client(host=url)
    how = {"temperature": 0, "num_predict": 6}
    assert client.chat(model="tiny", messages=USER, options=how).message.content == wanted
    pieces = client.chat(model="tiny", messages=USER, options=how, stream=True)
    assert "".join(piece.message.content for piece in pieces) == wanted
    made = client.generate(model="tiny", prompt="hi", options=how, format=CLOSED | {"title": "a"})
    assert made.response.startswith("{")
    assert [each.model for each in client.list().models] == [each.model for each in client.ps().models] == ["tiny"]
    assert client.show("tiny").details.format == "gguf"


@pytest.mark.parametrize("kind", ["openai", "hosted_vllm", "anthropic", "ollama_chat"])
def test_litellm(url: str, wanted: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks a server elsewhere
    litellm = pytest.importorskip("litellm")
    base = url + "/v1" if kind in ("openai", "hosted_vllm") else url
    how = {"model": f"{kind}/tiny", "api_base": base, "api_key": "none", "messages": USER, "max_tokens": 6}
    how["temperature"] = 0
    assert litellm.completion(**how).choices[0].message.content == wanted
    pieces = litellm.completion(**how, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == wanted


def test_langchain(url: str, wanted: str) -> None:
    made = pytest.importorskip("langchain_openai").ChatOpenAI(
        model="tiny", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=6, max_retries=0
    )
    assert made.invoke("hi").content == wanted
    assert "".join(piece.content for piece in made.stream("hi")) == wanted
    assert [each.content for each in made.batch(["hi", "hi"])] == [wanted] * 2
    longer = made.model_copy(update={"max_tokens": 200})
    (call,) = longer.bind_tools([TOOL], tool_choice="add", parallel_tool_calls=False).invoke("hi").tool_calls
    assert (call["name"], 10 <= call["args"]["a"] <= 99) == ("add", True)
    found = longer.with_structured_output(CLOSED | {"title": "one"}, method="json_schema").invoke("hi")
    assert 10 <= found["a"] <= 99


def test_no_request_of_the_openapi_file_is_a_fault_of_the_server(url: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    operations = [each.ok() for each in schemathesis.openapi.from_url(url + "/openapi.json").get_all_operations()]
    assert len(operations) > 20
    for operation in operations:

        @settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck], database=None, derandomize=True)
        @given(case=operation.as_strategy())
        def asks(case: Any) -> None:
            # 501 says that the server has no folder for slots.
            assert case.call().status_code in {*range(200, 500), 501}, case.as_curl_command()

        asks()
