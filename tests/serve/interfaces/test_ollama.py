"""Ollama's interface: chats and prompts, whole and as lines, with its options, and its errors."""

from __future__ import annotations

import json
from typing import Any

from camshaft import LanguageModel, Sampling
from camshaft.serve.requests.options import read_sampling

SAMPLING = Sampling(temperature=1.2, top_k=50, seed=5)
OPTIONS = {"temperature": 1.2, "top_k": 50, "seed": 5, "num_predict": 6, "num_ctx": 48}
USER = [{"role": "user", "content": "b"}]


def test_chats_and_prompts(client: Any, lm: LanguageModel) -> None:
    wanted = "".join(lm.generate(messages=USER, max_tokens=6, sampling=SAMPLING))
    asked: dict[str, dict[str, Any]] = {"/api/chat": {"messages": USER}, "/api/generate": {"prompt": "b"}}
    for path, said in asked.items():
        body = {"model": "tiny:latest", "options": OPTIONS, **said}
        whole = client.post(path, json=body | {"stream": False}).json()
        lines = [json.loads(line) for line in client.post(path, json=body).text.splitlines()]
        texts = [line["message"]["content"] if "message" in line else line["response"] for line in (whole, *lines)]
        assert texts[0] == "".join(texts[1:]) == wanted
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        for last in (whole, lines[-1]):
            assert (last["done_reason"], last["eval_count"]) == ("length", 6)
            assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"] > 0
    raw = {
        "model": "tiny",
        "prompt": "b",
        "raw": True,
        "stream": False,
        "options": {"temperature": 0, "num_predict": 3},
    }
    greedy = lm.generate(lm.tokenize("b"), max_tokens=3, sampling=Sampling(greedy=True))
    assert client.post("/api/generate", json=raw).json()["response"] == "".join(greedy)


def test_models_and_errors(client: Any) -> None:
    assert [model["name"] for model in client.get("/api/tags").json()["models"]] == ["tiny"]
    assert client.get("/api/version").json()["version"]
    assert client.post("/api/show", json={"model": "tiny"}).json()["details"]["family"] == "llama"
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"messages": USER}, 400, "'model' is missing"),
        ({"model": "other", "messages": USER}, 404, "there is no model 'other'"),
        ({"model": "tiny", "messages": USER, "tools": [{}]}, 400, "'tools[0].function'"),
        ({"model": "tiny", "messages": USER, "format": "xml"}, 400, "'format'"),
        ({"model": "tiny", "messages": USER, "format": {"type": "nope"}}, 400, "Invalid type: nope"),
        ({"model": "tiny", "messages": USER, "options": {"num_ctx": 10**6}}, 400, "options.num_ctx"),
        ({"model": "tiny", "messages": USER, "options": {"mirostat_x": 1}}, 400, "'options.mirostat_x'"),
        ({"model": "tiny", "messages": USER, "keep_alive": "soon"}, 400, "'keep_alive'"),
    ]
    for body, status, message in wrong:
        answer = client.post("/api/chat", json=body)
        assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


def test_messages_with_an_empty_list_of_images_are_taken(client: Any) -> None:
    """litellm sends one."""
    body = {"model": "tiny", "messages": [USER[0] | {"images": []}], "stream": False, "options": {"num_predict": 1}}
    assert client.post("/api/chat", json=body).status_code == 200
    body["messages"][0]["images"] = ["aaaa"]
    assert "images" in client.post("/api/chat", json=body).json()["error"]


def test_options_of_sampling_have_their_names_at_ollama(client: Any, lm: LanguageModel) -> None:
    given = {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2, "seed": 2}
    wanted = Sampling(mirostat=2, mirostat_ent=3, mirostat_lr=0.2, seed=2)
    assert read_sampling(given, lm.config.vocab_size) == wanted
    refused = client.post("/api/generate", json={"model": "tiny", "prompt": "a", "options": given | {"typical_p": 0.5}})
    assert (refused.status_code, "typical_p=0.5 with mirostat=2" in refused.json()["error"]) == (400, True)
