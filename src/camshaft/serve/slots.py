"""`/slots` of llama.cpp's server: what each slot does, and the prompt of its last request saved, restored and erased."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import ContextError, SlotsInUseError, StoreError
from camshaft.generate.engine import slot_files
from camshaft.serve.models.served import Served
from camshaft.serve.requests.errors import HttpError
from camshaft.serve.requests.fields import TEXT, Fields, read_fields, required, takes
from camshaft.serve.requests.respond import Json, body_of

_FIELDS: Fields = {"model": TEXT, "filename": TEXT}
_FILENAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # in the folder itself


async def slots(request: Request, served: Served) -> Response:
    """Answers with the state of each slot."""
    running = {running.slot: running for running in served.engine.running}
    rows = []
    for i in range(served.lm.plans.cache.n_slots):
        row: dict[str, Any] = {"id": i, "n_ctx": served.lm.context, "is_processing": i in running}
        row["speculative"] = served.engine.drafts_by is not None
        if i in running:
            one = running[i]
            row |= {"n_prompt_tokens": one.prompt_tokens, "n_prompt_tokens_cache": one.cached_tokens}
            row |= {"n_prompt_tokens_processed": min(one.position, one.prompt_tokens) - one.cached_tokens}
            row["next_token"] = [{"n_decoded": one.generated_tokens}]
            if row["speculative"]:
                row |= {"draft_n": one.drafted, "draft_n_accepted": one.accepted}
        rows.append(row)
    return Json(rows)


@takes(_FIELDS)
async def slot_action(request: Request, served: Served) -> Response:
    """Save, restore or erase the prompt of a slot's last request, as the query's `action` says."""
    given = read_fields(body_of(request), _FIELDS)
    action, text = request.query_params.get("action"), request.path_params["slot"]
    if action not in _ACTIONS:
        wanted = ", ".join(_ACTIONS)
        raise HttpError(
            400, f"'action' is {str(action)[:50]!r}; wanted one of {wanted}", code="invalid_value", param="action"
        )
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HttpError(404, f"there is no slot {text[:50]!r}", code="not_found")
    return Json(await run_in_threadpool(_ACTIONS[action], served, int(text), given))


def _save(served: Served, slot: int, given: dict[str, Any]) -> dict[str, Any]:
    path, begun = _path(served, given), time.perf_counter()
    n = _refusing(lambda: slot_files.save(served.engine, slot, path))
    saved = {"id_slot": slot, "filename": path.name, "n_saved": n, "n_written": path.stat().st_size}
    return saved | {"timings": {"save_ms": _ms(begun)}}


def _restore(served: Served, slot: int, given: dict[str, Any]) -> dict[str, Any]:
    path, begun = _path(served, given), time.perf_counter()
    n = _refusing(lambda: slot_files.restore(served.engine, slot, path))
    restored = {"id_slot": slot, "filename": path.name, "n_restored": n, "n_read": path.stat().st_size}
    return restored | {"timings": {"restore_ms": _ms(begun)}}


def _erase(served: Served, slot: int, given: dict[str, Any]) -> dict[str, Any]:
    if "filename" in given:
        raise HttpError(400, "'filename' with action=erase", code="invalid_value", param="filename")
    return {"id_slot": slot, "n_erased": _refusing(lambda: slot_files.erase(served.engine, slot))}


_ACTIONS: dict[str, Callable[[Served, int, dict[str, Any]], dict[str, Any]]] = {
    "save": _save,
    "restore": _restore,
    "erase": _erase,
}


def _path(served: Served, given: dict[str, Any]) -> Path:
    """The file of a request. Raises HttpError without a folder for such files, or for a name that may lie elsewhere."""
    if served.slot_folder is None:
        raise HttpError(501, "slots are not saved here; start the server with --slot-save-path", code="not_supported")
    name: str = required(given, "filename")
    path = served.slot_folder / name
    if _FILENAME.fullmatch(name) is None or path.is_symlink():
        message = (
            "'filename' is not a name of a file in the folder: wanted up to 128 letters, digits, _, - and ., no . first"
        )
        raise HttpError(400, message, code="invalid_value", param="filename")
    return path


def _refusing(work: Callable[[], int]) -> int:
    """Returns `work()`. Errors of files become HttpError, without the folder."""
    try:
        return work()
    except StoreError as error:
        reason = str(error).rpartition(": ")[2]
        raise HttpError(400, f"'filename': {reason}", code="invalid_value", param="filename") from None
    except SlotsInUseError as error:
        raise HttpError(503, str(error), code="unavailable") from None
    except ContextError as error:
        raise HttpError(400, str(error), code="unavailable") from None


def _ms(begun: float) -> float:
    return round(1e3 * (time.perf_counter() - begun), 3)
