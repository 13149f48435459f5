"""The primitive ops, and how others decompose into them. graph/passes/decompose.py expands a graph.

An op of the table is primitive or has `decompose`, never both. Where inputs and outputs are the same, a decomposition meets the
op's own tolerance with each of its results rounded to its dtype. docs/adr/0019-primitive-ops.md has the reasons for each.
"""

from __future__ import annotations

from camshaft import ops
from camshaft.ops.op import Op

_TABLE = {
    "arithmetic": "add subtract multiply divide floor_divide remainder power minimum maximum",
    "functions": "exp log sqrt tanh erf sin cos floor round",
    "comparisons": "equal less isnan where",
    "reductions": "sum prod max min argmax",
    "scans": "cumsum cumprod cummax",
    "order": "argsort sort top_k searchsorted",
    "products": "matmul fft_rows",
    "elements moved": "copy cast transpose slice concat gather broadcast_to scatter_add put",
    "quantization": "quantize_activations dequantize unpack_codes pack_codes",
    "states in place": "kv_cache_update kv_cache_quantize adam_update assign",
    "states of slots": "conv_slots short_conv_slots gated_delta_slots dplr_slots rwkv6_slots selective_scan_slots "
    "ssd_slots",
    "random draws": "sample softmax_sample uniform",
    "texts": "dry",
    "places": "slot_rows",
    "factors": "cholesky",
}
PRIMITIVES = frozenset(name for names in _TABLE.values() for name in names.split())


def is_primitive(op: Op) -> bool:
    """Whether an op is one of the primitives, and not another op of that name."""
    return op.name in PRIMITIVES and ops.get(op.name) is op
