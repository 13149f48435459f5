"""Soaks: damaged entries of every kind, and writers that are killed, change no result and leave nothing behind."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from camshaft.models.files.quantize import quantize
from tests.cli.test_hostile import start, text_of
from tests.support.fixtures import tiny_model

pytestmark = [pytest.mark.soak, pytest.mark.skipif(os.name == "nt", reason="kill -9 and links")]
# Small parts, so that most of the time goes into writing.
QUANTIZE = """
import sys, camshaft.models.files.quantize as q
q._PART_ELEMENTS = 64
q.quantize(sys.argv[1], sys.argv[2], "F16", force=True, threads=1)
"""
KINDS = ("objects", "keys", "evidence", "schedules", "headers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made = folder / "quantized.gguf"
    quantize(tiny_model("llama", folder), made, "Q8_0", threads=1)
    return made


@pytest.fixture(scope="module")
def good(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache with everything, and the text that the model says with it."""
    cache = tmp_path_factory.mktemp("good") / "cache"
    text = text_of(start(cache, model, "--json"))
    assert all(entries(cache, kind) for kind in KINDS)
    return cache, text


def entries(cache: Path, kind: str) -> list[Path]:
    return sorted((cache / kind).glob("*/*"))


def flip(paths: list[Path], rng: random.Random) -> None:
    for path in paths:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def truncate(paths: list[Path], rng: random.Random) -> None:
    for path in paths:
        os.truncate(path, rng.randrange(path.stat().st_size))


def swap(paths: list[Path], rng: random.Random) -> None:
    """Every entry gets the content of another, in the kinds that have more than one."""
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def replace_by(make: Callable[[Path], None]) -> Callable[[list[Path], random.Random], None]:
    def damage(paths: list[Path], rng: random.Random) -> None:
        for path in paths:
            path.unlink()
            make(path)

    return damage


DAMAGES = {
    "flip": flip,
    "truncate": truncate,
    "swap": swap,
    "pipe": replace_by(os.mkfifo),
    "folder": replace_by(lambda path: (path / "inner").mkdir(parents=True)),
    "dangling link": replace_by(lambda path: path.symlink_to(path.with_name("none"))),
    "loop": replace_by(lambda path: path.symlink_to(path)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_entries_change_no_result(
    good: tuple[Path, str], model: Path, tmp_path: Path, kind: str, what: str
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(good[0], cache)
    DAMAGES[what](entries(cache, kind), random.Random(f"{kind} {what}"))
    for _ in range(2):
        assert text_of(start(cache, model, "--json")) == good[1]


def test_killed_writers_change_no_result(good: tuple[Path, str], model: Path, tmp_path: Path) -> None:
    """Forty processes on one cache, killed at any moment of their work, two at a time."""
    rng, cache = random.Random(1), tmp_path / "cache"
    for _ in range(20):
        children = [start(cache, model, "--json") for _ in range(2)]
        for child in children:
            time.sleep(rng.uniform(0.3, 3))
            child.kill()
            child.communicate()
    assert text_of(start(cache, model, "--json")) == good[1]
    left = [path.name for path in cache.rglob("*") if path.name.startswith((".unfinished-", "lease-"))]
    assert left == []


def test_killed_quantizers_leave_nothing_to_the_next(model: Path, tmp_path: Path) -> None:
    rng, out = random.Random(2), tmp_path / "out.gguf"
    for _ in range(10):
        child = subprocess.Popen([sys.executable, "-c", QUANTIZE, str(model), str(out)])
        time.sleep(rng.uniform(0.2, 1.2))
        child.kill()
        child.wait()
    subprocess.run([sys.executable, "-c", QUANTIZE, str(model), str(out)], check=True, timeout=240)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
