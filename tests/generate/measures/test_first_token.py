"""The first token is measured in child processes, which end with the command."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from camshaft.generate.measures.benchmark import _first_byte_s


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer of POSIX")
def test_a_measured_process_ends_at_once_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int, frame: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    started = time.monotonic()
    try:
        with pytest.raises(SystemExit):
            _first_byte_s([sys.executable, "-S", "-c", "import time; time.sleep(20)"], {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 10
