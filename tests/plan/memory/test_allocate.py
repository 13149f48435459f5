"""Memory in huge pages: aligned, zeroed, and refused in words of Python where there is not as much."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from camshaft.plan.memory.allocate import HUGE_PAGE, huge_pages, late_huge_pages


@pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE, HUGE_PAGE + 3])
def test_it_is_zeroed_and_starts_on_a_huge_page(nbytes) -> None:
    memory = huge_pages(nbytes)
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % HUGE_PAGE == 0
    assert not memory.any()
    memory[:] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE, 3 * HUGE_PAGE + 3])
def test_what_is_there_stays_when_pages_become_huge(nbytes: int) -> None:
    memory, enlarge = late_huge_pages(nbytes)
    assert (memory.nbytes, memory.ctypes.data % HUGE_PAGE) == (nbytes, 0)
    memory[::8192] = 7
    wanted = memory[: HUGE_PAGE + 8192].copy()
    enlarge()
    enlarge()
    assert (memory[: HUGE_PAGE + 8192] == wanted).all()
    assert memory[HUGE_PAGE + 8192 :: 8192].all()
    memory[:] = 9
    assert (memory == 9).all()


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
def test_pages_are_small_until_they_are_asked_to_be_huge() -> None:
    """A byte in each of 4 huge pages takes 4 small ones first."""

    def taken() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) << 10

    memory, _ = late_huge_pages(64 * HUGE_PAGE)
    before = taken()
    memory[::HUGE_PAGE] = 1
    assert taken() - before < 8 * HUGE_PAGE


def test_more_than_there_is_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        huge_pages(1 << 60)
