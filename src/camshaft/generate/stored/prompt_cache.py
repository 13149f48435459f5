"""Prompts kept between runs: a session takes the tokens that its prompt begins with from a file, or from the store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import numpy as np

from camshaft.errors import StoreError, reason_of
from camshaft.formats.gguf.header_index import header_digest
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.memory.kv_cache import block_arrays, for_each, read_blocks
from camshaft.generate.stored.header_cache import weights_sample
from camshaft.generate.stored.prompt_file import PromptFile, PromptHead, States, to_parts
from camshaft.store.entries import remove_entry
from camshaft.store.files import atomic_file, digest_of
from camshaft.store.objects import HEADER_NBYTES
from camshaft.store.store import store

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.memory.kv_cache import KVCache

Array = np.ndarray[Any, Any]
Parts: TypeAlias = Iterator[bytes | memoryview]
AUTO = "auto"
# A prompt is stored if at least this many of its tokens were new: fewer are processed faster than a file is written.
LEAST_NEW = 64
# Tokens of a prompt that are processed anyway: the last one, whose logits are wanted, and one more, since the plan for single
# tokens rounds otherwise than that for prompts.
LEAST_LEFT = 2
_OF_MODEL, _OF_TOKENS = 32, 32  # digits of an entry's key


@dataclass(frozen=True)
class Beginning:
    """The first tokens of a prompt, with their keys and values as `blocks_of` returns them, and recurrent states by number of
    tokens."""

    tokens: list[int]
    blocks: dict[str, Array]
    states: dict[int, dict[str, Array]]


class PromptCache:
    """The kept prompts of one model: in the store (`where` 'auto', the least recently used go), or one in a file."""

    def __init__(self, where: str | os.PathLike[str], lm: LanguageModel) -> None:
        self._path = (
            None if where == AUTO else Path(os.path.realpath(where))
        )  # a link's target is written, not the link
        self.n_taken = 0  # tokens of the last prompt
        self._read: Beginning | None = None  # to take
        self._kept: tuple[Sequence[int], Parts] | None = None  # to write
        self._model, self._cache = model_digest(lm), lm.plans.cache

    def find(self, tokens: Sequence[int]) -> tuple[PromptFile, int] | None:
        """The kept prompt with the longest beginning of `tokens`, open, and how many of them to take; None if there is none.

        Raises StoreError for a file that is not a kept prompt, or is one of another model or cache format; in the store such are
        skipped."""
        best: tuple[PromptFile, int] | None = None
        for path, start in self._candidates():
            file = self._opened(path, start)
            if file is None:
                continue
            n = self._usable(file.head, tokens)
            if n <= (0 if best is None else best[1]):
                file.close()
                continue
            if best is not None:
                best[0].close()
            best = file, n
        if best is not None and self._path is None:
            with suppress(OSError):  # it only orders evictions
                os.utime(best[0].path)
        return best

    def read(self, tokens: Sequence[int], threads: int) -> None:
        """Read the longest kept beginning of the tokens, if any, for `take`. No lock is needed, and none should be held: a disk
        may take seconds. Raises as `find`, and for a file that is damaged; in the store that is a warning."""
        self._read, found = None, self.find(tokens)
        if found is None:
            return
        file, n = found
        try:
            with file:
                blocks = blocks_of(file, -(-n // BLOCK_TOKENS), threads)
                states = {at: file.states_at(at) for at in file.head.positions if at <= n}
        except StoreError as error:
            self.drop(file.path, error)
        else:
            self._read = Beginning(file.head.tokens[:n], blocks, states)

    def take(self, tokens: Sequence[int]) -> Beginning | None:
        """Returns what `read` has read, once; None unless it is a prefix of these tokens and leaves some to process."""
        found, self._read = self._read, None
        if found is None or found.tokens != list(tokens[: len(found.tokens)]):
            return None
        return found if len(found.tokens) <= len(tokens) - LEAST_LEFT else None

    def whole(self) -> PromptFile:
        """The file's prompt, open. Raises StoreError if there is none, or it is damaged, or of another model or cache format."""
        assert self._path is not None
        file = self._opened(self._path, 0)
        if file is None:
            raise StoreError(f"{self._path}: there is no such file")
        return file

    def _candidates(self) -> list[tuple[Path, int]]:
        if self._path is not None:
            return [(self._path, 0)]
        entries, ours = store().prompts.entries(), self._model[:_OF_MODEL]
        return [(e.path, HEADER_NBYTES) for e in entries if (e.path.parent.name + e.path.name).startswith(ours)]

    def _opened(self, path: Path, start: int) -> PromptFile | None:
        try:
            file = PromptFile(path, BLOCK_TOKENS, start)
        except FileNotFoundError:
            return None
        except StoreError as error:
            self.drop(path, error)
            return None
        except OSError as error:
            if self._path is not None:
                raise StoreError(f"{path}: the kept prompt cannot be read: {reason_of(error)}") from error
            return None
        head = file.head
        if head.model == self._model and (head.arrays, head.states) == _layout(self._cache):
            return file
        file.close()
        if self._path is not None:
            raise StoreError(
                f"{path}: the kept prompt is of another model, adapter, context or cache format; remove it, or name another file"
            )
        return None

    def drop(self, path: Path, error: StoreError) -> None:
        """Delete a damaged entry of the store, with a warning. Raises `error` if it is a file of the user's."""
        if self._path is not None:
            raise error
        warnings.warn(f"a kept prompt is processed again: {error}", stacklevel=2)
        remove_entry(path, "a damaged entry")

    def _usable(self, head: PromptHead, tokens: Sequence[int]) -> int:
        """How many of the tokens can be taken from a prompt."""
        most = min(len(head.tokens), len(tokens) - LEAST_LEFT)
        common = next((i for i in range(most) if head.tokens[i] != tokens[i]), max(most, 0))
        if head.states:
            return max((position for position in head.positions if position <= common), default=0)
        return common // BLOCK_TOKENS * BLOCK_TOKENS

    def keep(self, tokens: Sequence[int], slot: int, states: States) -> None:
        """Copy the tokens' keys and values, which are in a slot, and their recurrent states, by number of tokens, for `flush`.
        The caller has the model's lock."""
        self._kept = tokens, self.copied(tokens, slot, states)

    def flush(self) -> None:
        """Write what was kept, if anything. No lock is needed, and none should be held: a disk may take seconds.

        Raises StoreError if the file cannot be written; in the store that is a warning."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self.write(*kept)

    def copied(self, tokens: Sequence[int], slot: int, states: States) -> Parts:
        """A copy of what `write` writes of the tokens. The caller has the model's lock."""
        arrays, kinds = _layout(self._cache)
        head = PromptHead(self._model, list(tokens), arrays, kinds, sorted(states) if kinds else [])
        n = head.n_blocks(BLOCK_TOKENS)
        blocks = {name: read_blocks(self._cache, name, slot, n) for name, _ in arrays}
        return to_parts(head, blocks, states, HEADER_NBYTES if self._path is None else 0)

    def write(self, tokens: Sequence[int], parts: Parts) -> None:
        """Write what `copied` returned; no lock is needed. Raises as `flush`."""
        if self._path is not None:
            with atomic_file(self._path) as file:
                for part in parts:
                    file.write(part)
            return
        data = b"".join(parts)
        if len(data) + HEADER_NBYTES <= store().prompts.max_nbytes // 2:
            store().prompts.put(entry_key(self._model, tokens), data)


def blocks_of(file: PromptFile, n: int, threads: int) -> dict[str, Array]:
    """The first `n` blocks of each array of a kept prompt, by name, as they lie in the file, which the system has read by then.
    Raises StoreError for a damaged file."""
    found: dict[str, Array] = {name: np.empty(0) for name, _ in file.head.arrays}  # in this order

    def read(name: str) -> None:
        found[name] = file.blocks(name, n)

    for_each(read, list(found), threads)
    return found


def entry_key(model: str, tokens: Sequence[int]) -> str:
    """The key in the store: digits of the model's digest and of the tokens'."""
    return model[:_OF_MODEL] + digest_of(list(tokens))[:_OF_TOKENS]


def _layout(cache: KVCache) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """(name, bytes) of a block of each array of keys and values, and of each recurrent state or window."""
    return list(block_arrays(cache)), list(cache.copied_nbytes.items())


def model_digest(lm: LanguageModel) -> str:
    """Digest of what keys and values depend on: the file's header and size, some bytes of each tensor, the adapters, the kind of
    activations and of the cache, and the context where the rotations depend on it."""
    file, adapters = lm.plans.file, lm.plans.adapters
    header = header_digest(file.mapped, file.header_nbytes)
    rotations = lm.context if "rope_factors_long.weight" in file.tensors else 0
    weights = weights_sample(file.tensors)
    added = [(t.name, crc32(t.data().data)) for name, t in adapters.tensors.items() if name not in file.tensors]
    return digest_of(header, weights, repr((adapters.digest, added)), lm.activations, lm.kv_cache, rotations)
