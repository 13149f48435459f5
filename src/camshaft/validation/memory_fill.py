"""A bound on the memory that a proof may take, so that a variant that asks for far too much fails alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from camshaft.backends.device import HOST

# The largest samples take some ten MB. Beside a machine with little memory, several children must fit at once.
MOST_NBYTES = 4 << 30
_SHARE_OF_MACHINE = 4
_DATA_PAGES = 5  # the column of /proc/self/statm


@contextmanager
def bounded(space: str) -> Iterator[None]:
    """A block whose allocations may come to MOST_NBYTES, a quarter of the machine's memory at most; more is a MemoryError.

    On Linux, for what runs in this process's own memory: drivers of other devices map far more than they use, and other
    systems do not bound private memory (there the machine's own limit holds).
    """
    if sys.platform != "linux" or space != HOST:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    page_nbytes = os.sysconf("SC_PAGE_SIZE")
    used_nbytes = int(Path("/proc/self/statm").read_text().split()[_DATA_PAGES]) * page_nbytes
    more_nbytes = min(MOST_NBYTES, os.sysconf("SC_PHYS_PAGES") * page_nbytes // _SHARE_OF_MACHINE)
    limits = [n for n in (used_nbytes + more_nbytes, soft, hard) if n != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
