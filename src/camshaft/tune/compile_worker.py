"""Child process that compiles candidates: `python -m camshaft.tune.compile_worker` reads one candidate per line from stdin.

It writes JSON lines: {"ready": true} once, then per candidate {"digest": SHA-256 of its machine code, or null if the backend has
none} or {"failed": reason}. It may crash or hang; the parent process (compilation.py) detects both.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from camshaft.backends.cpu.device import CpuKernel, code_digest
from camshaft.backends.device import Device
from camshaft.backends.registry import device as device_named
from camshaft.dtypes import DType, as_dtype
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.kernels.launch import program_factors, signature
from camshaft.ops.op import Build, HostCall, KernelVariant, NodeSpec, Op
from camshaft.ops.quantize import quantize_activations
from camshaft.ops.quantized.packed.packing import INTERLEAVED
from camshaft.ops.spec import ROWS, TensorSpec
from camshaft.store.files import digest_of
from camshaft.validation.cases import VariantCase, kinds_of
from camshaft.validation.run import compile_launch, refusal_of
from camshaft.validation.validate import check_sample, node_of

LAYOUTS = {layout.name: layout for layout in (ROWS, INTERLEAVED, *quantize_activations.FORMS.values())}


def compiled(case: VariantCase, node: NodeSpec) -> str | None:
    """Compile the case's variant for the node, check it on one sample, and return the digest of its code. Raises BackendError
    if it does not support the node or is wrong."""
    op, variant = case.resolve()
    device = device_named(case.backend)
    refused = variant.supports(node, device) or refusal_of(variant, node, device)
    if refused is not None:
        raise BackendError(refused)
    build = variant.build(node, device)
    digest = None if isinstance(build, HostCall) else _digest(build, node, device)
    _check(op, variant, device, case.kinds)
    return digest


def _digest(build: Build, node: NodeSpec, device: Device) -> str | None:
    """Digest of the code and program counts of all launches; None if a backend has no digest."""
    parts = []
    for launch in build.launches:
        code = compile_launch(launch, signature(launch, node, build), device)
        part = code_digest(code) if isinstance(code, CpuKernel) else None
        if part is None:
            return None
        parts.append((part, repr(program_factors(launch))))
    return digest_of(parts)


def _check(op: Op, variant: KernelVariant, device: Device, kinds: str | None) -> None:
    """Raise BackendError unless the variant is right on the last sample of these kinds that it supports."""
    samples = [(sample, node_of(op, sample)) for sample in op.samples()]
    fit = [sample for sample, node in samples if kinds in (None, kinds_of(node)) and not variant.supports(node, device)]
    for sample in fit[-1:]:
        checked = check_sample(op, variant, device, sample)
        if not checked.max_error <= checked.tolerance:
            raise BackendError(f"error {checked.max_error:.3g} above {checked.tolerance:.3g} in sample '{sample.name}'")


def _send(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def main() -> None:
    """Compile the candidates from stdin one by one."""
    _send("ready", True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            digest = compiled(VariantCase(**request["case"]), node_from(request["node"]))
        except Exception as error:  # whatever a candidate raises is its result
            _send("failed", f"{type(error).__name__}: {error}")
        else:
            _send("digest", digest)


def node_json(node: NodeSpec) -> dict[str, Any]:
    """The node as JSON. Raises BackendError for an unsupported layout or attribute."""
    return {
        "inputs": [_spec_json(spec) for spec in node.inputs],
        "outputs": [_spec_json(spec) for spec in node.outputs],
        "attrs": {name: _value_json(value) for name, value in node.attrs.items()},
        "packed": node.packed,
    }


def node_from(text: dict[str, Any]) -> NodeSpec:
    """The node from `node_json`'s result. Extents with equal name and bound are equal."""
    inputs, outputs = (tuple(_spec(row) for row in text[name]) for name in ("inputs", "outputs"))
    attrs = {name: _value(value) for name, value in text["attrs"].items()}
    return NodeSpec(inputs, outputs, attrs, tuple(text["packed"]))


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    if LAYOUTS.get(spec.layout.name) is not spec.layout:
        raise BackendError(f"{spec}: tuning does not support its layout; wanted one of {', '.join(LAYOUTS)}")
    return {
        "shape": [_value_json(d) for d in spec.shape],
        "dtype": spec.dtype.name,
        "block": not isinstance(spec.dtype, DType),
        "layout": spec.layout.name,
    }


def _spec(row: dict[str, Any]) -> TensorSpec:
    dtype = BLOCK_FORMATS[row["dtype"]] if row["block"] else as_dtype(row["dtype"])
    return TensorSpec(tuple(_value(d) for d in row["shape"]), dtype, LAYOUTS[row["layout"]])


def _value_json(value: object) -> Any:
    if isinstance(value, Extent):
        return {"extent": value.name, "bound": value.bound}
    if isinstance(value, tuple):
        return [_value_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BackendError(f"tuning does not support the attribute {value!r} of type {type(value).__name__}")


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return Extent(value["extent"], value["bound"])
    return tuple(_value(item) for item in value) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
