"""GGUF files that were changed, cut or made at random never crash the reader: it reads them or says a FormatError."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from gguf_files import refused, u32, u64, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.gguf.values import StringArray

HUGE = 2**64 - 1


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    write_model(path)
    return path.read_bytes()


def use_everything(path: Path) -> None:
    """Opens the file and looks at all there is: each step succeeds or is a FormatError of one line."""
    with attempt():
        file = open_gguf(path)
        for name in file.metadata:
            with attempt():
                walk(file.metadata[name])
        for tensor in file.tensors.values():
            with attempt():
                assert tensor.dequantize().shape == tensor.shape
        file.close()


class attempt(contextlib.suppress):
    """Suppresses a FormatError of one line, and nothing else."""

    def __init__(self) -> None:
        super().__init__(FormatError)

    def __exit__(self, kind, error, trace) -> bool | None:
        return super().__exit__(kind, error, trace) and "\n" not in str(error)


def walk(value: object) -> None:
    if isinstance(value, list | StringArray):
        for item in value:
            walk(item)


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
INTERESTING = [0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, HUGE]


@FUZZ
@given(data=st.data())
def test_changed_bytes_never_crash_the_reader(valid: bytes, tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(valid)
    place = st.integers(0, len(valid) - 1)
    byte = st.sampled_from(INTERESTING) | st.integers(0, 255)
    for position, value in data.draw(st.lists(st.tuples(place, byte), min_size=1, max_size=8)):
        changed[position] = value
    (tmp_path / "f.gguf").write_bytes(changed)
    use_everything(tmp_path / "f.gguf")


@FUZZ
@given(position=st.integers(0, 2000), number=st.sampled_from(NUMBERS), length=st.integers(0, 5000))
def test_changed_numbers_and_truncation_never_crash_the_reader(valid, tmp_path, position, number, length) -> None:
    changed = bytearray(valid)
    changed[position : position + 8] = u64(number)
    (tmp_path / "f.gguf").write_bytes(changed)
    use_everything(tmp_path / "f.gguf")
    (tmp_path / "f.gguf").write_bytes(valid[:length])
    use_everything(tmp_path / "f.gguf")


@FUZZ
@given(body=st.binary(max_size=300), n_keys=st.integers(0, 5), n_tensors=st.integers(0, 5))
def test_random_bytes_after_a_good_header_never_crash_the_reader(tmp_path, body, n_keys, n_tensors) -> None:
    (tmp_path / "f.gguf").write_bytes(b"GGUF" + u32(3) + u64(n_tensors) + u64(n_keys) + body)
    use_everything(tmp_path / "f.gguf")


@pytest.mark.soak
def test_many_mutated_files_never_crash_the_reader(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    for seed in range(20_000):
        rng = random.Random(seed)
        changed = bytearray(valid)
        for _ in range(rng.randint(1, 6)):
            position = rng.randrange(min(len(valid), 2500))
            number = u64(rng.choice(NUMBERS))[: rng.choice((4, 8))]
            new = rng.choice((bytes([rng.choice(INTERESTING)]), number, rng.randbytes(3), bytes(changed[:40])))
            changed[position : position + len(new)] = new
            if rng.random() < 0.05:
                del changed[position : position + rng.randint(1, 40)]
        path.write_bytes(changed)
        use_everything(path)


def test_every_truncation_of_a_valid_file_is_refused(valid: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.gguf").write_bytes(valid)
    end = max(tensor.offset + tensor.nbytes for tensor in open_gguf(tmp_path / "t.gguf").tensors.values())
    for length in [*range(0, end, 7), end - 1]:
        (tmp_path / "t.gguf").write_bytes(valid[:length])
        refused(tmp_path / "t.gguf")
