"""The child process of one peer: creates the peer's object, then answers orders from a pipe. Does not import camshaft.

Run as `python peer.py FILE:CLASS ARGUMENTS` with the arguments as a JSON object. The object has `version`, `built_for`, and
either `seconds(order)` or `call(order)`, which returns a function that is timed here. The first output line is {"version",
"built_for"} or {"absent": reason}, each later one {"s": seconds} or {"failed": reason}; "check" is a number on which all peers
should agree. With BENCH_CLOCK=processor the seconds are of this process's threads on a core, for one thread on a busy machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAST_S = 0.05
BY_PROCESSOR = os.environ.get("BENCH_CLOCK") == "processor"
clock = time.process_time if BY_PROCESSOR else time.perf_counter


def maker(place: str) -> Callable[..., Any]:
    """The class named by `file.py:Class`, or by `module:Class` and `folder/module:Class` in this folder."""
    file, name = place.rsplit(":", 1)
    path = Path(file) if file.endswith(".py") else Path(__file__).parent / f"{file}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # needed by dataclasses
    spec.loader.exec_module(module)
    cls: Callable[..., Any] = getattr(module, name)
    return cls


def seconds_of(call: Callable[[], object], least_s: float) -> float:
    """Seconds per call, averaged over as many calls as take `least_s`."""
    started = clock()
    call()
    once = max(clock() - started, 1e-9)
    n = max(1, round(least_s / once))
    started = clock()
    for _ in range(n):
        call()
    return (clock() - started) / n


class Calls:
    """A peer whose `call(order)` returns a function; functions are cached by order. If it has `check`, that number is reported
    for each result, to compare between peers."""

    def __init__(self, peer: Any) -> None:
        self.peer, self.known = peer, dict[str, Callable[[], object]]()
        self.checks: dict[str, float] = {}

    def seconds(self, order: dict[str, Any]) -> float | dict[str, float]:
        key = json.dumps(order, sort_keys=True)
        if key not in self.known:
            self.known[key] = self.peer.call(order)
            if hasattr(self.peer, "check"):
                self.checks[key] = self.peer.check(self.known[key]())
        answer = {"s": seconds_of(self.known[key], LEAST_S)}
        return answer | {"check": self.checks[key]} if key in self.checks else answer


def answer(seconds: Callable[[dict[str, Any]], float | dict[str, float]], line: str) -> dict[str, Any]:
    """The answer to one line."""
    try:
        started = clock()
        result = seconds(json.loads(line))
        if BY_PROCESSOR and not isinstance(result, dict):
            result = clock() - started
        return result if isinstance(result, dict) else {"s": result}
    except Exception as error:  # whatever a peer raises is its answer
        return {"failed": message_of(error)}


def message_of(error: BaseException) -> str:
    """The error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def main() -> None:
    """Create the peer, report what it is, then answer orders line by line until the pipe is closed."""
    sys.path[:] = [
        path for path in sys.path if path != str(Path(__file__).parent)
    ]  # modules here must not shadow libraries
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers

    def send(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        peer = maker(sys.argv[1])(**json.loads(sys.argv[2]))
    except Exception as error:
        send({"absent": message_of(error)})
        return
    send({"version": peer.version, "built_for": peer.built_for})
    seconds = peer.seconds if hasattr(peer, "seconds") else Calls(peer).seconds
    for line in sys.stdin:
        send(answer(seconds, line))


if __name__ == "__main__":
    main()
