"""Convert nodes to JSON and back, to pass them to a child process."""

from __future__ import annotations

from typing import Any

from camshaft.dtypes import DType, as_dtype
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.op import NodeSpec
from camshaft.ops.quantize import quantize_activations
from camshaft.ops.quantized.packing import INTERLEAVED
from camshaft.ops.spec import ROWS, TensorSpec

LAYOUTS = {layout.name: layout for layout in (ROWS, INTERLEAVED, *quantize_activations.LAYOUTS.values())}


def node_json(node: NodeSpec) -> dict[str, Any]:
    """The node as JSON. Raises BackendError for an unsupported layout or attribute."""
    return {
        "inputs": [_spec_json(spec) for spec in node.inputs],
        "outputs": [_spec_json(spec) for spec in node.outputs],
        "attrs": {name: _value_json(value) for name, value in node.attrs.items()},
    }


def node_from(text: dict[str, Any]) -> NodeSpec:
    """The node from `node_json`'s result. Extents with equal name and bound are equal."""
    inputs, outputs = (tuple(_spec(row) for row in text[name]) for name in ("inputs", "outputs"))
    return NodeSpec(inputs, outputs, {name: _value(value) for name, value in text["attrs"].items()})


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
