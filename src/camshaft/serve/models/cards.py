"""Lists of a server's models: OpenAI's `/v1/models`, Ollama's `/api/tags` and `/api/ps`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.serve.models.entry import Entry, memory_of
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import Embedder, Ranker, Served
from camshaft.serve.requests.respond import Json

_FOREVER = timedelta(days=36500)


def _context(entry: Entry) -> int | None:
    """Returns the context length in tokens; None if the model is not loaded."""
    loaded = entry.loaded
    if isinstance(loaded, Served):
        return loaded.lm.context
    return loaded.model.context if isinstance(loaded, Embedder | Ranker) else None


def _card(entry: Entry, models: Models) -> dict[str, Any]:
    card, context = entry.card, _context(entry)
    answer: dict[str, Any] = {
        "id": card.name,
        "object": "model",
        "created": models.created,
        "owned_by": "camshaft",
        "kind": card.kind,
        "status": {"value": entry.state},
    }
    answer |= {"aliases": sorted(card.aliases)} if card.aliases else {}
    answer |= {"parent": card.base} if card.base is not None else {}
    if isinstance(entry.loaded, Served):
        answer["input_modalities"] = ["text", *["image"] * (entry.loaded.lm.vision is not None)]
    return answer | ({} if context is None else {"max_model_len": context})


async def models(request: Request, models: Models) -> Response:
    """Answers with all models."""
    return Json({"object": "list", "data": [_card(entry, models) for entry in models.entries.values()]})


async def model(request: Request, models: Models) -> Response:
    """Answers with the named model."""
    return Json(_card(models.find(request.path_params["name"], None), models))


def _tag(entry: Entry) -> dict[str, Any]:
    name, loaded = entry.card.name, entry.loaded
    family = {"family": loaded.lm.config.architecture} if isinstance(loaded, Served) else {}
    return {
        "name": name,
        "model": name,
        "size": memory_of([entry]),
        "digest": "",
        "details": {"format": "gguf", **family},
    }


async def tags(request: Request, models: Models) -> Response:
    """Answers with all models in Ollama's format."""
    modified = {"modified_at": datetime.fromtimestamp(models.created, UTC).isoformat()}
    return Json({"models": [_tag(entry) | modified for entry in models.entries.values()]})


async def running(request: Request, models: Models) -> Response:
    """Answers with the loaded models in Ollama's format."""
    return Json({"models": [_running(entry, models) for entry, _ in models.in_memory()]})


def _running(entry: Entry, models: Models) -> dict[str, Any]:
    left_s = models.left_s(entry)
    expires = datetime.now(UTC) + (_FOREVER if left_s is None else timedelta(seconds=left_s))
    times = {"expires_at": expires.isoformat(), "size_vram": 0, "context_length": _context(entry)}
    return _tag(entry) | times
