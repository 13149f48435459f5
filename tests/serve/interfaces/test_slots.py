"""Slots of llama.cpp's interface: prompts saved to files, restored into the prefix cache, and erased."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.served import Served
from tests.generate.conftest import SESSIONS
from tests.serve.conftest import client_of

TEXTS = "/v1/completions"
PROMPT = list(range(20, 60))  # two whole blocks
BODY = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def saving(lm: LanguageModel, tmp_path: Path) -> Iterator[Any]:
    with client_of(Served("tiny", Engine(lm), slot_folder=tmp_path)) as made:
        yield made
    assert lm.plans.cache.n_free == SESSIONS


def asked(client: Any) -> tuple[int, str]:
    """The cached tokens of the prompt, and its answer."""
    answer = client.post(TEXTS, json=BODY).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]


def erase_all(client: Any) -> list[int]:
    return [client.post(f"/slots/{i}?action=erase").json()["n_erased"] for i in range(SESSIONS)]


def act(client: Any, action: str, filename: Any, slot: int = 0) -> Any:
    return client.post(f"/slots/{slot}?action={action}", json={"filename": filename})


def used_slot(client: Any) -> int:
    """The slot that the last request had: the only one that can be saved."""
    return next(i for i in range(SESSIONS) if act(client, "save", f"probe{i}", i).status_code == 200)


def test_a_prompt_is_saved_erased_and_restored(saving: Any, tmp_path: Path) -> None:
    erase_all(saving)
    assert asked(saving)[0] == 0
    wanted = asked(saving)[1]
    slot = used_slot(saving)
    saved = act(saving, "save", "a.bin", slot).json()
    nbytes = (tmp_path / "a.bin").stat().st_size
    assert (saved["id_slot"], saved["n_saved"], saved["n_written"], saved["filename"]) == (slot, 32, nbytes, "a.bin")
    assert sum(erase_all(saving)) == 32
    assert erase_all(saving) == [0] * SESSIONS
    assert act(saving, "save", "b.bin", slot).status_code == 400
    restored = act(saving, "restore", "a.bin", 1).json()
    assert (restored["id_slot"], restored["n_restored"], restored["n_read"]) == (1, 32, nbytes)
    assert act(saving, "restore", "a.bin", 0).json()["n_restored"] == 32  # its blocks are there already
    assert asked(saving) == (32, wanted)
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-1] + b"x")
    erase_all(saving)
    assert "the checksum of" in act(saving, "restore", "a.bin").json()["error"]["message"]
    assert asked(saving) == (0, wanted)


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/b", "a\\b", "..", ".a", "", "a" * 129, "a\x00", "\u0661", "link", 5]
)
def test_other_files_are_out_of_reach(saving: Any, tmp_path: Path, name: Any) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    for action in ("save", "restore"):
        answer = act(saving, action, name)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "filename")


def test_what_is_wrong_is_named(saving: Any, client: Any, lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no prompt" * 9)
    for path, body, status, said in (
        ("/slots/0?action=restore", {"filename": "none"}, 400, "there is no such file"),
        ("/slots/0?action=restore", {"filename": "text"}, 400, "its first bytes are others"),
        ("/slots/0?action=restore", {}, 400, "'filename' is missing"),
        ("/slots/0?action=move", {}, 400, "'action' is 'move'; wanted one of save, restore, erase"),
        ("/slots/0", {}, 400, "'action' is 'None'"),
        (f"/slots/{SESSIONS}?action=erase", {}, 400, f"there is no slot {SESSIONS}; wanted 0 to {SESSIONS - 1}"),
        ("/slots/-1?action=erase", {}, 404, "there is no slot '-1'"),
        ("/slots/0?action=erase", {"filename": "a"}, 400, "'filename' with action=erase"),
        ("/slots/0?action=erase", {"x": 1}, 400, "'x' is not supported"),
        ("/slots/0?action=erase", {"model": "other"}, 404, "no model 'other'"),
    ):
        answer = saving.post(path, json=body)
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    slots = [lm.plans.cache.open_slot() for _ in range(SESSIONS)]
    try:
        assert act(saving, "restore", "probe0").status_code == 400
        assert act(saving, "save", "b").status_code == 503
    finally:
        for slot in slots:
            lm.plans.cache.close_slot(slot)
    answer = act(client, "save", "a")
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")
