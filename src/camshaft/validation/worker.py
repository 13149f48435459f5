"""Child process that validates cases: `python -m camshaft.validation.worker` reads one case per line from stdin.

It writes JSON lines: {"ready": true} once, {"sample": name} before each sample, {"compiling": true or false} around each
compilation, {"result": ...} per case, or {"store": ...} if the store cannot be used. It may crash or hang; the parent process
(proof.py) detects both.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from camshaft.backends.cpu.device import watch_builds
from camshaft.backends.device import HOST
from camshaft.backends.registry import device as device_named
from camshaft.errors import StoreError
from camshaft.ops.op import NodeSpec, Op, Sample
from camshaft.store.store import store
from camshaft.validation.cases import VariantCase, kinds_among
from camshaft.validation.evidence import ValidationResult
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import SampleResult, check_sample, node_of, specs_of

# The largest samples take tens of MB; several children must fit into a small machine's memory.
MOST_NBYTES = 4 << 30
_SHARE_OF_MACHINE = 4
_DATA_PAGES = 5  # column of /proc/self/statm


@contextmanager
def bounded(space: str) -> Iterator[None]:
    """Limit the allocations of a block to MOST_NBYTES or a quarter of the machine's memory; beyond that, MemoryError.

    Applies only on Linux and to HOST devices: GPU drivers map far more than they use, and other systems cannot limit private
    memory.
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


# A plan validates at most this many samples of a node's kinds of inputs: each costs a compilation.
PLAN_SAMPLES = 4


def samples_of(
    op: Op, kinds: str | None, takes: Callable[[NodeSpec], bool] = lambda node: True
) -> list[tuple[Sample, NodeSpec]]:
    """Returns samples with their nodes: all of them, or at most PLAN_SAMPLES for given `kinds` of inputs.

    Prefers samples of these kinds that the variant `takes`, then others that it takes, then any; evenly spaced, with the last."""
    every = [(sample, node_of(op, sample)) for sample in op.samples()]
    if kinds is None:
        return every
    taken = [(sample, node) for sample, node in every if takes(node)] or every
    fit = [(sample, node) for sample, node in taken if kinds_among(specs_of(sample)) == kinds] or taken
    n = min(PLAN_SAMPLES, len(fit))
    return [fit[(i + 1) * len(fit) // n - 1] for i in range(n)]


def judge(case: VariantCase, begin: Callable[[str], None]) -> ValidationResult:
    """Run samples until one fails; `begin` is called with each sample's name."""
    op, variant = case.resolve()
    device = device_named(case.backend)
    started, refusal = time.perf_counter(), None
    worst: SampleResult | None = None
    n_samples = 0
    for sample, node in samples_of(op, case.kinds, lambda node: variant.supports(node, device) is None):
        begin(sample.name)
        refused = variant.supports(node, device) or refusal_of(variant, node, device)
        if refused is not None:
            refusal = refusal or refused
            continue
        checked = check_sample(op, variant, device, sample)
        n_samples += 1
        if worst is None or not checked.max_error <= worst.max_error:
            worst = checked
        if not checked.max_error <= checked.tolerance:
            break
    elapsed = time.perf_counter() - started
    if worst is None:
        reason = refusal or "the op has no samples"
        return ValidationResult(case.op, case.variant, case.backend, "absent", reason, elapsed_s=elapsed)
    return _result(case, worst, n_samples, elapsed)


def _result(case: VariantCase, worst: SampleResult, n_samples: int, elapsed: float) -> ValidationResult:
    passed = worst.max_error <= worst.tolerance
    reason = None if passed else f"error {worst.max_error:.3g} above {worst.tolerance:.3g} in sample '{worst.sample}'"
    return ValidationResult(
        case.op,
        case.variant,
        case.backend,
        "proved" if passed else "failed",
        reason,
        worst.max_error if math.isfinite(worst.max_error) else None,
        worst.tolerance,
        worst.sample,
        n_samples,
        elapsed,
    )


def judge_or_fail(case: VariantCase, begin: Callable[[str], None]) -> ValidationResult:
    """As `judge` within `bounded` memory; an exception of the variant becomes a failed result. Raises StoreError."""
    current: str | None = None

    def begin_named(sample: str) -> None:
        nonlocal current
        current = sample
        begin(sample)

    try:
        with bounded(device_named(case.backend).space):
            return judge(case, begin_named)
    except StoreError:
        raise
    except Exception as error:
        return ValidationResult(case.op, case.variant, case.backend, "failed", _reason(error), sample=current)


def _reason(error: Exception) -> str:
    """Formats an error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _send(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def main() -> None:
    """Validate the cases from stdin one by one."""
    watch_builds(lambda begins: _send("compiling", begins))
    _send("ready", True)
    for line in sys.stdin:
        case = VariantCase(**json.loads(line))
        try:
            result = judge_or_fail(case, lambda sample: _send("sample", sample))
        except StoreError as error:
            _send("store", str(error))
            continue
        _send("result", asdict(result))


if __name__ == "__main__":
    main()
    store().finish()
    os._exit(0)  # skip the shutdown of Python and LLVM, which takes 0.2 s
