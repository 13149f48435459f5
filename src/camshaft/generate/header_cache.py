"""Model files opened by what the store knows of their headers, and what is kept of new ones.

The key has a header's first bytes and camshaft's own files; what is kept counts when all of the header has the digest that stands
there, so a changed file is read anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from camshaft.errors import StoreError
from camshaft.formats.gguf.file import GGUFFile, read_header
from camshaft.formats.gguf.index import HeaderIndex, header_digest, known_header, open_known, probe
from camshaft.formats.mapped import MappedFile
from camshaft.generate.plan_cache import program_digest
from camshaft.store.store import store
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.vocabulary_index import StringsIndex, VocabularyIndex, indexed_vocabulary, make_index


@dataclass(frozen=True)
class ModelFile:
    """An open file; `index` of its vocabulary, where one was kept; `is_known`: its header came out of the store; `key` there;
    `digest` of the header when it was opened."""

    file: GGUFFile
    index: VocabularyIndex | None
    is_known: bool
    key: str
    digest: str

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the file. ModelError as Tokenizer.from_gguf's."""
        if self.index is None:
            return Tokenizer.from_gguf(self.file.metadata)
        return Tokenizer(indexed_vocabulary(self.index, self.file.metadata))

    def keep(self, tokenizer: Tokenizer) -> None:
        """Keeps what was read of a header that was new, while the file is open; nothing where somebody wrote into it meanwhile.
        A store that cannot be used keeps nothing."""
        if self.is_known or self.file.mapped.closed or not self.file.mapped.is_whole:
            return
        index, header = make_index(tokenizer.vocabulary, self.file.metadata), known_header(self.file)
        if header.digest != self.digest:
            return
        data = to_bytes(header, index)
        try:
            store().headers.put(self.key, data)
        except StoreError as error:
            warnings.warn(f"what was read of {self.file.path} is not kept: {error}", stacklevel=2)


def open_model_file(path: str | os.PathLike[str] | Path) -> ModelFile:
    """Opens a GGUF file. FormatError as open_gguf's."""
    mapped = MappedFile(path)
    key = hashlib.sha256(f"{program_digest()}|{probe(mapped)}".encode()).hexdigest()
    data = store().headers.get(key, f"what is kept of the header of {mapped.path}")
    if data is not None:
        header, index = from_bytes(data)
        known = open_known(mapped, header)
        if known is not None:
            return ModelFile(known, index, True, key, header.digest)
    file = read_header(mapped)
    return ModelFile(file, None, False, key, header_digest(mapped, file.header_nbytes))


def to_bytes(header: HeaderIndex, index: VocabularyIndex | None) -> bytes:
    """As the store has it: the length of a JSON text, the text, the index's arrays."""
    tables = [] if index is None else [index.tokens, index.merges]
    arrays = [array for table in tables for array in (table.starts, table.table)]
    known = None if index is None else {"facts": index.facts, "controls": index.controls}
    document = {"header": asdict(header), "index": known, "sizes": [array.size for array in arrays]}
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)))


def from_bytes(data: bytes) -> tuple[HeaderIndex, VocabularyIndex | None]:
    """What `to_bytes` was given: its key has camshaft's own files, and the store its digest."""
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
