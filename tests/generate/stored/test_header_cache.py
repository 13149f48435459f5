"""Cached model headers give the same file and tokens, until the header or the entry changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.errors import FormatError, StoreError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.mapped import Cursor
from camshaft.generate.stored import header_cache
from camshaft.generate.stored.header_cache import ModelFile, from_bytes, open_model_file, to_bytes
from camshaft.store.objects import ObjectStore
from camshaft.store.store import store
from camshaft.text.tokenizer import Tokenizer
from tests.support.fixtures import awkward_strings
from tests.support.models.files import tiny_model
from tests.support.models.vocabularies import byte_level, sentencepiece, write_gguf

KINDS = {"byte-level": byte_level("qwen2"), "sentencepiece": sentencepiece()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def written(folder: Path, keys: Any, name: str = "vocabulary.gguf") -> Path:
    write_gguf(keys, folder / name)
    return folder / name


def kept(path: Path) -> ModelFile:
    """The file, opened a second time after its header was kept."""
    first = open_model_file(path)
    assert not first.from_cache
    first.save(first.tokenizer())
    return open_model_file(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_file_is_the_file(folder: Path, kind: str) -> None:
    path = written(folder, KINDS[kind])
    known, read = kept(path), open_gguf(path)
    assert known.from_cache
    assert (known.file.version, known.file.header_nbytes) == (read.version, read.header_nbytes)
    assert dict(known.file.metadata.entries) == dict(read.metadata.entries)
    ours, wanted = known.tokenizer(), Tokenizer.from_gguf(read.metadata)
    for text in awkward_strings():
        assert ours.encode(text) == wanted.encode(text), text
        assert ours.encode(text, parse_special=False) == wanted.encode(text, parse_special=False), text
    assert [ours.decode_bytes([i], special=True) for i in range(ours.n_vocab)] == [
        wanted.decode_bytes([i], special=True) for i in range(wanted.n_vocab)
    ]
    assert (ours.eos_ids, ours.bos_id, ours.eos_id) == (wanted.eos_ids, wanted.bos_id, wanted.eos_id)


def test_tensors_lie_where_they_lay(folder: Path) -> None:
    path = tiny_model("llama", folder)
    known, read = kept(path), open_gguf(path)
    assert known.from_cache
    assert list(known.file.tensors) == list(read.tensors)
    for name, tensor in read.tensors.items():
        ours = known.file.tensors[name]
        assert (ours.shape, ours.format, ours.offset) == (tensor.shape, tensor.format, tensor.offset)
        np.testing.assert_array_equal(ours.data(), tensor.data())


def test_a_known_file_is_opened_without_passing_over_its_header(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, KINDS["byte-level"])
    kept(path)
    monkeypatch.setattr(Cursor, "skip_strings", None)
    again = open_model_file(path)
    vocabulary = again.tokenizer().vocabulary
    assert "whole" not in vars(vocabulary.ids)  # and nothing of it is decoded before somebody asks
    assert vocabulary.ids[vocabulary.tokens[7]] == 7
    assert "whole" not in vars(vocabulary.ids)


def test_a_changed_header_is_read_anew_under_the_same_key(folder: Path) -> None:
    """One byte of its last value, the end token's number; the file's size stays."""
    path = written(folder, KINDS["byte-level"])
    before = kept(path)
    content = bytearray(path.read_bytes())
    place = content.rindex(b"tokenizer.ggml.eos_token_id") + len("tokenizer.ggml.eos_token_id") + 4
    assert place > 4096
    content[place] ^= 1
    path.unlink()
    path.write_bytes(content)
    after = open_model_file(path)
    assert after.key == before.key
    assert not after.from_cache
    assert (before.tokenizer().eos_id, after.tokenizer().eos_id) == (0, 1)


def test_what_changed_while_it_was_open_is_not_kept(folder: Path) -> None:
    """An editor of metadata writes in place: of two headers, the one that was read would be kept as what the other says."""
    path = written(folder, KINDS["byte-level"])
    opened = open_model_file(path)
    tokenizer = opened.tokenizer()
    end = path.read_bytes().rindex(b"tokenizer.ggml.eos_token_id") + len("tokenizer.ggml.eos_token_id") + 4
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"\1")
    opened.save(tokenizer)
    after = open_model_file(path)
    assert (tokenizer.eos_id, after.from_cache, after.tokenizer().eos_id) == (0, False, 1)


def test_of_a_file_that_became_shorter_nothing_is_kept(folder: Path) -> None:
    """To read its header again would end the process."""
    path = written(folder, KINDS["byte-level"])
    opened = open_model_file(path)
    tokenizer = opened.tokenizer()
    whole = path.read_bytes()
    os.truncate(path, 1)
    opened.save(tokenizer)
    path.write_bytes(whole)
    assert not open_model_file(path).from_cache


def test_a_longer_file_has_another_key(folder: Path) -> None:
    path = written(folder, KINDS["byte-level"])
    before = kept(path)
    with path.open("ab") as file:
        file.write(bytes(32))
    after = open_model_file(path)
    assert (after.key == before.key, after.from_cache) == (False, False)


def test_other_sources_of_camshaft_read_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, KINDS["byte-level"])
    kept(path)
    monkeypatch.setattr(header_cache, "program_digest", lambda: "another")
    assert not open_model_file(path).from_cache


@pytest.mark.parametrize("place", [70, 200, -5])
def test_a_damaged_entry_is_said_and_made_again(folder: Path, place: int) -> None:
    path = written(folder, KINDS["byte-level"])
    kept(path)
    (entry,) = store().headers.entries()
    content = bytearray(entry.path.read_bytes())
    content[place] ^= 0xFF
    entry.path.write_bytes(content)
    with pytest.warns(UserWarning, match="is rebuilt: its entry was damaged"):
        opened = open_model_file(path)
    assert not opened.from_cache
    opened.save(opened.tokenizer())
    assert open_model_file(path).from_cache


def test_a_store_that_takes_nothing_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, KINDS["byte-level"])

    def full(self: ObjectStore, key: str, data: bytes) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(ObjectStore, "put", full)
    opened = open_model_file(path)
    with pytest.warns(UserWarning, match="was not cached: the disk is full"):
        opened.save(opened.tokenizer())


def test_a_broken_file_is_still_one_error(folder: Path) -> None:
    path = folder / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(FormatError, match="version 0"):
        open_model_file(path)


def test_bytes_come_back_as_they_were(folder: Path) -> None:
    kept(written(folder, KINDS["byte-level"]))
    (entry,) = store().headers.entries()
    data = store().headers.get(entry.path.parent.name + entry.path.name)
    assert data is not None
    assert to_bytes(*from_bytes(data)) == data


PROGRAM = """
import sys
from pathlib import Path
from camshaft.generate.stored.header_cache import ModelFile, open_model_file
for _ in range(20):
    opened = open_model_file(Path(sys.argv[1]))
    tokenizer = opened.tokenizer()
    assert tokenizer.decode(tokenizer.encode("a word or two")) == "a word or two"
    ModelFile(opened.file, None, False, opened.key, opened.digests).save(tokenizer)
"""


@pytest.mark.full
def test_two_processes_keep_it_at_once(folder: Path) -> None:
    """Both write the entry again and again while they read it: it is whole each time."""
    path = written(folder, KINDS["byte-level"])
    commands = [[sys.executable, "-W", "error", "-c", PROGRAM, str(path)]] * 2
    children = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
    said = [child.communicate(timeout=120)[1] for child in children]
    assert (said, [child.returncode for child in children]) == ([b"", b""], [0, 0])
    assert len(list(store().headers.entries())) == 1
    assert open_model_file(path).from_cache


@pytest.mark.parametrize("data", [b"", b"\2\0\0\0\0\0\0\0[]", b"\2\0\0\0\0\0\0\0{}", b"\1\0\0\0\0\0\0\0[" * 3])
def test_a_malformed_entry_is_rebuilt(folder: Path, data: bytes) -> None:
    path = written(folder, KINDS["byte-level"])
    store().headers.put(kept(path).key, data)
    with pytest.warns(UserWarning, match="the cached header of .* is rebuilt"):
        again = open_model_file(path)
    assert not again.from_cache
    again.save(again.tokenizer())
    assert open_model_file(path).from_cache
