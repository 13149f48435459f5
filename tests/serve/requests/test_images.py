"""Images in the requests of every interface: the answers are the library's, and what is not an image is refused by name."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from tests.serve.conftest import Kept, client_of
from tests.support.models.images import drawn_image, opened

Image = pytest.importorskip("PIL.Image")

GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    with opened("idefics3", tmp_path_factory.mktemp("seeing")) as lm:
        yield lm


@pytest.fixture
def client(seeing: LanguageModel) -> Iterator[Any]:
    from camshaft.serve.models.served import Served

    with client_of(Served("tiny", Engine(seeing))) as made:
        yield made


def encoded(pixels: np.ndarray, kind: str = "PNG") -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def url(pixels: np.ndarray) -> str:
    return f"data:image/png;base64,{encoded(pixels)}"


def chat(*parts: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": [*parts]}], **GREEDY}


def part(value: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": value}}


IMAGE = drawn_image(37, 23)
TEXT = {"type": "text", "text": "hi"}


def test_every_interface_says_what_the_library_says(client: Any, seeing: LanguageModel) -> None:
    content = [{"type": "image", "image": IMAGE}, TEXT]
    wanted = "".join(
        seeing.generate(messages=[{"role": "user", "content": content}], max_tokens=6, sampling=Sampling(temperature=0))
    )
    data = encoded(IMAGE)
    asked = client.post("/v1/chat/completions", json=chat(part(url(IMAGE)), TEXT)).json()
    assert asked["choices"][0]["message"]["content"] == wanted
    parts = [{"type": "input_image", "image_url": url(IMAGE)}, {"type": "input_text", "text": "hi"}]
    body = {"model": "tiny", "input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 6}
    assert client.post("/v1/responses", json=body).json()["output"][0]["content"][0]["text"] == wanted
    source = {"type": "base64", "media_type": "image/png", "data": data}
    body = chat({"type": "image", "source": source}, TEXT)
    assert client.post("/v1/messages", json=body).json()["content"][0]["text"] == wanted
    options = {"stream": False, "options": {"temperature": 0, "num_predict": 6}}
    message = {"role": "user", "content": "hi", "images": [data]}
    body = {"model": "tiny", "messages": [message], **options}
    assert client.post("/api/chat", json=body).json()["message"]["content"] == wanted
    body = {"model": "tiny", "prompt": "hi", "images": [data], **options}
    assert client.post("/api/generate", json=body).json()["response"] == wanted


def test_the_model_is_said_to_take_images(client: Any) -> None:
    assert client.get("/v1/models/tiny").json()["input_modalities"] == ["text", "image"]
    assert client.get("/props").json()["modalities"] == {"vision": True, "audio": False}


def test_another_image_shares_no_block(client: Any) -> None:
    def cached(pixels: np.ndarray) -> int:
        body = client.post("/v1/chat/completions", json=chat(part(url(pixels)), TEXT)).json()
        return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])

    other = IMAGE.copy()
    other[-1, -1] ^= 255
    cached(IMAGE)
    again, changed = cached(IMAGE), cached(other)
    assert again > changed


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("http://example.com/a.png", "wanted a data: URL in base64: the server fetches no images"),
        ("data:image/png;base64,????", "is not base64"),
        ("data:image/png;base64,aGVsbG8=", "is no image; wanted a file of PNG, JPEG"),
        (url(IMAGE)[:900], "is"),
    ],
)
def test_what_is_no_image_is_refused_by_name(client: Any, value: str, wanted: str) -> None:
    answer = client.post("/v1/chat/completions", json=chat(part(value)))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert wanted in error["message"]
    assert error["param"] == "messages[0].content[0].image_url.url"


def test_other_refusals(client: Any, roomy_client: Any) -> None:
    answer = roomy_client.post("/v1/chat/completions", json=chat(part(url(IMAGE)), TEXT))
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        422,
        "the model sees no images",
    )
    body = chat(part(url(IMAGE)))
    body["messages"][0]["role"] = "assistant"
    assert "wanted them of 'user'" in client.post("/v1/chat/completions", json=body).json()["error"]["message"]
    spelled = {"type": "text", "text": "<image>"}
    assert client.post("/v1/chat/completions", json=chat(part(url(IMAGE)), spelled)).status_code == 200
    source = {"type": "url", "url": "http://example.com/a.png"}
    answer = client.post("/v1/messages", json=chat({"type": "image", "source": source}))
    assert "the server fetches no images" in answer.json()["error"]["message"]


def test_a_slot_whose_prompt_had_images_takes_a_file_and_writes_none(seeing: LanguageModel, tmp_path: Path) -> None:
    engine = Engine(seeing)
    with client_of(Kept("tiny", engine, slot_folder=tmp_path)) as client:
        client.post("/v1/completions", json={"prompt": [40] * 33, "max_tokens": 1})
        (slot,) = engine.last_prompts
        acts = f"/slots/{slot}?action="
        assert client.post(f"{acts}save", json={"filename": "a"}).json()["n_saved"] == 32
        engine.last_prompts.clear()
        client.post("/v1/chat/completions", json=chat(part(url(IMAGE)), TEXT))
        assert engine.last_prompts == {slot: None}
        refused = client.post(f"{acts}save", json={"filename": "b"})
        assert (refused.status_code, "has images" in refused.text) == (400, True)
        assert client.post(f"{acts}restore", json={"filename": "a"}).json()["n_restored"] == 32
