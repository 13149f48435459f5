"""Loading: every byte once, turns of bounded size, pages of the file given back, and the memory that opening a model takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.dtypes import f32
from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.mapped import MappedFile
from camshaft.formats.tensor import FileTensor
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.quantized.packed.packing import interleaved, pack
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory import loading
from camshaft.plan.memory.weights import Weights
from tests.support.models.files import require_default_model
from tests.support.quick import full

SMAPS = Path("/proc/self/smaps")


def tensor(file: MappedFile, name: str, shape: tuple[int, int], offset: int, *, mapped: bool = True) -> Tensor:
    block = BLOCK_FORMATS[name]
    nbytes = shape[0] * block.row_nbytes(shape[1])
    source = FileTensor(
        f"{name}{offset}",
        shape,
        block,
        nbytes,
        lambda: file.view(offset, nbytes),
        file.path,
        mapped=(file, offset) if mapped else None,
    )
    plain = TensorSpec(shape, block.dtype or block)
    return Graph().constant(source.name, source, plain if block.dtype else interleaved(plain))


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(1).bytes(24 << 20))
    return MappedFile(path)


def shapes(file: MappedFile) -> list[Tensor]:
    """One of many turns, one of an odd number of rows, a plain one off 64 bytes, one whose file gives copies."""
    made, offset = [], 32
    for name, shape, mapped in (
        ("Q8_0", (9000, 1024), True),
        ("Q5_0", (37, 64), True),
        ("F16", (3000, 999), True),
        ("Q4_K", (100, 256), False),
    ):
        made.append(tensor(file, name, shape, offset, mapped=mapped))
        offset += -(-made[-1].source.nbytes // 64) * 64
    return made


@pytest.mark.parametrize("threads", [full(1), 2])
def test_every_weight_is_loaded_whole(file: MappedFile, threads: int) -> None:
    weights, tensors = Weights(), shapes(file)
    weights.prepare(tensors, threads)
    for t in tensors:
        want = t.source.data()
        if t.spec.parts[0].name == "codes":
            want = np.zeros(t.spec.nbytes, np.uint8)
            pack(t.source.data(), t.spec, want)
        np.testing.assert_array_equal(weights.memory(t), want)


@pytest.mark.parametrize("error", [KeyboardInterrupt, FormatError])
def test_what_was_interrupted_is_loaded_anew(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """A cached plan is bound before its memory is filled, so it must not run after a piece was lost."""
    weights, wanted = Weights(), loading.load_request(tensor(file, "F16", (3000, 999), 64))
    weights.begin_requests([wanted], 1)
    with monkeypatch.context() as patch:

        def lost(piece: loading.Piece) -> None:
            raise error("lost")

        patch.setattr(loading.Piece, "load", lost)
        with pytest.raises(error):
            weights.finish()
    weights.finish()
    np.testing.assert_array_equal(weights.place(wanted), wanted.source.data())


def test_large_plain_weights_leave_the_file_and_small_ones_stay(file: MappedFile) -> None:
    weights, large, small = Weights(), tensor(file, "F16", (128, 256), 64), tensor(file, "F16", (127, 256), 65600)
    weights.prepare((large, small), 1)
    assert [np.shares_memory(weights.memory(t), t.source.data()) for t in (large, small)] == [False, True]


def test_pieces_are_every_byte_once_and_turns_are_bounded(file: MappedFile) -> None:
    tensors = shapes(file)
    todo = [p for t in tensors for p in loading.pieces(loading.load_request(t), np.zeros(t.spec.nbytes, np.uint8))]
    for t in tensors:
        mine = [(p.first, p.last) for p in todo if p.source is t.source]
        assert [first for first, _ in mine] == [0, *(last for _, last in mine[:-1])]
        assert mine[-1][1] == t.source.nbytes
    order = loading.turns(todo)
    assert sorted(p.first for turn in order for p in turn) == sorted(p.first for p in todo)
    assert max(sum(p.last - p.first for p in turn) for turn in order) < 2 * loading.TURN_NBYTES
    given_back = [span for turn in order for span in loading.spans(turn)]
    assert sum(span.last - span.first for span in given_back) >= sum(
        t.source.nbytes for t in tensors if t.source.is_mapped
    )
    assert len(given_back) <= len(order) + 1


def _resident_nbytes(path: str) -> int:
    """Bytes of a mapped file that this process holds in memory."""
    found, inside = 0, False
    for line in SMAPS.read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(path)
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.skipif(not SMAPS.exists(), reason="what is resident is asked of Linux")
def test_the_files_pages_are_given_back(file: MappedFile) -> None:
    tensors = shapes(file)
    for t in tensors:
        t.source.data().sum()
    assert _resident_nbytes(file.path) > 12 << 20
    Weights().prepare(tensors, 2)
    assert (
        _resident_nbytes(file.path) < 3 << 20
    )  # Linux may map 2 MiB of what it has along with the last page that was read


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="the greatest memory of a process is asked of POSIX")
def test_opening_a_model_takes_a_quarter_more_than_file_cache_and_arena_at_most() -> None:
    folder = Path(__file__).parents[3] / "bench" / "starts"
    program = "import json, sys, loading; print(json.dumps(loading.measure_memory(sys.argv[1], 2)))"
    model = str(require_default_model())
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in [str(folder), *sys.path])
    }
    command = [sys.executable, "-c", program, model]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["share"] <= 1.25, ended.stdout
    assert found["weights_nbytes"] <= 1.1 * found["file_nbytes"]


def test_what_was_begun_is_there_when_it_is_wanted_and_its_errors_are_raised(file: MappedFile) -> None:
    weights, tensors = Weights(), shapes(file)
    weights.begin(tensors[:2], 2)
    weights.prepare(tensors, 2)
    want = np.zeros(tensors[0].spec.nbytes, np.uint8)
    pack(tensors[0].source.data(), tensors[0].spec, want)
    np.testing.assert_array_equal(weights.memory(tensors[0]), want)
    assert weights.nbytes == sum(t.spec.nbytes for t in tensors)

    class Broken:
        asked = 0

        def data(self) -> np.ndarray:
            self.asked += 1
            if self.asked > 1:  # the first tells where it lies
                raise FormatError("the file was closed")
            return np.zeros(65, np.uint8)[1:]

    broken = Graph().constant("w", Broken(), TensorSpec((16,), f32))
    weights.begin([broken], 2)
    with pytest.raises(FormatError, match="closed"):
        weights.prepare([], 2)


def test_the_interpreters_turns_are_afterwards_as_long_as_before(file: MappedFile) -> None:
    before = sys.getswitchinterval()
    for _ in range(3):
        weights = Weights()
        weights.begin(shapes(file), 4)
        weights.prepare([], 4)
    assert sys.getswitchinterval() == before
    assert weights.nbytes == sum(t.spec.nbytes for t in shapes(file))


def test_one_thread_begins_nothing(file: MappedFile) -> None:
    weights = Weights()
    weights.begin(shapes(file), 1)
    assert not weights.nbytes
    weights.prepare([], 1)
    assert not weights.nbytes
