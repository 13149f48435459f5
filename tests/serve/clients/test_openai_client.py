"""OpenAI's own client, unchanged, against a server on a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from camshaft import EmbeddingModel, LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.served import Embedder, Served
from tests.serve.conftest import serving
from tests.support.fixtures import tiny_encoder

pytestmark = pytest.mark.oracle

USER: Any = [{"role": "user", "content": "hi"}]
HOW: Any = {"model": "tiny", "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingModel]:
    with EmbeddingModel(tiny_encoder("bert", tmp_path_factory.mktemp("embedder")), threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def url(lm: LanguageModel, embedder: EmbeddingModel) -> Iterator[str]:
    with Engine(lm) as engine, serving(Served("tiny", engine, embedder=Embedder("bert", embedder))) as address:
        yield address + "/v1"


@pytest.fixture
def openai(url: str) -> Iterator[Any]:
    module = pytest.importorskip("openai")
    with module.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_chat(openai: Any, lm: LanguageModel) -> None:
    wanted = "".join(lm.generate(messages=USER, max_tokens=6, sampling=Sampling(greedy=True)))
    whole = openai.chat.completions.create(messages=USER, **HOW, logprobs=True, top_logprobs=2)
    assert whole.choices[0].message.content == wanted
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    raw = openai.chat.completions.with_raw_response.create(messages=USER, **HOW)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == wanted
    again = [*USER, whole.choices[0].message.model_dump(), *USER]
    assert openai.chat.completions.create(messages=again[:1], **HOW).usage.prompt_tokens_details.cached_tokens >= 16


def test_a_stream(openai: Any, lm: LanguageModel) -> None:
    wanted = "".join(lm.generate(messages=USER, max_tokens=6, sampling=Sampling(greedy=True)))
    chunks = list(
        openai.chat.completions.create(messages=USER, **HOW, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == wanted
    assert chunks[-1].usage.prompt_tokens == 19
    with openai.chat.completions.stream(messages=USER, **HOW, stop=wanted[2]) as stream:
        assert stream.get_final_completion().choices[0].message.content == wanted[: wanted.index(wanted[2])]
    with openai.chat.completions.create(messages=USER, **HOW, stream=True) as abandoned:
        next(iter(abandoned))
    streamed = openai.completions.create(prompt="hi", **HOW, stream=True)
    assert (
        "".join(chunk.choices[0].text for chunk in streamed)
        == openai.completions.create(prompt="hi", **HOW).choices[0].text
    )
    assert [model.id for model in openai.models.list()] == ["tiny", "bert"]


def test_a_response(openai: Any, lm: LanguageModel) -> None:
    wanted = "".join(lm.generate(messages=USER, max_tokens=6, sampling=Sampling(greedy=True)))
    how: Any = {"model": "tiny", "temperature": 0, "max_output_tokens": 6}
    assert openai.responses.create(input="hi", **how).output_text == wanted
    with openai.responses.stream(input=USER, **how) as stream:
        assert "".join(each.delta for each in stream if each.type == "response.output_text.delta") == wanted


def test_errors(openai: Any, url: str) -> None:
    import openai as module

    wrong: list[tuple[Any, dict[str, Any]]] = [
        (module.NotFoundError, {"model": "gpt-9"}),
        (module.BadRequestError, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (module.BadRequestError, {"messages": [{"role": "user", "content": "x" * 900}]}),
        (module.BadRequestError, {"extra_body": {"nonsense": 1}}),
    ]
    for kind, fields in wrong:
        with pytest.raises(kind) as raised:
            openai.chat.completions.create(**({"messages": USER} | HOW | fields))
        assert raised.value.code
    with pytest.raises(module.BadRequestError) as too_long:
        openai.completions.create(prompt=[5] * 90, **HOW)
    assert too_long.value.code == "context_length_exceeded"


def test_vectors(openai: Any, embedder: EmbeddingModel) -> None:
    wanted = embedder.embed(["Hello world!", "a"])
    for how in ({}, {"encoding_format": "float"}):  # by default it asks for base64
        made = openai.embeddings.create(model="bert", input=["Hello world!", "a"], **how)
        assert [row.embedding for row in made.data] == wanted.tolist()


def test_a_form_and_tools(openai: Any) -> None:
    schema = {"type": "integer", "minimum": 100, "maximum": 999}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    whole = openai.chat.completions.create(messages=USER, model="tiny", seed=1, max_tokens=8, response_format=form)
    assert 100 <= int(whole.choices[0].message.content) <= 999
    answer = openai.responses.create(
        input="a",
        model="tiny",
        max_output_tokens=8,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
    )
    assert 100 <= int(answer.output_text) <= 999
    with pytest.raises(pytest.importorskip("openai").BadRequestError, match="Unimplemented keys"):
        openai.chat.completions.create(
            messages=USER, model="tiny", response_format=form | {"json_schema": {"name": "n", "schema": {"not": {}}}}
        )
