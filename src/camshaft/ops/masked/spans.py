"""The variant of attention with options for any head size and lane count: spans of keys per program, then a merge."""

from __future__ import annotations

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import without_options
from camshaft.ops.masked.kernels import merge_spans, span_per_program
from camshaft.ops.masked.options import Options
from camshaft.ops.spec import TensorSpec, bound

# Fewer tokens split their keys among programs, so that every worker has some.
FEW_TOKENS, KEYS, MOST_SPANS = 16, 256, 64
RATE = 4.0  # multiply-adds per ns of one core of a Zen 4 server, about


def spans_of(tokens: int, span: int) -> tuple[int, int]:
    """Returns the keys of one program and the number of programs for a span of keys."""
    whole = -(-span // BLOCK_TOKENS) * BLOCK_TOKENS
    keys = whole if tokens > FEW_TOKENS else max(KEYS, -(-whole // MOST_SPANS // BLOCK_TOKENS) * BLOCK_TOKENS)
    return keys, -(-whole // keys)


def scratch_of(node: ops.NodeSpec, heads: int, v_dim: int, spans: int) -> tuple[TensorSpec, TensorSpec]:
    """Returns the partial results of spans, and their largest scores and sums."""
    rows = node.inputs[0].bounds[0], heads, spans
    return TensorSpec((*rows, v_dim), f32), TensorSpec((*rows, 2), f32)


def sinks_of(node: ops.NodeSpec, options: Options) -> list[ops.Operand]:
    """Returns the operand of sinks, if there are any."""
    first = len(node.inputs) - len(options.extras)
    return [ops.read(first + i) for i, name in enumerate(options.extras) if name == "sinks"]


def length_of(node: ops.NodeSpec, table: int) -> int:
    """Returns the largest number of keys that a token may see, by the block table (input number `table`), and by `length`
    where it limits positions."""
    capacity = node.inputs[table].bounds[1] * BLOCK_TOKENS
    options = Options.of("attention", node.attrs)
    return capacity if options.ring or options.has("lengths") else min(bound(node.attrs["length"]), capacity)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    attrs, tokens = node.attrs, node.inputs[0].shape[0]
    options, heads = Options.of("attention", attrs), attrs["heads"]
    keys, spans = spans_of(bound(tokens), options.span(length_of(node, 5)))
    v_dim = node.outputs[0].bounds[1] // heads
    first = ops.Launch(
        span_per_program,
        (*(ops.read(i) for i in range(len(node.inputs))), ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tokens), ops.Cells(heads), ops.Cells(spans)),
        {"scale": attrs["scale"], "heads": heads, "kv_heads": attrs["kv_heads"], "keys": keys, **options.constants()},
    )
    sinks = sinks_of(node, options)
    second = ops.Launch(
        merge_spans,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), *sinks, *(ops.write(i) for i in range(len(node.outputs)))),
        (ops.Cells(tokens), ops.Cells(heads)),
        {"sinks": bool(sinks), "lse": options.lse},
    )
    return ops.Build((first, second), scratch_of(node, heads, v_dim, spans))


def pairs_of(node: ops.NodeSpec, table: int = 5) -> float:
    """Returns the products q K of a node per head at the bounds: tokens times keys that a token may see."""
    options, tokens = Options.of("attention", node.attrs), node.inputs[0].bounds[0]
    span = options.span(length_of(node, table))
    masked = min(tokens, span) / 2 if options.causal else 0.0
    return tokens * max(1.0, span - masked)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    width = node.inputs[0].bounds[1] + node.outputs[0].bounds[1]
    return pairs_of(node) * width / RATE


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns that other variants take plain attention, or None."""
    return "takes attention with options; others are faster without" if without_options(node) is None else None


VARIANT = ops.KernelVariant("span_per_program", ops.EVERYWHERE, _build, _supports, _cost)
