"""A cached plan reads a model file only if its constants are there as they were when it was stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import PlanError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import GGUFTensor, open_gguf
from camshaft.formats.gguf.write import NewTensor, values_of, write_gguf
from camshaft.generate.stored import plan_cache
from camshaft.plan.cached import cached_plan
from camshaft.plan.cached.cached_check import ARENA, ARGUMENTS, COPY, EXTENTS, MEMMOVE
from camshaft.plan.cached.stored_plan import (
    Constant,
    PlanHeader,
    SerializedPlan,
    View,
    from_bytes,
    tensor_place,
    to_bytes,
)

IDS = [1, 5, 9, 12, 3, 7, 7, 2]
WEIGHT = "blk.1.ffn_down.weight"
F32 = BLOCK_FORMATS["F32"]


@pytest.fixture(scope="module")
def entry(path: Path) -> bytes:
    """A plan of two thunks as it is stored: a kernel on WEIGHT, packed, and a copy of the arena."""
    with open_gguf(path) as file:
        place = tensor_place(file.tensors[WEIGHT])
    constant = Constant(WEIGHT, place, "interleaved", 6912, (1, 64, 3, 102, 4, 0, 6144, 6528, 0))
    view = View(ARENA, 64, "<f4", (4, 8))
    record = [0, 0, 1, 1, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0]
    record_regions = [7, ARGUMENTS, 0, 0, 0, 0, EXTENTS, *[0] * 9]
    copied = [0, 24, 2, 1, 0, *[0] * 11], [COPY, ARGUMENTS, *[0] * 14]
    header = PlanHeader(
        threads=2,
        executor="e" * 64,
        extents=[("tokens", 32)],
        kernels=[("matmul", "a" * 64), ("pack", "b" * 64)],
        arena=(4096, 64),
        memory=[("cache", 1024)],
        constants=[constant],
        computed=[16],
        allocated=[256],
        inputs={"x": view},
        outputs={"y": replace(view, region=11)},
        shapes=([2, 2, 16], [2, 1, 7]),
    )
    words = np.array([[record, copied[0]], [record_regions, copied[1]]], np.int64)
    args = np.array([[[128, 0, 0, 64, 128, 32, 0]], [[ARENA, 9, EXTENTS, ARENA, 11, 0, MEMMOVE]]], np.int64)
    return to_bytes(SerializedPlan(header, words, args, (np.arange(16, dtype=np.uint8),)))


def logits(path: Path) -> bytes:
    with LanguageModel(path, threads=1, context=32) as lm:
        return lm.logits(IDS).tobytes()


def row(tensor: Any) -> str:
    """A tensor's row of a table whose fields are joined, as keys once were."""
    return f"{tensor.name}|{tensor.shape}|{tensor.format.name}|{tensor.nbytes}|True\n"


def pair(source: Path, folder: Path) -> tuple[Path, Path]:
    """Two models of one joined table: a weight in Q8_0 beside a tensor with the name of one in F32, and the reverse."""
    with open_gguf(source) as file:
        values, tensors = values_of(file.metadata), dict(file.tensors)
        weight, others = tensors.pop(WEIGHT), [as_new(t) for t in tensors.values()]
        rest = np.zeros(2, np.float32).view(np.uint8)
        small = [NewTensor(name, (2,), F32, lambda: [rest]) for name in ("extra", "q")]
        wide = NewTensor(WEIGHT, weight.shape, F32, lambda: [weight.dequantize().view(np.uint8)])
        real, hidden = as_new(weight), replace(wide, name=row(small[1]) + WEIGHT)
        first, second = folder / "first.gguf", folder / "second.gguf"
        write_gguf(first, values, [*others, real, small[0], hidden])
        write_gguf(second, values, [*others, replace(small[0], name=row(real) + "extra"), small[1], wide])
    return first, second


def as_new(tensor: GGUFTensor) -> NewTensor:
    return NewTensor(tensor.name, tensor.shape, tensor.format, lambda: [tensor.data()])


def test_tables_that_are_equal_when_joined_have_different_keys(path: Path, tmp_path: Path) -> None:
    paths = pair(path, tmp_path)
    with open_gguf(paths[0]) as first, open_gguf(paths[1]) as second:
        joined = ["".join(row(tensor) for tensor in file.tensors.values()) for file in (first, second)]
        assert joined[0] == joined[1]
        assert plan_cache._model(first) != plan_cache._model(second)


@pytest.mark.full
@pytest.mark.parametrize("order", [1, -1])
def test_models_of_one_joined_table_give_their_own_results(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """In one store, in both orders: the plan of the one would read 24 kB of the other's 6.5 kB."""
    paths = pair(path, tmp_path)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "shared"))
    shared = {path: logits(path) for path in paths[::order]}
    for path in paths:
        monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / path.stem))
        assert shared[path] == logits(path)


DIFFERENCES: dict[str, Callable[[GGUFTensor], GGUFTensor]] = {
    "shape": lambda t: replace(t, shape=t.shape[::-1]),
    "format": lambda t: replace(t, format=BLOCK_FORMATS["Q8_1"]),
    "bytes": lambda t: replace(t, nbytes=t.nbytes - 1),
    "offset": lambda t: replace(t, mapped=(t.mapped[0], t.mapped[1] + 32)) if t.mapped else t,
    "copied": lambda t: replace(t, mapped=None),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_constant_that_differs_is_refused(entry: bytes, path: Path, what: str) -> None:
    plan = from_bytes(entry)
    (constant,) = [constant for constant in plan.header.constants if constant.tensor == WEIGHT]
    with open_gguf(path) as file:
        kernels = [None] * len(plan.header.kernels)
        tensors = dict(file.tensors)
        assert cached_plan._load_request(constant, kernels, tensors).source is tensors[WEIGHT]  # type: ignore[arg-type]
        tensors[WEIGHT] = DIFFERENCES[what](tensors[WEIGHT])
        with pytest.raises(PlanError, match=f"a cached plan wants '{WEIGHT}' as TensorPlace"):
            cached_plan._load_request(constant, kernels, tensors)  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="which the file lacks"):
            cached_plan._load_request(replace(constant, tensor="another"), kernels, tensors)  # type: ignore[arg-type]


PACKINGS = {
    "kernel": (0, 1000),
    "negative kernel": (0, -1),
    "rows": (1, 1 << 40),
    "row bytes": (3, 1 << 40),
    "tiles": (4, 1 << 40),
    "codes": (5, 1 << 40),
    "scales": (6, -64),
    "grid": (8, 16),
}


@pytest.mark.parametrize("what", PACKINGS)
def test_a_packing_outside_the_memory_is_refused(entry: bytes, path: Path, what: str) -> None:
    plan = from_bytes(entry)
    constant = next(constant for constant in plan.header.constants if constant.packing is not None)
    place, value = PACKINGS[what]
    numbers = list(constant.packing or ())
    numbers[place] = value
    with open_gguf(path) as file, pytest.raises(PlanError, match=r"a cached plan (packs|reads)"):
        cached_plan._load_request(replace(constant, packing=numbers), [None] * 99, file.tensors)  # type: ignore[list-item]


def changed(plan: SerializedPlan, **parts: Any) -> bytes:
    return to_bytes(replace(plan, **parts))


def word(array: np.ndarray, place: tuple[int, ...], value: int) -> np.ndarray:
    made = array.copy()
    made[place] = value
    return made


WRONG: dict[str, Callable[[SerializedPlan], bytes]] = {
    "region": lambda p: changed(p, args=word(p.args, (1, 0, 0), 10_000)),
    "negative region": lambda p: changed(p, args=word(p.args, (1, 0, 0), -1)),
    "offset": lambda p: changed(p, args=word(p.args, (0, 0, 0), 1 << 40)),
    "negative offset": lambda p: changed(p, args=word(p.args, (0, 0, 0), -64)),
    "entry": lambda p: changed(p, records=word(p.records, (0, 0, 0), 8)),
    "entry is data": lambda p: changed(p, records=word(p.records, (1, 0, 0), 5)),
    "argument block": lambda p: changed(p, records=word(p.records, (0, 0, 1), 1 << 40)),
    "programs": lambda p: changed(p, records=word(p.records, (0, 0, 2), -1)),
    "worker": lambda p: changed(p, records=word(p.records, (0, 0, 4), 99)),
    "factors": lambda p: changed(p, records=word(p.records, (0, 0, 5), 4)),
    "stride": lambda p: changed(p, records=word(p.records, (0, 0, 12), 8)),
    "kernel key": lambda p: changed(p, header=replace(p.header, kernels=[("k", "../../x")])),
    "executor": lambda p: changed(p, header=replace(p.header, executor="x")),
    "arena": lambda p: changed(p, header=replace(p.header, arena=(-1, 64))),
    "float size": lambda p: changed(p, header=replace(p.header, computed=[1.5])),
    "size as text": lambda p: changed(p, header=replace(p.header, memory=[("cache", "12")])),
    "threads": lambda p: changed(p, header=replace(p.header, threads=0)),
    "view": lambda p: changed(p, header=with_view(p, offset=1 << 40)),
    "view's region": lambda p: changed(p, header=with_view(p, region=0)),
    "view's dtype": lambda p: changed(p, header=with_view(p, dtype="?!")),
    "view's shape": lambda p: changed(p, header=with_view(p, shape=[-1])),
    "calls of BLAS without words": lambda p: changed(p, header=replace(p.header, blas=("openblas", [0]))),
    "calls of BLAS elsewhere": lambda p: changed(p, header=replace(p.header, blas=("openblas", [-1]))),
    "calls of no BLAS": lambda p: changed(p, header=replace(p.header, blas=("", [0]))),
    "short": lambda p: to_bytes(p)[:-9],
    "empty": lambda p: b"",
    "no JSON": lambda p: b"\3\0\0\0\0\0\0\0{]}",
    "a list": lambda p: b"\2\0\0\0\0\0\0\0[]",
    "nested": lambda p: (20_000).to_bytes(8, "little") + b"[" * 20_000,
}


def with_view(plan: SerializedPlan, **parts: Any) -> cached_plan.PlanHeader:
    name, view = next(iter(plan.header.inputs.items()))
    return replace(plan.header, inputs={**plan.header.inputs, name: replace(view, **parts)})


@pytest.mark.parametrize("what", WRONG)
def test_an_entry_that_leads_outside_its_memory_is_refused(entry: bytes, what: str) -> None:
    wrong = WRONG[what](from_bytes(entry))
    with pytest.raises(PlanError, match="a cached plan"):
        from_bytes(wrong)


def test_places_come_back_as_they_were(entry: bytes, path: Path) -> None:
    plan = from_bytes(entry)
    with open_gguf(path) as file:
        assert [c.place for c in plan.header.constants] == [
            tensor_place(file.tensors[c.tensor]) for c in plan.header.constants
        ]


@pytest.mark.soak
def test_changed_entries_are_refused_or_bound(entry: bytes, path: Path) -> None:
    """20,000 entries with some bytes changed, whose digest would be right: PlanError, or a plan within its memory."""
    rng, n_bound = np.random.default_rng(1), 0
    with open_gguf(path) as file:
        for _ in range(20_000):
            data = bytearray(entry)
            end = len(data) if rng.random() < 0.5 else 8 + int.from_bytes(data[:8], "little")
            for place in rng.integers(0, end, rng.integers(1, 4)):
                data[place] = rng.integers(256)
            try:
                plan = from_bytes(bytes(data))
                for constant in plan.header.constants:
                    cached_plan._load_request(constant, [None] * 99, file.tensors)  # type: ignore[list-item]
            except PlanError:
                continue
            n_bound += 1
    assert n_bound < 20_000
