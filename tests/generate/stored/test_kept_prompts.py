"""Prompts kept between runs: the text is that without them; foreign and damaged files are refused or skipped."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import SettingError, StoreError
from camshaft.generate.stored import prompt_cache
from camshaft.generate.stored.prompt_cache import PromptCache
from camshaft.store.store import store
from tests.generate.conftest import PlainTemplate, opened_in_f32
from tests.support.fixtures import tiny_model
from tests.support.models.files import changed_model
from tests.support.quick import quick_of

CONTEXT = 160
RECURRENT = quick_of(("lfm2", "mamba", "qwen35"), ("lfm2",))
PROMPT = [int(i) for i in np.random.default_rng(0).integers(5, 250, 100)]


_opened = functools.partial(opened_in_f32, context=CONTEXT, sessions=2)


@pytest.fixture(scope="module")
def lm(tiny_folder: Path) -> Iterator[LanguageModel]:
    with _opened(tiny_model("llama", tiny_folder)) as opened:
        # Its plans are proved here, in the tests' store: in an empty one each test would prove them again.
        assert [len(_text(opened, ids, prompt_cache=tiny_folder / "plans")[0]) for ids in (PROMPT, PROMPT[:17])] == [
            8,
            8,
        ]
        yield opened


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """'auto', with an empty store."""
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    return "auto"


def _text(lm: LanguageModel, ids: list[int], **options: Any) -> tuple[list[int], int]:
    generation = lm.generate(ids, **{"seed": 1, "max_tokens": 8} | options)
    "".join(generation)
    return generation.ids, generation.kept_tokens


@pytest.mark.parametrize("where", ["file", "auto"])
def test_a_prompt_begins_with_what_was_kept(lm: LanguageModel, tmp_path: Path, auto: str, where: str) -> None:
    kept = auto if where == "auto" else tmp_path / "prompt"
    longer, other = [*PROMPT, 9, 8, 7], [*PROMPT[:50], 1, 2, 3]
    assert _text(lm, PROMPT, prompt_cache=kept) == (_text(lm, PROMPT)[0], 0)
    for ids, n in ((PROMPT, 96), (longer, 96), (other, 48), (PROMPT[:20], 16), (PROMPT[:17], 0), ([3, 4], 0)):
        assert _text(lm, ids, prompt_cache=kept) == (_text(lm, ids)[0], n)


def test_logits_after_kept_tokens_have_the_bits_of_a_whole_prompt(lm: LanguageModel, tmp_path: Path) -> None:
    kept = tmp_path / "prompt"
    generation = lm.generate(PROMPT, max_tokens=1, logprobs=5, prompt_cache=kept)
    list(generation)
    again = lm.generate(PROMPT, max_tokens=1, logprobs=5, prompt_cache=kept)
    list(again)
    assert again.kept_tokens == 96
    assert again.logprobs[0].top == generation.logprobs[0].top


def test_a_file_has_the_last_prompt_of_which_much_is_new(lm: LanguageModel, tmp_path: Path) -> None:
    kept = tmp_path / "prompt"
    _text(lm, PROMPT, prompt_cache=kept)
    before = kept.read_bytes()
    _text(lm, [*PROMPT, 5, 6], prompt_cache=kept)
    assert kept.read_bytes() == before
    assert os.name == "nt" or kept.stat().st_mode & 0o777 == 0o600
    _text(lm, PROMPT[::-1], prompt_cache=kept)
    assert kept.read_bytes() != before
    assert _text(lm, PROMPT[::-1], prompt_cache=kept)[1] == 96
    assert [path.name for path in tmp_path.iterdir()] == ["prompt"]


@pytest.mark.parametrize("name", ["read", "write"])
def test_others_generate_while_a_prompt_is_read_or_written(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method, others = getattr(PromptCache, name), list[tuple[list[int], int]]()

    def beside(kept: PromptCache, *what: Any) -> None:
        other = threading.Thread(target=lambda: others.append(_text(lm, [7, 8, 9])), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive()
        method(kept, *what)

    monkeypatch.setattr(PromptCache, name, beside)
    kept = tmp_path / "prompt"
    assert _text(lm, PROMPT, prompt_cache=kept) == (_text(lm, PROMPT)[0], 0)
    assert others == [_text(lm, [7, 8, 9])]
    assert _text(lm, PROMPT, prompt_cache=kept)[1] == 96


def test_what_was_read_is_not_taken_for_other_tokens(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the session meanwhile may give it others."""
    read, kept, other = PromptCache.read, tmp_path / "prompt", [*PROMPT[:40], 3, *PROMPT[41:]]
    _text(lm, PROMPT, prompt_cache=kept)
    with lm.session() as session:

        def changed(cache: PromptCache, *given: Any) -> None:
            read(cache, *given)
            session._pending[:] = other

        monkeypatch.setattr(PromptCache, "read", changed)
        generation = session.generate(PROMPT, seed=1, max_tokens=8, prompt_cache=kept)
        list(generation)
    assert (generation.ids, generation.kept_tokens) == (_text(lm, other)[0], 0)


def test_a_session_goes_on_after_its_prompt_could_not_be_written(lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "folder").touch()  # in place of one
    with lm.session() as session:
        with pytest.raises(StoreError, match="folder"):
            list(session.generate(PROMPT, max_tokens=4, prompt_cache=tmp_path / "folder" / "prompt"))
        assert session.tokens == PROMPT


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_states_are_kept_too(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    kept = tmp_path / "prompt"
    with _opened(tiny_model(name, tiny_folder)) as lm:
        _text(lm, PROMPT, prompt_cache=kept)
        longer = [*PROMPT, 9, 8, 7]
        assert _text(lm, longer, prompt_cache=kept) == (_text(lm, longer)[0], 100)
        assert _text(lm, PROMPT[:60], prompt_cache=kept)[1] == 0
        with lm.session() as session:
            "".join(session.generate(longer, seed=1, max_tokens=4, prompt_cache=kept))
            session.rewind(101)
            assert session.position == 100


@pytest.mark.parametrize("form", quick_of(["f16", "bf16"], ["f16"]))
def test_every_form_of_the_cache_is_kept_but_not_mixed(tiny_folder: Path, tmp_path: Path, form: str) -> None:
    kept = tmp_path / "prompt"
    with _opened(tiny_model("llama", tiny_folder), kv_cache=form, activations="q8") as lm:
        _text(lm, PROMPT, prompt_cache=kept)
        assert _text(lm, PROMPT, prompt_cache=kept) == (_text(lm, PROMPT)[0], 96)
    with (
        _opened(tiny_model("llama", tiny_folder)) as lm,
        pytest.raises(StoreError, match="another model, adapter, context"),
    ):
        _text(lm, PROMPT, prompt_cache=kept)


def test_weights_alone_tell_models_apart(lm: LanguageModel, tiny_folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "prompt"
    _text(lm, PROMPT, prompt_cache=kept)
    (tmp_path / "other").mkdir()
    norm = np.full(64, 1.5, np.float32)
    with lm.plans.file.mapped and _opened(
        changed_model("llama", tmp_path / "other", tensors={"output_norm.weight": norm[: lm.config.dim]})
    ) as other, pytest.raises(StoreError, match="is of another model"):  # fmt: skip
        _text(other, PROMPT, prompt_cache=kept)


def _damages(data: bytes) -> Iterator[bytes]:
    head = int.from_bytes(data[18:22], "little")
    document = json.loads(data[26 : 26 + head])
    yield b""
    yield b"hello"
    yield data[:30]
    yield data[:-1]
    yield data + b"x"
    for at in (0, 18, 24, 40, 26 + head + 5, len(data) // 2, len(data) - 2):
        yield data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]
    for changed in (
        {"tokens": -1}, {"tokens": True}, {"tokens": 1 << 40}, {"tokens": 1 << 24}, {"arrays": 5}, {"arrays": [["x", -1]]},
        {"positions": [1 << 70]}, {"positions": None}, {"states": [["a"]]}, {"model": 7},
    ):  # fmt: skip
        text = json.dumps(document | changed).encode()
        yield data[:18] + len(text).to_bytes(4, "little") + data[22:26] + text + data[26 + head :]
    yield data[:18] + (2 << 20).to_bytes(4, "little") + data[22:]
    deep = b"[" * 100_000
    yield data[:18] + len(deep).to_bytes(4, "little") + data[22:26] + deep


def test_a_damaged_file_is_refused_in_one_line(lm: LanguageModel, tmp_path: Path) -> None:
    kept = tmp_path / "prompt"
    _text(lm, PROMPT, prompt_cache=kept)
    for damaged in _damages(kept.read_bytes()):
        kept.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"is not a kept prompt, or is damaged: .+") as caught:
            _text(lm, PROMPT, prompt_cache=kept)
        assert "\n" not in str(caught.value)
        assert str(kept) in str(caught.value)


def test_what_is_no_file_is_refused(lm: LanguageModel, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "file", Path(os.devnull)):
        with pytest.raises(StoreError, match=str(path)):
            _text(lm, PROMPT, prompt_cache=path)
    for value in ("", 5, "a\0b"):
        with pytest.raises(SettingError, match="'auto', the path of a file or None"):
            lm.generate(PROMPT, prompt_cache=value)
    with pytest.raises(SettingError, match="a batch got prompt_cache='auto'"):
        lm.generate_batch([PROMPT], prompt_cache="auto")


def test_a_link_leads_to_the_file(lm: LanguageModel, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "prompt")
    _text(lm, PROMPT, prompt_cache=link)
    assert link.is_symlink()
    assert _text(lm, PROMPT, prompt_cache=link)[1] == 96


def test_damaged_entries_of_the_store_are_skipped_and_replaced(lm: LanguageModel, auto: str) -> None:
    _text(lm, PROMPT, prompt_cache=auto)
    (entry,) = store().prompts.entries()
    data = entry.path.read_bytes()
    for damaged in (data[:100], data[:-3] + b"xyz"):
        entry.path.write_bytes(damaged)
        with pytest.warns(UserWarning, match="a kept prompt is processed again: .* damaged"):
            assert _text(lm, PROMPT, prompt_cache=auto) == (_text(lm, PROMPT)[0], 0)
        assert _text(lm, PROMPT, prompt_cache=auto)[1] == 96


def test_the_store_keeps_several_prompts_up_to_its_bound(
    lm: LanguageModel, auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[*PROMPT[i:], *PROMPT[:i]] for i in range(0, 50, 10)]
    for ids in prompts:
        _text(lm, ids, prompt_cache=auto)
    assert [_text(lm, ids, prompt_cache=auto)[1] for ids in prompts] == [96] * 5
    entries = sorted(store().prompts.entries(), key=lambda entry: entry.path)
    assert len(entries) == 5
    monkeypatch.setattr(store().prompts, "max_nbytes", 3 * entries[0].nbytes)
    for i, ids in enumerate(prompts):  # used in this order, the last one first
        (path,) = (e.path for e in entries if e.path.name == prompt_cache_path(lm, ids).name)
        os.utime(path, (1e9 - i, 1e9 - i))
    _text(lm, [3] * 100, prompt_cache=auto)
    kept = [_text(lm, ids, prompt_cache=auto, max_tokens=1)[1] for ids in prompts[:1]]
    assert kept == [96]
    assert sum(entry.nbytes for entry in store().prompts.entries()) <= 3 * entries[0].nbytes


def prompt_cache_path(lm: LanguageModel, ids: list[int]) -> Path:
    """The entry of a prompt."""
    return store().prompts.path(prompt_cache.entry_key(prompt_cache.model_digest(lm), ids))


def test_a_conversation_takes_its_system_message_from_an_earlier_one(
    lm: LanguageModel, auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(lm), "chat_template", PlainTemplate())
    system = "ab cd ef " * 12
    for said, n in (("gh", False), ("ij", True)):
        with lm.conversation(system=system, max_tokens=4, seed=1, prompt_cache=auto) as talk:
            answer = talk.say(said)
            list(answer)
            assert (answer.kept_tokens > 0) == n
            list(talk.say("kl"))
