"""The OpenAPI file says what the tables of fields say."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from camshaft.serve.app import MODEL_ROUTES, ROUTES
from camshaft.serve.openai import chat
from camshaft.serve.requests.fields import BODIES


@pytest.fixture
def document(client: Any) -> Any:
    return client.get("/openapi.json").json()


def test_every_address_and_field_is_in_it(document: Any) -> None:
    said = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    posts = set(MODEL_ROUTES)
    assert said == {(method, path.replace(":path", "")) for method, path in ROUTES} | posts
    for (method, path), (handler, _) in MODEL_ROUTES.items():
        if method != "POST":
            continue
        operation = document["paths"][path]["post"]
        schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
        assert set(schema["properties"]) == set(BODIES[handler].fields)
        assert set(schema.get("required", ())) <= set(schema["properties"])
        assert operation["summary"]
        assert {"200", "400", "401", "404", "413", "429"} <= operation["responses"].keys()


def test_its_schemas_are_schemas_and_hold_requests(document: Any) -> None:
    schemas = {
        path: next(iter(methods["post"]["requestBody"]["content"].values()))["schema"]
        for path, methods in document["paths"].items()
        if "post" in methods
    }
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schemas["/v1/chat/completions"]).is_valid
    parts = [{"type": "text", "text": "a"}]
    for content in ("a", parts, None):
        assert check(
            {"messages": [{"role": "user", "content": content}], "temperature": 0.5, "stop": ["a"], "seed": None}
        )
    wrong: list[Any] = [
        {}, {"messages": "a"}, {"messages": [{"content": "a"}]}, {"messages": [], "nonsense": 1},
        {"messages": [], "temperature": "hot"}, {"messages": [], "stop": ["a"] * 99}, {"messages": [], "n": 0},
        {"messages": [{"role": "other"}]}, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ]  # fmt: skip
    assert [check(body) for body in wrong] == [False] * len(wrong)
    assert schemas["/v1/chat/completions"]["required"] == ["messages"]
    assert chat.FIELDS["n"].wanted == schemas["/v1/chat/completions"]["properties"]["n"]["description"]
