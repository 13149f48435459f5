"""The child that proves: `python -m camshaft.validation.worker` reads a claim a line from stdin until that is closed.

It may crash or hang: proof.py, in the parent, reports that. It writes lines of JSON: {"ready": true} once, then {"sample": name}
before each sample and {"verdict": ...} for each claim, or {"store": ...} where the store cannot be used: that is no verdict.
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

from camshaft.backends.device import HOST
from camshaft.backends.registry import device as device_named
from camshaft.errors import StoreError
from camshaft.ops.op import NodeSpec, Op, Sample
from camshaft.store.store import store
from camshaft.validation.cases import VariantCase, kinds_among
from camshaft.validation.evidence import ValidationResult
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import Checked, check_sample, node_of, specs_of

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


# A plan proves its kernels on this many samples of the node's kinds, the last among them; each costs a compilation.
PLAN_SAMPLES = 4


def samples_of(op: Op, kinds: str | None) -> list[tuple[Sample, NodeSpec]]:
    """All samples, or for given kinds some of theirs, evenly apart (of any kinds, where there are none of these)."""
    every = list(op.samples())
    if kinds is not None:
        fit = [sample for sample in every if kinds_among(specs_of(sample)) == kinds] or every
        n = min(PLAN_SAMPLES, len(fit))
        every = [fit[(i + 1) * len(fit) // n - 1] for i in range(n)]
    return [(sample, node_of(op, sample)) for sample in every]


def judge(case: VariantCase, begin: Callable[[str], None]) -> ValidationResult:
    """Runs samples on the variant until one fails; `begin` is told each sample's name."""
    op, variant = case.resolve()
    device = device_named(case.backend)
    started, refusal = time.perf_counter(), None
    worst: Checked | None = None
    n_samples = 0
    for sample, node in samples_of(op, case.kinds):
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
    return _verdict(case, worst, n_samples, elapsed)


def _verdict(case: VariantCase, worst: Checked, n_samples: int, elapsed: float) -> ValidationResult:
    right = worst.max_error <= worst.tolerance
    reason = None if right else f"error {worst.max_error:.3g} above {worst.tolerance:.3g} in sample '{worst.sample}'"
    return ValidationResult(
        case.op,
        case.variant,
        case.backend,
        "proved" if right else "failed",
        reason,
        worst.max_error if math.isfinite(worst.max_error) else None,
        worst.tolerance,
        worst.sample,
        n_samples,
        elapsed,
    )


def _reason(error: Exception) -> str:
    """The error in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def main() -> None:
    """Judges the claims of stdin, one after the other."""
    _say("ready", True)
    for line in sys.stdin:
        case = VariantCase(**json.loads(line))
        at: list[str] = []

        def begin(sample: str, at: list[str] = at) -> None:
            at[:] = [sample]
            _say("sample", sample)

        try:
            with bounded(device_named(case.backend).space):
                result = judge(case, begin)
        except StoreError as error:
            _say("store", str(error))
            continue
        except Exception as error:  # whatever a variant raises is the verdict on it
            reason = _reason(error)
            result = ValidationResult(
                case.op, case.variant, case.backend, "failed", reason, sample=at[0] if at else None
            )
        _say("verdict", asdict(result))


if __name__ == "__main__":
    main()
    store().finish()
    os._exit(0)  # Python's and LLVM's own end takes 0.2 s, for which the parent would wait
