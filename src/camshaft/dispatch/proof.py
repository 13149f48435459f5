"""Proof of claims in child processes, so that a variant that crashes or hangs is a verdict and not the end. Above evidence.py."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import IO, Any

from camshaft.backends.registry import BACKENDS
from camshaft.dispatch.claims import Claim, all_claims
from camshaft.dispatch.evidence import BackendValidation, Verdict, ledger, summary
from camshaft.errors import BackendError
from camshaft.settings import settings, thread_count

SAMPLE_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 120.0
_CLAIMS_PER_CHILD = 4


def prove(claims: Iterable[Claim], *, timeout_s: float = SAMPLE_TIMEOUT_S) -> dict[Claim, Verdict]:
    """A verdict on each claim: from the evidence where there is one, else from child processes, and then kept.

    `timeout_s` is for one sample, compilation included. BackendError when no child can be run at all.
    """
    wanted = tuple(dict.fromkeys(claims))
    absent = {name: BACKENDS[name].absent() for name in {c.backend for c in wanted}}
    found = {c: Verdict(c.op, c.variant, c.backend, "absent", reason) for c in wanted if (reason := absent[c.backend])}
    found |= {c: v for c in wanted if c not in found and (v := ledger().get(c))}
    missing = [c for c in wanted if c not in found]
    if missing:
        n_children = min(thread_count(), -(-len(missing) // _CLAIMS_PER_CHILD))
        with ThreadPoolExecutor(n_children) as pool:
            fresh = list(pool.map(lambda i: _judge(missing[i::n_children], timeout_s), range(n_children)))
        proved = {c: v for verdicts in fresh for c, v in verdicts.items()}
        ledger().add(proved)
        found |= proved
    return {c: found[c] for c in wanted}


def validate_backends(names: Sequence[str] | None = None) -> dict[str, BackendValidation]:
    """Every variant of every op that these backends (all of them by default) claim, proved on the op's samples."""
    wanted = tuple(BACKENDS if names is None else names)
    absent = {name: BACKENDS[name].absent() for name in wanted}
    claims = {name: all_claims(name) if absent[name] is None else () for name in wanted}
    verdicts = prove(c for rows in claims.values() for c in rows)
    return {name: summary(name, (verdicts[c] for c in claims[name]), absent[name]) for name in wanted}


def _judge(claims: Sequence[Claim], timeout_s: float) -> dict[Claim, Verdict]:
    """Verdicts from as many children as it takes: one that dies takes only its claim with it."""
    found: dict[Claim, Verdict] = {}
    left = list(claims)
    while left:
        with _Child(left) as child:
            found |= child.verdicts(timeout_s)
        left = [c for c in left if c not in found]
    return found


@dataclass
class _Progress:
    """How far a child came."""

    claim: Claim | None = None
    sample: str | None = None


class _Child:
    """One child process and the lines that it writes."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self._claims = claims
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "CAMSHAFT_CACHE_DIR": str(settings().cache_dir.absolute()),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "camshaft.dispatch.proof_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> _Child:
        self._reader.start()
        assert self._process.stdin is not None
        try:
            json.dump([asdict(c) for c in self._claims], self._process.stdin)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died at once: verdicts() says why
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def verdicts(self, timeout_s: float) -> dict[Claim, Verdict]:
        """What the child says until it ends, dies or is silent for too long; the claim it was at is then failed."""
        found: dict[Claim, Verdict] = {}
        at = _Progress()
        while len(found) < len(self._claims):
            try:
                line = self._lines.get(timeout=timeout_s if at.claim else _START_TIMEOUT_S)
            except queue.Empty:
                self._fail(found, at, f"hung: nothing for {timeout_s:g} s")
                break
            if line is None:
                self._fail(found, at, f"crashed the process: {self._death()}")
                break
            self._take(json.loads(line), found, at)
        return found

    def _take(self, line: dict[str, Any], found: dict[Claim, Verdict], at: _Progress) -> None:
        if "at" in line:
            at.claim, at.sample = self._claims[line["at"]], line["sample"]
        elif "done" in line:
            found[self._claims[line["done"]]] = Verdict(**line["verdict"])

    def _fail(self, found: dict[Claim, Verdict], at: _Progress, what: str) -> None:
        if at.claim is None or at.claim in found:
            raise BackendError(f"a process that proves kernels cannot be run: {what}")
        claim, where = at.claim, f" in sample '{at.sample}'" if at.sample else ""
        found[claim] = Verdict(claim.op, claim.variant, claim.backend, "failed", what + where, sample=at.sample)

    def _death(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        if code < 0:
            return signal.Signals(-code).name
        return f"exit status {code}" + (f" ({said[-1]})" if said else "")
