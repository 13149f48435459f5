"""Open model files with cached header indexes, and cache the index of new files.

An entry's key covers the header's first bytes and camshaft's own files. It is used only if the digest of the whole header
matches, so a changed file is parsed again.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from camshaft.errors import FormatError, StoreError
from camshaft.formats.gguf.file import GGUFFile, read_header
from camshaft.formats.gguf.header_index import HeaderIndex, header_digest, known_header, open_known, probe
from camshaft.formats.gguf.parts import joined
from camshaft.formats.mapped import MappedFile
from camshaft.formats.tensor import FileTensor
from camshaft.generate.stored.plan_cache import program_digest
from camshaft.store.files import digest_of
from camshaft.store.store import store
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.vocabulary_index import StringsIndex, VocabularyIndex, indexed_vocabulary, make_index

_SAMPLE = 64  # bytes of each tensor, at its beginning and in its middle


@dataclass(frozen=True)
class ModelFile:
    """An open model file. `from_cache`: whether its header was cached under `key`; `index` is the vocabulary's index if
    cached; `digests` are the headers' digests when it was opened, one for each part of a split model.

    Only the first part's header is cached: it has the metadata."""

    file: GGUFFile
    index: VocabularyIndex | None
    from_cache: bool
    key: str
    digests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The digest of the header, or of all parts' headers."""
        return self.digests[0] if len(self.digests) == 1 else digest_of(self.digests)

    @property
    def base_digest(self) -> str:
        """The digest of headers and of some bytes of each tensor: a model merged with an adapter has the headers of before."""
        return digest_of(self.digest, weights_sample(self.file.tensors))

    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer. Raises ModelError as Tokenizer.from_gguf does."""
        if self.index is None:
            return Tokenizer.from_gguf(self.file.metadata)
        return Tokenizer(indexed_vocabulary(self.index, self.file.metadata))

    def mapped_tokenizer(self) -> Tokenizer:
        """The file's tokenizer, which finds its strings in the mapped file where it can: SmolLM2's takes 6 MB less memory."""
        if self.index is not None:
            return self.tokenizer()
        whole = self.tokenizer()
        index = make_index(whole.vocabulary, self.file.metadata)
        return whole if index is None else Tokenizer(indexed_vocabulary(index, self.file.metadata))

    def save(self, tokenizer: Tokenizer) -> None:
        """Cache the header of a newly parsed file; skipped if the file changed or is closed. Warns if the store fails."""
        if self.from_cache or self.file.mapped.closed or not self.file.mapped.is_whole:
            return
        index, header = make_index(tokenizer.vocabulary, self.file.metadata), known_header(self.file)
        if header.digest != self.digests[0]:
            return
        data = to_bytes(header, index)
        try:
            store().headers.put(self.key, data)
        except StoreError as error:
            warnings.warn(f"the header of {self.file.path} was not cached: {error}", stacklevel=2)


def weights_sample(tensors: Mapping[str, FileTensor]) -> int:
    """A checksum of some bytes of each tensor, which distinguishes models' weights."""
    return crc32(b"".join(_sample(tensor) for tensor in tensors.values()))


def _sample(tensor: FileTensor) -> bytes:
    if not tensor.is_mapped:
        return b""
    data, middle = tensor.data(), tensor.nbytes // 2
    return data[:_SAMPLE].tobytes() + data[middle : middle + _SAMPLE].tobytes()


def open_model_file(path: str | os.PathLike[str] | Path) -> ModelFile:
    """Open a GGUF file, or all parts of a split one. Raises FormatError as open_gguf does."""
    opened: list[ModelFile] = []

    def open_first(part: str | os.PathLike[str]) -> GGUFFile:
        opened.append(_open_one(part))
        return opened[-1].file

    file = joined(path, lambda part: read_header(MappedFile(part)), open_first)
    first = next(one for one in opened if one.file is (file.parts or (file,))[0])
    others = tuple(header_digest(part.mapped, part.header_nbytes) for part in file.parts[1:])
    return replace(first, file=file, digests=(*first.digests, *others))


def _open_one(path: str | os.PathLike[str]) -> ModelFile:
    mapped = MappedFile(path)
    key = digest_of(program_digest(), probe(mapped))
    data = store().headers.get(key, f"the cached header of {mapped.path}")
    known = None if data is None else _from_cache(mapped, data)
    if known is not None:
        file, index, digest = known
        return ModelFile(file, index, True, key, (digest,))
    file = read_header(mapped)
    return ModelFile(file, None, False, key, (header_digest(mapped, file.header_nbytes),))


def _from_cache(mapped: MappedFile, data: bytes) -> tuple[GGUFFile, VocabularyIndex | None, str] | None:
    """The file by its cached header, with the header's digest; None if the file's header has changed. A malformed entry is
    reported and not used."""
    try:
        header, index = from_bytes(data)
        file = open_known(mapped, header)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, FormatError) as error:
        warnings.warn(f"the cached header of {mapped.path} is rebuilt: {error}", stacklevel=3)
        return None
    return None if file is None else (file, index, header.digest)


def to_bytes(header: HeaderIndex, index: VocabularyIndex | None) -> bytes:
    """Serialize as: the length of a JSON document, the document, the arrays of the index."""
    tables = [] if index is None else [index.tokens, index.merges]
    arrays = [array for table in tables for array in (table.starts, table.table)]
    known = None if index is None else {"facts": index.facts, "controls": index.controls}
    document = {"header": asdict(header), "index": known, "sizes": [array.size for array in arrays]}
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)))


def from_bytes(data: bytes) -> tuple[HeaderIndex, VocabularyIndex | None]:
    """Restore what `to_bytes` serialized. The store has verified the digest, and the key covers camshaft's version."""
    end = 8 + int.from_bytes(data[:8], "little")
    document = json.loads(data[8:end])
    arrays = []
    for size in document["sizes"]:
        arrays.append(np.frombuffer(data, np.int32, size, end))
        end += arrays[-1].nbytes
    known = document["index"]
    tables = [StringsIndex(*arrays[i : i + 2]) for i in range(0, len(arrays), 2)]
    index = None if known is None else VocabularyIndex(known["facts"], known["controls"], *tables)
    return HeaderIndex(**document["header"]), index
