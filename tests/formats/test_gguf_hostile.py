"""Invalid GGUF files: each is a one-line FormatError that names the file, what came and what was wanted."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_files import ARRAY, BOOL, F32, STRING, U8, U16, U32, info, key, raw_gguf, refused, text, u32, u64

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import MAX_KEYS, MAX_TENSORS, open_gguf
from tests.support.quick import quick_of

HUGE = 2**64 - 1


def strings(*values: bytes, count: int | None = None) -> bytes:
    return u32(STRING) + u64(len(values) if count is None else count) + b"".join(values)


BIG_ENDIAN = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
F32_32 = bytes(128)  # the data of one tensor of 32 floats
CASES = {
    "wrong magic": (b"ABCD" + bytes(60), "is not a GGUF file: begins with b'ABCD', not b'GGUF'"),
    "old file": (b"tjgg" + bytes(60), "a GGJT file, which is older than GGUF"),
    "web page": (b"<!DOCTYPE html>", "a web page"),
    "pointer": (b"version https://git-lfs", "a Git LFS pointer"),
    "three bytes": (b"GGU", "truncated: the magic wants 4 bytes at 0, the file has 3 left"),
    "magic only": (b"GGUF", "truncated: the version"),
    "no counts": (b"GGUF" + u32(3) + bytes(5), "truncated: the number of tensors"),
    "version 1": (raw_gguf(version=1), "is GGUF version 1; wanted version 2 or 3"),
    "version 4": (raw_gguf(version=4), "is GGUF version 4; wanted version 2 or 3"),
    "version 0": (raw_gguf(version=0), "is GGUF version 0; wanted version 2 or 3"),
    "big-endian": (BIG_ENDIAN, "is a big-endian GGUF file; wanted little-endian"),
    "big-endian magic": (BIG_ENDIAN[3::-1] + BIG_ENDIAN[4:], "a big-endian file"),
    "tensor count": (raw_gguf(n_tensors=HUGE), f"the number of tensors is {HUGE}; the .* cannot hold so many"),
    "key count": (raw_gguf(n_keys=HUGE), f"the number of keys is {HUGE}; the .* cannot hold so many"),
    "many keys": (raw_gguf(n_keys=1 << 18, data=bytes(4 << 20)), "the number of keys is 262144; wanted at most 4096"),
    "one key too many": (raw_gguf([key("a", U32, u32(1))], n_keys=2), "cannot hold so many|key 1 is 0 bytes long"),
    "empty key": (raw_gguf([key("", U32, u32(1))]), "key 0 is 0 bytes long; wanted 1 to 65535"),
    "long key": (raw_gguf([u64(HUGE) + bytes(40)]), f"key 0 is {HUGE} bytes long"),
    "key past the end": (raw_gguf([u64(60000) + bytes(40)]), "truncated: key 0 wants 60000 bytes"),
    "key not UTF-8": (raw_gguf([key(b"\xff\xfe", U32, u32(1))]), r"key 0 at byte 32 is not UTF-8: b'\\xff\\xfe'"),
    "key twice": (raw_gguf([key("a", U32, u32(1))] * 2), "the key 'a' occurs twice"),
    "line break in a key": (raw_gguf([key("a\nb", 77, b"")]), r"'a\\nb' has the value type 77; wanted 0 to 12"),
    "long name in a message": (raw_gguf([key("k" * 5000, 77, b"")]), "'k{77}[.]{3}' has the value type 77"),
    "value type": (raw_gguf([key("a", 13, bytes(8))]), "'a' has the value type 13; wanted 0 to 12"),
    "string past the end": (raw_gguf([key("a", STRING, u64(99))]), "truncated: the value of 'a' wants 99 bytes"),
    "string overflow": (raw_gguf([key("a", STRING, u64(HUGE))]), f"truncated: the value of 'a' wants {HUGE} bytes"),
    "array count": (
        raw_gguf([key("a", ARRAY, u32(U32) + u64(2**62))]),
        "number of items of 'a' is 4611686018427387904",
    ),
    "array item type": (raw_gguf([key("a", ARRAY, u32(99) + u64(0))]), "'a' has items of the type 99; wanted 0 to 12"),
    "string count": (
        raw_gguf([key("a", ARRAY, strings(count=2**61))]),
        "number of items of 'a' is 2305843009213693952",
    ),
    "last string": (raw_gguf([key("a", ARRAY, strings(u64(500)))]), "truncated: the last string of 'a' would end at"),
    "middle string": (raw_gguf([key("a", ARRAY, strings(u64(500), text("b")))]), "a string of 'a' would end past"),
    "string of 2^64": (raw_gguf([key("a", ARRAY, strings(u64(HUGE), text("b")))]), "a string of 'a' would end past"),
    "array of arrays": (
        raw_gguf([key("a", ARRAY, u32(ARRAY) + u64(0))]),
        "'a' is an array of arrays; wanted an array of",
    ),
    "split": (raw_gguf([key("split.count", U16, b"\3\0")]), "the value of 'split.no' is None; wanted a whole number"),
    "split is text": (
        raw_gguf([key("split.count", STRING, text("3"))]),
        "the value of 'split.count' is '3'; wanted a whole number",
    ),
    "alignment 0": (raw_gguf([key("general.alignment", U32, u32(0))]), "general.alignment is 0; wanted a power of two"),
    "alignment 48": (raw_gguf([key("general.alignment", U32, u32(48))]), "is 48; wanted a power of two"),
    "alignment is a float": (raw_gguf([key("general.alignment", F32, u32(0))]), "is not a 32-bit unsigned integer"),
    "alignment is text": (raw_gguf([key("general.alignment", STRING, text("32"))]), "is not a 32-bit unsigned integer"),
    "alignment of a gigabyte": (
        raw_gguf([key("general.alignment", U32, u32(1 << 30))], [info("t")], F32_32),
        "takes bytes 1073741824 to 1073741952, but the file ends",
    ),
    "five dimensions": (raw_gguf(infos=[info("t", (1,) * 5)], data=F32_32), "'t' has 5 dimensions; wanted at most 4"),
    "2^32 dimensions": (
        raw_gguf(infos=[text("t") + u32(2**32 - 1)], data=F32_32),
        "'t' has 4294967295 dimensions; wanted at most 4",
    ),
    "empty dimension": (raw_gguf(infos=[info("t", (4, 0))], data=F32_32), r"'t' has the shape \[0, 4\]; wanted every"),
    "dimensions overflow": (raw_gguf(infos=[info("t", (2**32, 2**32))], data=F32_32), "but the file ends at"),
    "dimensions of 2^64": (raw_gguf(infos=[info("t", (HUGE,) * 4)], data=F32_32), "but the file ends at"),
    "half a block": (raw_gguf(infos=[info("t", (33,), 2)], data=F32_32), "Q4_0 wants a multiple of 32"),
    "block scalar": (raw_gguf(infos=[info("t", (), 2)], data=F32_32), "Q4_0 wants a multiple of 32"),
    "retired type": (
        raw_gguf(infos=[info("t", (32,), 31)], data=F32_32),
        r"'t': block type 31 \(Q4_0_4_4\) is retired",
    ),
    "unknown type": (raw_gguf(infos=[info("t", (32,), 1000)], data=F32_32), "'t': block type 1000 is unknown"),
    "outside": (raw_gguf(infos=[info("t", offset=64)], data=F32_32), "but the file ends at"),
    "one byte short": (raw_gguf(infos=[info("t")], data=F32_32[1:]), "but the file ends at"),
    "offset overflow": (raw_gguf(infos=[info("t", offset=2**64 - 32)], data=F32_32), "but the file ends at"),
    "odd offset": (raw_gguf(infos=[info("t", offset=4)], data=bytes(256)), "begins at 4; wanted a multiple of 32"),
    "overlap": (raw_gguf(infos=[info("a"), info("b", offset=32)], data=bytes(256)), "'a' and 'b' overlap"),
    "tensor twice": (raw_gguf(infos=[info("a"), info("a", offset=128)], data=bytes(256)), "'a' occurs twice"),
    "nameless tensor": (raw_gguf(infos=[info("")], data=F32_32), "the name of tensor 0 is 0 bytes long"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(tmp_path: Path, case: str) -> None:
    data, words = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    message = refused(path)
    assert re.search(words, message), message


def test_a_file_that_is_empty_missing_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert refused(tmp_path / "empty").endswith("the file is empty")
    assert refused(tmp_path / "none").endswith("there is no such file")
    assert refused(tmp_path).endswith("is a folder; wanted a file")
    with pytest.raises(FormatError, match="cannot be read: embedded null byte"):
        open_gguf("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").endswith("is not a regular file; wanted a file")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="this user may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(raw_gguf())
    (tmp_path / "mine").chmod(0)
    assert "cannot be read: permission denied" in refused(tmp_path / "mine")


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_a_path_that_would_break_the_line_is_escaped() -> None:
    with pytest.raises(FormatError, match=r"^'no\\nwhere': there is no such file$"):
        open_gguf("no\nwhere")


@pytest.mark.parametrize("value", [bytes([2]), bytes([255])])
def test_a_boolean_is_0_or_1(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "b.gguf"
    path.write_bytes(raw_gguf([key("one", BOOL, value), key("many", ARRAY, u32(BOOL) + u64(2) + b"\1" + value)]))
    with open_gguf(path) as file:
        for name in ("one", "many"):
            with pytest.raises(FormatError, match=f"'{name}' holds a boolean that is neither 0 nor 1"):
                file.metadata[name]


def peak_nbytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_lying_count_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.gguf"
    path.write_bytes(raw_gguf([key("a", ARRAY, u32(U32) + u64(2**40))]))
    assert peak_nbytes(lambda: refused(path)) < 1 << 20


def array_key(item_type: int, n_items: int, nbytes: int, name: str = "a") -> bytes:
    return key(name, ARRAY, u32(item_type) + u64(n_items) + bytes(nbytes))


# The bytes that opening may take beside 4 per byte of the header: 0.3 MB for the offsets of a chunk of strings.
LARGE = {
    "empty strings": (raw_gguf([array_key(STRING, 1 << 17, 8 << 17)]), 1 << 20),
    "short strings": (raw_gguf([key("a", ARRAY, strings(*[text("ab")] * (1 << 16)))]), 1 << 20),
    "a long string at the end": (raw_gguf([key("a", ARRAY, strings(*[text("")] * 50000, text("a" * 300)))]), 1 << 20),
    "booleans": (raw_gguf([array_key(BOOL, 1 << 20, 1 << 20)]), 1 << 20),
    "bytes": (raw_gguf([array_key(U8, 1 << 20, 1 << 20)]), 1 << 20),
    "a string where a number is due": (raw_gguf([key("split.count", STRING, text("é" * (1 << 19)))]), 1 << 20),
    "keys": (raw_gguf([key(f"{i:x}", U8, b"\0") for i in range(MAX_KEYS)]), 4 << 20),
    "a quarter of the tensors": (
        raw_gguf(infos=[info(f"{i:x}", (), 0, 32 * i) for i in range(MAX_TENSORS // 4)], data=bytes(1 << 17)),
        4 << 20,
    ),
}


@pytest.mark.parametrize("case", quick_of(LARGE, ("short strings", "bytes", "keys")))
def test_opening_takes_at_most_4_bytes_of_memory_per_byte_of_the_header(tmp_path: Path, case: str) -> None:
    data, beside_nbytes = LARGE[case]
    path = tmp_path / "large.gguf"
    path.write_bytes(data)

    def opened() -> None:
        with contextlib.suppress(FormatError):
            open_gguf(path)

    opened()  # imports
    assert peak_nbytes(opened) <= 4 * len(data) + beside_nbytes


@pytest.mark.parametrize(
    "value",
    [(STRING, u64(2**28) + bytes(2**10)), (ARRAY, u32(U8) + u64(2**28)), (ARRAY, u32(STRING) + u64(1) + u64(2**28))],
    ids=["string", "numbers", "strings"],
)
def test_a_header_of_more_than_256_mb_is_refused(tmp_path: Path, value: tuple[int, bytes]) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(raw_gguf([key("a", *value)]))
    os.truncate(path, 2**28 + 4096)  # sparse
    assert re.search("wanted a header of at most 256 MB|cannot hold so many", refused(path))
