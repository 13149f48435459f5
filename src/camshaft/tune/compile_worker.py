"""The child that compiles: `python -m camshaft.tune.compile_worker` reads a candidate a line from stdin until that is closed.

It may crash or hang: compilation.py, in the parent, reports that. It writes lines of JSON: {"ready": true} once, then for each
candidate {"digest": SHA-256 of its machine code, null where the backend has none to show} or {"failed": why}.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from camshaft.backends.cpu.device import CpuKernel, code_digest
from camshaft.backends.device import Device
from camshaft.backends.registry import device as device_named
from camshaft.errors import BackendError
from camshaft.ops.kernels.launch import program_factors, signature
from camshaft.ops.op import Build, HostCall, KernelVariant, NodeSpec, Op
from camshaft.tune.node_text import node_from
from camshaft.validation.cases import VariantCase, kinds_of
from camshaft.validation.run import compile_launch, refusal_of
from camshaft.validation.validate import check_sample, node_of


def compiled(case: VariantCase, node: NodeSpec) -> str | None:
    """Compiles the claim's variant for the node, tries it on one sample, and gives the digest of its code. BackendError for one
    that does not go with the node or is wrong."""
    op, variant = case.resolve()
    device = device_named(case.backend)
    refused = variant.supports(node, device) or refusal_of(variant, node, device)
    if refused is not None:
        raise BackendError(refused)
    build = variant.build(node, device)
    digest = None if isinstance(build, HostCall) else _digest(build, node, device)
    _try(op, variant, device, case.kinds)
    return digest


def _digest(build: Build, node: NodeSpec, device: Device) -> str | None:
    """Of the code and the numbers of programs of all launches."""
    whole = hashlib.sha256()
    for launch in build.launches:
        code = compile_launch(launch, signature(launch, node, build), device)
        found = code_digest(code) if isinstance(code, CpuKernel) else None
        if found is None:
            return None
        whole.update(f"{found}|{program_factors(launch)!r}|".encode())
    return whole.hexdigest()


def _try(op: Op, variant: KernelVariant, device: Device, kinds: str | None) -> None:
    """BackendError unless the variant is right on the last sample of these kinds that it supports."""
    samples = [(sample, node_of(op, sample)) for sample in op.samples()]
    fit = [sample for sample, node in samples if kinds in (None, kinds_of(node)) and not variant.supports(node, device)]
    for sample in fit[-1:]:
        checked = check_sample(op, variant, device, sample)
        if not checked.max_error <= checked.tolerance:
            raise BackendError(f"error {checked.max_error:.3g} above {checked.tolerance:.3g} in sample '{sample.name}'")


def _say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def main() -> None:
    """Compiles the candidates of stdin, one after the other."""
    _say("ready", True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        try:
            digest = compiled(VariantCase(**asked["claim"]), node_from(asked["node"]))
        except Exception as error:  # whatever a candidate raises is why it is none
            _say("failed", f"{type(error).__name__}: {error}")
        else:
            _say("digest", digest)


if __name__ == "__main__":
    main()
