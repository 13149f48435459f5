"""Memory in huge pages: aligned, zeroed, and refused in words of Python where there is not as much."""

from __future__ import annotations

import pytest

from camshaft.plan.huge_pages import HUGE_PAGE, huge_pages


@pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE, HUGE_PAGE + 3])
def test_it_is_zeroed_and_starts_on_a_huge_page(nbytes) -> None:
    memory = huge_pages(nbytes)
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % HUGE_PAGE == 0
    assert not memory.any()
    memory[:] = 7
    assert (memory == 7).all()


def test_more_than_there_is_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        huge_pages(1 << 60)
