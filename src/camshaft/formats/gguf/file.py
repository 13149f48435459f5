"""Read GGUF files, versions 2 and 3: memory-mapped, lazy, with every size and offset checked before use.

File layout: magic, version, n_tensors, n_keys; the keys with their values; per tensor its name, dimensions, type and offset;
then, aligned, the tensors' data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BlockFormat, by_ggml_id
from camshaft.formats.gguf.values import Entry, Metadata, scan_value
from camshaft.formats.mapped import Cursor, MappedFile, shown
from camshaft.formats.tensor import FileTensor

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_NBYTES = 65535
MAX_HEADER_NBYTES = 256_000_000  # vocabularies of 260k tokens with merges take 10 MB
# A key takes 0.3 kB of memory and a tensor 0.6 kB, in as few as 14 and 25 bytes of the file. Files have up to 100 keys and,
# since experts are merged into one tensor, up to 3,000 tensors.
MAX_KEYS, MAX_TENSORS = 1 << 12, 1 << 14
_UINT32 = 4

# Other file kinds by their first four bytes, for error messages.
_OTHER_FILES = {
    b"ggml": "a GGML file, which is older than GGUF; convert it",
    b"tjgg": "a GGJT file, which is older than GGUF; convert it",
    b"lmgg": "a GGML file, which is older than GGUF; convert it",
    b"fmgg": "a GGMF file, which is older than GGUF; convert it",
    b"vers": "perhaps a Git LFS pointer; fetch the file itself",
    b"<!DO": "a web page",
    b"<!do": "a web page",
    b"<htm": "a web page",
    b"PK\x03\x04": "a zip archive",
    b"FUGG": "a big-endian file; convert it to little-endian",
}


@dataclass(frozen=True, eq=False)
class GGUFTensor(FileTensor):
    """A tensor of a GGUF file; `offset` is the file position of its first byte."""

    offset: int


class GGUFFile:
    """An open GGUF file: `path`, `version`, `metadata`, and `tensors` by name in file order. `header_nbytes` is the size of the
    header. `parts` are the files of a split model, the first of which has the metadata. A context manager."""

    def __init__(
        self,
        file: MappedFile,
        version: int,
        metadata: Metadata,
        tensors: Mapping[str, GGUFTensor],
        header_nbytes: int,
        parts: tuple[GGUFFile, ...] = (),
    ) -> None:
        self.mapped, self.header_nbytes, self.parts = file, header_nbytes, parts
        self.path, self.version = file.path, version
        self.metadata, self.tensors = metadata, MappingProxyType(tensors)

    def close(self) -> None:
        """Close the file. Arrays returned before stay valid."""
        self.mapped.close()
        for part in self.parts[1:]:
            part.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the file, or of all parts."""
        return sum(part.mapped.size for part in self.parts) or self.mapped.size

    def part_of(self, tensor: GGUFTensor) -> int:
        """The number of the part that has a tensor, 0 in a file that is whole."""
        return next((i for i, part in enumerate(self.parts) if part.tensors.get(tensor.name) is tensor), 0)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {self.path}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file: parse keys, names and shapes, without decoding values or tensors. Of a part of a split model, all parts.

    Takes at most 4 bytes of memory per byte of the header, and 16 MB beside. Raises FormatError (one line) if the file is
    missing, truncated, malicious, big-endian, of another version, its header longer than 256 MB, or another part missing. A
    tensor of an unsupported format raises only when its data is read.
    """
    from camshaft.formats.gguf.parts import joined  # it imports GGUFFile

    return joined(path, lambda part: read_header(MappedFile(part)))


def read_header(file: MappedFile) -> GGUFFile:
    """Like `open_gguf`, for one file that is mapped already."""
    cursor = Cursor(file, MAX_HEADER_NBYTES)
    version = _read_version(cursor)
    n_tensors = cursor.count("the number of tensors", 24, MAX_TENSORS)
    n_keys = cursor.count("the number of keys", 14, MAX_KEYS)
    metadata = Metadata(file, _scan_entries(cursor, n_keys))
    tensors = _read_tensors(cursor, n_tensors, _alignment(cursor, metadata))
    return GGUFFile(file, version, metadata, tensors, cursor.position)


def _read_version(cursor: Cursor) -> int:
    cursor.require(4, "the magic")
    magic = cursor.file.bytes(0, 4)
    if magic != b"GGUF":
        hint = f" ({_OTHER_FILES[magic]})" if magic in _OTHER_FILES else ""
        cursor.fail(f"is not a GGUF file: begins with {magic!r}{hint}, not b'GGUF'")
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        cursor.fail("is a big-endian GGUF file; wanted little-endian: convert it")
    if version not in VERSIONS:
        cursor.fail(f"is GGUF version {version}; wanted version 2 or 3")
    return version


def _scan_entries(cursor: Cursor, n_keys: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for i in range(n_keys):
        key = cursor.name(f"key {i}", MAX_NAME_NBYTES)
        if key in entries:
            cursor.fail(f"the key {shown(key)} occurs twice")
        entries[key] = scan_value(cursor, key)
    return entries


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    if "general.alignment" in metadata and metadata.type_id("general.alignment") != _UINT32:
        cursor.fail("general.alignment is not a 32-bit unsigned integer")
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    if alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment}; wanted a power of two")
    return alignment


@dataclass(frozen=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    nbytes: int
    relative_offset: int


def _read_tensors(cursor: Cursor, n_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
    infos: dict[str, _TensorInfo] = {}
    for i in range(n_tensors):
        info = _read_info(cursor, i)
        if info.name in infos:
            cursor.fail(f"the tensor {shown(info.name)} occurs twice")
        infos[info.name] = info
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: _place(cursor, info, start, alignment) for name, info in infos.items()}
    _refuse_overlap(cursor, tensors.values())
    return tensors


def _read_info(cursor: Cursor, index: int) -> _TensorInfo:
    name = cursor.name(f"the name of tensor {index}", MAX_NAME_NBYTES)
    what = f"tensor {shown(name)}"
    n_dimensions = cursor.u32(f"the number of dimensions of {what}")
    if n_dimensions > MAX_DIMENSIONS:
        cursor.fail(f"{what} has {n_dimensions} dimensions; wanted at most {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(f"a dimension of {what}") for _ in range(n_dimensions))[::-1]
    if 0 in shape:
        cursor.fail(f"{what} has the shape {list(shape)}; wanted every dimension at least 1")
    type_id = cursor.u32(f"the type of {what}")
    try:
        row = by_ggml_id(type_id)
        row_nbytes = row.row_nbytes(shape[-1] if shape else 1)
    except FormatError as error:
        cursor.fail(f"{what}: {error}")
    nbytes = math.prod(shape[:-1]) * row_nbytes
    return _TensorInfo(name, shape, row, nbytes, cursor.u64(f"the offset of {what}"))


def _place(cursor: Cursor, info: _TensorInfo, start: int, alignment: int) -> GGUFTensor:
    what, offset, file = f"tensor {shown(info.name)}", start + info.relative_offset, cursor.file
    if info.relative_offset % alignment:
        cursor.fail(f"{what} begins at {info.relative_offset}; wanted a multiple of {alignment}")
    if offset + info.nbytes > file.size:
        end = offset + info.nbytes
        cursor.fail(f"{what} takes bytes {offset} to {end}, but the file ends at {file.size} (truncated?)")

    return tensor_at(file, info.name, info.shape, info.format, info.nbytes, offset)


def tensor_at(
    file: MappedFile, name: str, shape: tuple[int, ...], form: BlockFormat, nbytes: int, offset: int
) -> GGUFTensor:
    """The tensor at `offset` of the file. The caller has checked its bounds."""

    def read() -> Bytes:
        return file.view(offset, nbytes)

    return GGUFTensor(name, shape, form, nbytes, read, file.path, offset, mapped=(file, offset))


def _refuse_overlap(cursor: Cursor, tensors: Iterable[GGUFTensor]) -> None:
    end, last = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset < end:
            cursor.fail(f"the tensors {shown(last)} and {shown(tensor.name)} overlap")
        end, last = tensor.offset + tensor.nbytes, tensor.name
