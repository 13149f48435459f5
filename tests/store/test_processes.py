"""The kernel cache among processes: eight at once on an empty cache, foreign entries, damage, leases."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from camshaft.backends.cpu import device, loaded
from camshaft.backends.cpu.compile import host_target
from camshaft.store.objects import Counts, ObjectStore
from camshaft.store.process_lock import LEASE_PREFIX, ProcessLeases, locked
from camshaft.store.store import store
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationCache
from tests.store.processes import N_KERNELS, adds

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: no kernel is in memory."""
    monkeypatch.setattr(device, "_functions", {})
    monkeypatch.setattr(loaded, "_shared", {})
    monkeypatch.setattr(device, "counts", loaded.CompileCounts())


def child(cache: Path, *command: str) -> subprocess.Popen[str]:
    environment = os.environ | {"CAMSHAFT_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *command], env=environment, text=True, **pipes)


def entries(cache: Path, kind: str) -> list[Path]:
    return sorted((cache / kind).glob("*/*"))


@pytest.mark.full
def test_eight_processes_at_once_on_an_empty_cache(cache: Path) -> None:
    children = [child(cache, "-m", "tests.store.processes", f"process {i}") for i in range(8)]
    for each in children:
        out, err = each.communicate(timeout=120)
        assert (each.returncode, err) == (0, "")
        compiled, loaded = map(int, out.split())
        assert compiled + loaded == 2 * N_KERNELS
        assert loaded >= N_KERNELS  # of two that are alike at most one was compiled
    assert len(entries(cache, "objects")) == N_KERNELS
    assert len(entries(cache, "keys")) == 2 * N_KERNELS
    left = sorted(p.name for p in cache.rglob("*") if p.is_file() and len(p.parent.name) != 2)
    assert left == ["counters", "counters.lock", "evidence.lock"]
    counted = store().counters.read()["objects"]
    assert (counted.hits + counted.misses) >= 8 * 2 * N_KERNELS
    kept = ValidationCache(store())
    for i in range(8):
        assert kept.get(VariantCase("copy", f"process {i}", "simd", "camshaft.ops.elementwise.copy")) is not None


def test_two_kernels_that_come_to_one_text_are_one_object(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert adds(7, ("one", "another")) == [7, 8]
    assert (device.counts.compiled, device.counts.loaded) == (1, 1)
    assert (len(entries(cache, "objects")), len(entries(cache, "keys"))) == (1, 2)
    forget(monkeypatch)
    assert adds(7, ("another", "one")) == [7, 8]
    assert (device.counts.compiled, device.counts.loaded) == (0, 2)


@pytest.mark.parametrize("what", ["llvm_version", "cpu", "features", "triple"])
def test_another_machines_entries_are_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    adds(7, ("one",))
    forget(monkeypatch)
    other = dataclasses.replace(host_target(), **{what: "another"})
    monkeypatch.setattr(device, "host_target", lambda: other)
    monkeypatch.setattr(device, "_machine_key", device._machine_key.__wrapped__)
    assert adds(7, ("one",)) == [7]
    assert (device.counts.compiled, device.counts.loaded) == (1, 0)


@pytest.mark.skipif(os.name == "nt", reason="owners are POSIX ones")
def test_another_users_entries_are_rebuilt(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adds(7, ("one",))
    forget(monkeypatch)
    for path in entries(cache, "keys") + entries(cache, "objects"):
        path.chmod(0o666)
    assert adds(7, ("one",)) == [7]
    assert (device.counts.compiled, device.counts.loaded) == (1, 0)
    assert {p.stat().st_mode & 0o777 for p in entries(cache, "keys") + entries(cache, "objects")} == {0o600}


@pytest.mark.parametrize("kind", ["keys", "objects"])
@pytest.mark.parametrize("at", [0, 17, 18, 50, 81, 82, 83, 100, 146, -1], ids=str)
def test_a_flipped_bit_is_noticed_and_the_entry_rebuilt(
    cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at: int
) -> None:
    """Header, digest, its end, first and later bytes of the body, the last."""
    adds(7, ("one",))
    (path,) = entries(cache, kind)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1
    path.write_bytes(bad)
    forget(monkeypatch)
    assert adds(7, ("one",)) == [7]
    assert device.counts.compiled == (1 if kind == "objects" else 0)
    assert path.read_bytes() == good


def test_a_first_key_that_leads_nowhere_is_made_good(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adds(7, ("one",))
    (path,) = entries(cache, "objects")
    path.unlink()
    forget(monkeypatch)
    assert adds(7, ("one",)) == [7]
    assert path.exists()
    assert store().objects.counts == Counts(0, 2, store().objects.counts.added_nbytes)


HOLDS = """
import sys
from pathlib import Path
from camshaft.store.process_lock import ProcessLeases
leases = ProcessLeases(Path(sys.argv[1]))
leases.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lease_counts_while_its_process_lives(tmp_path: Path) -> None:
    leases = ProcessLeases(tmp_path)
    assert leases.oldest() is None
    other = child(tmp_path, "-c", HOLDS, str(tmp_path))
    assert other.stdout is not None
    other.stdout.readline()
    (lease,) = tmp_path.glob(LEASE_PREFIX + "*")
    os.utime(lease, (time.time() - 5000,) * 2)
    leases.acquire()
    assert leases.oldest() == lease.stat().st_mtime
    other.kill()
    other.communicate()
    assert (leases.oldest() or 0) > time.time() - 60
    assert not lease.exists()
    leases.release()
    assert list(tmp_path.iterdir()) == []


def test_eviction_spares_what_another_living_process_may_use(tmp_path: Path) -> None:
    leases = ProcessLeases(tmp_path / "state")
    objects = ObjectStore(tmp_path / "objects", 5000, begin=leases.acquire, living_since=leases.oldest)
    keys = [f"{i:032x}" for i in range(6)]
    for i, key in enumerate(keys):
        ObjectStore(objects.root, 1 << 20).put(key, bytes(1000))
        os.utime(objects.path(key), (time.time() - (9000 if i < 1 else 5100),) * 2)
    other = child(tmp_path, "-c", HOLDS, str(tmp_path / "state"))
    assert other.stdout is not None
    other.stdout.readline()
    (lease,) = leases.folder.glob(LEASE_PREFIX + "*")
    os.utime(lease, (time.time() - 5000,) * 2)  # as if it had lived for so long
    objects.evict()
    assert [objects.path(key).exists() for key in keys] == [False, True, True, True, True, True]
    other.kill()
    other.communicate()
    objects.evict()
    assert sum(objects.path(key).exists() for key in keys) == 4


def test_a_store_without_leases_serves_as_well(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that may only be read."""
    adds(7, ("one",))
    store().leases.release()
    for path in (cache / "state").iterdir():
        path.unlink()
    (cache / "state").rmdir()
    (cache / "state").write_text("no folder")
    forget(monkeypatch)
    assert adds(7, ("one",)) == [7]
    assert device.counts.loaded == 1


@pytest.mark.skipif(os.name == "nt", reason="locks of POSIX")
def test_a_file_system_without_locks_serves_as_well(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert adds(7, ("one",)) == [7]
    with store().locked("evidence"):
        pass
    store().flush_counters()
    assert store().counters.read()["objects"].misses == 1
    assert list((cache / "state").glob(LEASE_PREFIX + "*")) == []


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    taken, done = threading.Event(), []

    def second() -> None:
        taken.wait()
        with locked(tmp_path / "lock"):
            done.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with locked(tmp_path / "lock"):
        taken.set()
        thread.join(0.2)
        done.append("first")
    thread.join()
    assert done == ["first", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_takes_a_lease_of_its_own(tmp_path: Path) -> None:
    leases = ProcessLeases(tmp_path)
    leases.acquire()
    process = os.fork()
    if process == 0:
        leases.acquire()
        os._exit(len(list(tmp_path.glob(LEASE_PREFIX + "*"))))
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 2
    leases.oldest()
    assert len(list(tmp_path.glob(LEASE_PREFIX + "*"))) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_lock_of_another_thread_does_not_stay_with_a_forked_child(tmp_path: Path) -> None:
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock"):
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    reading, writing = os.pipe()
    with locked(tmp_path / "own"):
        process = os.fork()
        if process == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent has the lock anew
            os._exit(0)
        forked.set()
        thread.join()
        with warnings.catch_warnings(action="error"), locked(tmp_path / "lock"):
            os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def test_a_process_that_ends_settles_what_it_counted(cache: Path) -> None:
    adds(7, ("one", "another"))
    store().flush_counters()
    store().flush_counters()  # again: there is nothing left to add
    assert store().counters.read()["objects"] == Counts(1, 1, entries(cache, "objects")[0].stat().st_size)
    (store().leases.folder / "counters").write_bytes(b"{]")
    assert store().counters.read() == {}
    adds(8, ("one",))
    store().flush_counters()
    assert store().counters.read()["objects"].misses == 1
