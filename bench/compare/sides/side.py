"""The process of one side: makes what measures, then answers orders from a pipe, blocked in between. Needs no camshaft.

Run as `python side.py FILE:CLASS ARGUMENTS` with the arguments as a JSON object. An object of the class has `version` and
`built_for`, and either `seconds(order)`, or `call(order)` for something to be called again and again, which is then timed here.
The first line back is {"version", "built_for"} or {"absent": why}, each later one {"s": seconds} or {"failed": why}; "check" is a
number that all sides should agree on.
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


def maker(place: str) -> Callable[..., Any]:
    """The class that `file.py:Class` or `module:Class` of this folder names."""
    file, name = place.rsplit(":", 1)
    path = Path(file) if file.endswith(".py") else Path(__file__).with_name(f"{file}.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found


def seconds_of(call: Callable[[], object], least_s: float) -> float:
    """Seconds of one of as many calls as take `least_s`, by their mean."""
    started = time.perf_counter()
    call()
    once = max(time.perf_counter() - started, 1e-9)
    n = max(1, round(least_s / once))
    started = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - started) / n


class Calls:
    """A side that gives something to call for each order, kept between turns, and may say of a result what is to be equal on all
    sides (`check`, a number)."""

    def __init__(self, side: Any) -> None:
        self.side, self.known = side, dict[str, Callable[[], object]]()
        self.checks: dict[str, float] = {}

    def seconds(self, order: dict[str, Any]) -> float | dict[str, float]:
        key = json.dumps(order, sort_keys=True)
        if key not in self.known:
            self.known[key] = self.side.call(order)
            if hasattr(self.side, "check"):
                self.checks[key] = self.side.check(self.known[key]())
        said = {"s": seconds_of(self.known[key], LEAST_S)}
        return said | {"check": self.checks[key]} if key in self.checks else said


def answer(seconds: Callable[[dict[str, Any]], float | dict[str, float]], line: str) -> dict[str, Any]:
    """What goes back for a line."""
    try:
        said = seconds(json.loads(line))
        return said if isinstance(said, dict) else {"s": said}
    except Exception as error:  # whatever a peer raises is its answer
        return {"failed": told(error)}


def told(error: BaseException) -> str:
    """In one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def main() -> None:
    """Makes the side, says what it is, then answers line by line until the pipe ends."""
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]  # names here hide no library
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not lie between the answers

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        side = maker(sys.argv[1])(**json.loads(sys.argv[2]))
    except Exception as error:
        say({"absent": told(error)})
        return
    say({"version": side.version, "built_for": side.built_for})
    seconds = side.seconds if hasattr(side, "seconds") else Calls(side).seconds
    for line in sys.stdin:
        say(answer(seconds, line))


if __name__ == "__main__":
    main()
