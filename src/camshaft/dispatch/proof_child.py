"""The child that proves: it reads claims from stdin and writes a line per sample and per verdict.

Run as `python -m camshaft.dispatch.proof_child`. It may crash or hang; proof.py, in the parent, reports that. Lines are JSON: {"at": claim, "sample": name}, {"done": claim, ...}.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from typing import Any, TextIO

from camshaft.backends.registry import present_backend
from camshaft.dispatch.claims import Claim
from camshaft.dispatch.evidence import Verdict
from camshaft.dispatch.validate import Checked, check_sample, node_of


def _say(out: TextIO, line: dict[str, Any]) -> None:
    print(json.dumps(line), file=out, flush=True)


def judge(claim: Claim, index: int, out: TextIO) -> Verdict:
    """Runs the op's samples on the variant until one fails."""
    op, variant = claim.resolve()
    device = present_backend(claim.backend).device()
    started, refusal = time.perf_counter(), None
    worst: Checked | None = None
    n_samples = 0
    for sample in op.samples():
        _say(out, {"at": index, "sample": sample.name})
        node = node_of(op, sample)
        refused = variant.supports(node, device)
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
        return Verdict(claim.op, claim.variant, claim.backend, "absent", reason, elapsed_s=elapsed)
    return _verdict(claim, worst, n_samples, elapsed)


def _verdict(claim: Claim, worst: Checked, n_samples: int, elapsed: float) -> Verdict:
    right = worst.max_error <= worst.tolerance
    reason = None if right else f"error {worst.max_error:.3g} above {worst.tolerance:.3g} in sample '{worst.sample}'"
    error = worst.max_error if math.isfinite(worst.max_error) else None
    status, names = ("proved" if right else "failed"), (claim.op, claim.variant, claim.backend)
    return Verdict(*names, status, reason, error, worst.tolerance, worst.sample, n_samples, elapsed)  # type: ignore[arg-type]


def main() -> None:
    """Judges the claims of stdin, one after the other."""
    out = sys.stdout
    claims = [Claim(**row) for row in json.load(sys.stdin)]
    _say(out, {"ready": len(claims)})
    for index, claim in enumerate(claims):
        _say(out, {"at": index, "sample": None})
        try:
            verdict = judge(claim, index, out)
        except Exception as error:  # whatever a variant raises is the verdict on it
            reason = f"{type(error).__name__}: {error}"
            verdict = Verdict(claim.op, claim.variant, claim.backend, "failed", reason)
        _say(out, {"done": index, "verdict": asdict(verdict)})


if __name__ == "__main__":
    main()
