"""OpenAI's interface: chats and completions, whole and streamed, with usage and log probabilities, as the library's answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from camshaft import LanguageModel, Sampling
from tests.serve.conftest import CONTEXT

CHAT = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
SAID = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
DRAWN = {"temperature": 1.2, "top_p": 0.9, "seed": 5, "max_tokens": 6}
SAMPLING = Sampling(temperature=1.2, top_p=0.9, seed=5)


def events(text: str) -> list[Any]:
    """The data of server-sent events, but for the end mark, which comes last."""
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_a_chat_whole_and_streamed(client: Any, lm: LanguageModel) -> None:
    generation = lm.generate(messages=SAID, max_tokens=6, sampling=SAMPLING, logprobs=2)
    wanted = "".join(generation)
    body = {"model": "tiny", "messages": CHAT, **DRAWN, "logprobs": True, "top_logprobs": 2}
    whole = client.post("/v1/chat/completions", json=body).json()
    choice = whole["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": wanted, "refusal": None}
    assert choice["finish_reason"] == "length"
    logprobs = pytest.approx([each.logprob for each in generation.logprobs], abs=1e-5)  # of floats: see ModelPlans
    assert [row["logprob"] for row in choice["logprobs"]["content"]] == logprobs
    assert all(len(row["top_logprobs"]) == 2 for row in choice["logprobs"]["content"])
    data = b"".join(bytes(row["bytes"]) for row in choice["logprobs"]["content"])
    assert data.decode("utf-8", "replace").startswith(wanted)
    n = generation.prompt_tokens
    assert whole["usage"] | {"prompt_tokens_details": {}} == {
        "prompt_tokens": n, "completion_tokens": 6, "total_tokens": n + 6, "prompt_tokens_details": {},
    }  # fmt: skip

    answer = client.post(
        "/v1/chat/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    first, *chunks, last, usage = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == wanted
    assert [row for chunk in chunks for row in chunk["choices"][0]["logprobs"]["content"]] == choice["logprobs"][
        "content"
    ]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == (n - 1) // 16 * 16 > 0
    assert {chunk["id"] for chunk in chunks} == {first["id"]}
    assert all(chunk["usage"] is None for chunk in (first, *chunks, last))


def test_several_answers_differ_in_their_seeds(client: Any, lm: LanguageModel) -> None:
    each = [replace(SAMPLING, seed=5 + i) for i in range(3)]
    wanted = [
        "".join(lm.generate(messages=SAID, max_tokens=6, sampling=sampling, ignore_eos=True)) for sampling in each
    ]
    body = {"messages": SAID, **DRAWN, "n": 3, "ignore_eos": True}
    whole = client.post("/v1/chat/completions", json=body).json()
    assert [choice["message"]["content"] for choice in whole["choices"]] == wanted
    assert whole["usage"]["completion_tokens"] == 18
    texts = ["", "", ""]
    for chunk in events(client.post("/v1/chat/completions", json=body | {"stream": True}).text):
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == wanted


def test_completions_of_texts_and_tokens(client: Any, lm: LanguageModel) -> None:
    ids = lm.tokenize("hello", add_special=True)
    generation = lm.generate(ids, max_tokens=4, sampling=Sampling(greedy=True), logprobs=1)
    wanted = "".join(generation)
    how = {"max_tokens": 4, "temperature": 0, "logprobs": 1}
    for prompt in ("hello", ids):
        choice = client.post("/v1/completions", json={"prompt": prompt, **how}).json()["choices"][0]
        assert choice["text"] == wanted
        assert choice["logprobs"]["tokens"] == [each.token for each in generation.logprobs]
        assert choice["logprobs"]["token_logprobs"] == [
            next(iter(row.values())) for row in choice["logprobs"]["top_logprobs"]
        ]
    several = client.post(
        "/v1/completions", json={"prompt": ["hello", ids], "max_tokens": 4, "temperature": 0, "echo": True}
    )
    assert [c["text"] for c in several.json()["choices"]] == ["hello" + wanted] * 2
    streamed = events(client.post("/v1/completions", json={"prompt": "hello", **how, "stream": True}).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == wanted
    assert streamed[-1]["choices"][0]["finish_reason"] == "length"
    stopped = client.post("/v1/completions", json={"prompt": "hello", "temperature": 0, "stop": [wanted[1]]}).json()[
        "choices"
    ][0]
    assert (stopped["text"], stopped["finish_reason"]) == (wanted[: wanted.index(wanted[1])], "stop")
    full = client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 10**6, "ignore_eos": True}).json()
    assert full["usage"]["total_tokens"] == CONTEXT + 1


def test_tokens_in_the_shape_of_vllm(client: Any, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval asks so; what follows a text is scored without the tokens at its beginning."""
    bos, eos = lm.tokenizer.bos_id, lm.tokenizer.eos_id
    spelled = [lm.tokenizer.spelling(token) for token in (bos, eos)]
    monkeypatch.setattr(lm.tokenizer, "vocabulary", replace(lm.tokenizer.vocabulary, add_bos=True))
    info = client.get("/tokenizer_info").json()
    assert [info["bos_token"], info["eos_token"], info["add_bos_token"]] == [*spelled, True]
    assert (info["chat_template"], info["model_max_length"]) == (lm.chat_template.source, CONTEXT)
    text = "héllo" + spelled[1]
    ids = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert ids[-1] == eos != bos != ids[0]
    assert client.post("/tokenize", json={"prompt": text}).json()["tokens"] == [bos, *ids]
    back = client.post("/detokenize", json={"tokens": ids}).json()
    assert (back["prompt"], back["content"]) == (text, "héllo")


def test_models_tokens_health_and_metrics(client: Any, lm: LanguageModel) -> None:
    listed = client.get("/v1/models").json()["data"]
    assert [(model["id"], model["object"], model["max_model_len"]) for model in listed] == [("tiny", "model", CONTEXT)]
    assert client.get("/v1/models/tiny").json() == listed[0]
    ids = client.post("/tokenize", json={"content": "héllo"}).json()["tokens"]
    assert ids == lm.tokenize("héllo", add_special=False)
    pieces = client.post("/tokenize", json={"content": "hi", "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces).strip() == "hi"
    assert client.post("/detokenize", json={"tokens": ids}).json()["content"].strip() == "héllo"
    assert client.get("/health").json() == {"status": "ok"}
    client.post("/v1/completions", json={"prompt": [5] * 20, "max_tokens": 2, "ignore_eos": True})
    lines = client.get("/metrics").text.splitlines()
    of_tiny = 'model="tiny"'
    for name, value in {"prompt_tokens_total": 20, "generated_tokens_total": 2, "slots": 3}.items():
        assert f"camshaft_{name}{{{of_tiny}}} {value}" in lines
    assert f'camshaft_requests_total{{{of_tiny},end="length"}} 1' in lines
    assert f'camshaft_first_token_seconds_bucket{{{of_tiny},le="+Inf"}} 1' in lines
    assert 'camshaft_models{state="loaded"} 1' in lines


VALUES = {"top_k": 1, "repeat_penalty": 1.9, "presence_penalty": 5.0, "logit_bias": {200: 50.0}}


@pytest.mark.parametrize("field", VALUES)
def test_fields_of_sampling_reach_the_sampler(client: Any, lm: LanguageModel, field: str) -> None:
    value: Any = VALUES[field]
    wanted = "".join(lm.generate([40, 7], max_tokens=6, ignore_eos=True, sampling=Sampling(seed=2, **{field: value})))
    body = {"prompt": [40, 7], "max_tokens": 6, "ignore_eos": True, "seed": 2, field: value}
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == wanted


def test_a_response_whole_and_streamed(client: Any, lm: LanguageModel) -> None:
    wanted = "".join(lm.generate(messages=SAID, max_tokens=6, sampling=SAMPLING))
    body = {"instructions": "a", "input": "b", "temperature": 1.2, "top_p": 0.9, "seed": 5, "max_output_tokens": 6}
    whole = client.post("/v1/responses", json=body).json()
    assert whole["output"][0]["content"][0]["text"] == wanted
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["usage"]["output_tokens"] == 6
    said = [{"role": "user", "content": [{"type": "input_text", "text": "b"}]}, {**whole["output"][0], "content": "c"}]
    text = client.post("/v1/responses", json={**body, "input": said[:1], "stream": True}).text
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    told = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [each["type"] for each in told]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert "".join(each["delta"] for each in told if each["type"] == "response.output_text.delta") == wanted
    assert (told[0]["type"], told[-1]["type"]) == ("response.created", "response.incomplete")
    assert told[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert client.post("/v1/responses", json={"input": said, "max_output_tokens": 1}).status_code == 200


def test_the_best_of_several_answers(client: Any) -> None:
    body = {"prompt": [[5, 6, 7], [9, 8]], "max_tokens": 5, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    every = client.post("/v1/completions", json=body | {"n": 4, "logprobs": 0}).json()["choices"]
    best = client.post("/v1/completions", json=body | {"n": 2, "best_of": 4}).json()
    ranked = [
        sorted(four, key=lambda each: -sum(each["logprobs"]["token_logprobs"])) for four in (every[:4], every[4:])
    ]
    assert [choice["text"] for choice in best["choices"]] == [each["text"] for four in ranked for each in four[:2]]
    assert [(choice["index"], choice["logprobs"]) for choice in best["choices"]] == [(i, None) for i in range(4)]
    assert best["usage"]["completion_tokens"] == 40


def test_a_suffix_is_filled_up_to(client: Any, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(lm), "fill_tokens", {"fim_pre": 10, "fim_suf": 11, "fim_mid": 12})
    before, after = (lm.tokenizer.encode(text, add_special=False, at_start=False) for text in ("ab", "cd"))
    wanted = "".join(lm.generate([10, *before, 11, *after, 12], max_tokens=5, ignore_eos=True, temperature=0))
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "suffix": "cd"}
    answer = client.post("/v1/completions", json=body | {"prompt": ["ab", before]}).json()
    assert [choice["text"] for choice in answer["choices"]] == [wanted] * 2
