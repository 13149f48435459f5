"""Rounds what products of many rows multiply (mode 'q8').

Beside bf16 weights activations become bf16, once per tensor, for all products that read it. A product of two bf16 is exact in
f32, and instructions that multiply pairs of them do twice the work of f32's. llama.cpp rounds the same.

Beside f16 weights it rounds to f16, three bits finer, which no pair of bf16 holds. Those products become rounded_matmul: a kernel
may round both operands to whole numbers of 16 bits, which loses less, and multiply pairs of those (ops/matmul/rounded_matmul.py).
"""

from __future__ import annotations

from camshaft import ops
from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.graph.graph import Graph, Node, Rewriter, Tensor, readers, root
from camshaft.ops.spec import bound

# Up to here a product waits for its weights, and f32 activations cost nothing: single tokens, sequences together, logits.
FEW_ROWS = 64
# Ops that give their first result rounded themselves (ops/kernels/output_dtype.py).
MAKERS = ("rms_norm", "residual_norm", "silu_multiply")


def round_activations(graph: Graph) -> Graph:
    """For more than FEW_ROWS rows, matmul(x, w) becomes rounded_matmul(x, w) for w f16 [n, k], matmul(x in bf16, w) for w bf16:
    of what makes x, where such products alone read it, else of one cast per x and device."""
    rewriter, made = Rewriter(graph), dict[tuple[Tensor, str | None], Tensor]()
    rounded = _rounded_alone(graph)

    def place(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if node in rounded:
            return rewriter.new.apply(node.op, inputs, {**node.attrs, "to": "bf16"}, node.name)
        if _is_linear(node, f16) and "to" not in node.attrs:
            return rewriter.new.apply(ops.get("rounded_matmul"), inputs, node.attrs, node.name)
        if not _is_linear(node):
            return None
        x, key = inputs[0], (inputs[0], node.device)
        if x.spec.dtype != bf16 and key not in made:
            (made[key],) = rewriter.new.apply(ops.get("cast"), (x,), {"to": "bf16"}, f"{x.name}.bf16")
        return rewriter.new.apply(node.op, (made.get(key, x), inputs[1]), node.attrs, node.name)

    return rewriter.run(place)


def _rounded_alone(graph: Graph) -> set[Node]:
    """The nodes that make what products of this pass on their device alone read."""
    reading, results = readers(graph), {root(t) for t in graph.outputs.values()}
    found = set()
    for node in graph.nodes:
        if node.op.name in MAKERS:
            y = node.outputs[0]
            read = reading.get(y, [])
            alone = all(_is_linear(n) and n.inputs[0] is y and n.device == node.device for n in read)
            if read and alone and y not in results:
                found.add(node)
    return found


def _is_linear(node: Node, dtype: DType = bf16) -> bool:
    """Whether a node multiplies many rows of f32 by weights of a dtype as a file has them."""
    if node.op.name != "matmul" or not node.attrs.get("transpose_b", False):
        return False
    x, w = node.inputs[0].spec, node.inputs[1].spec
    return x.dtype == f32 and w.dtype == dtype and len(x.shape) == 2 and bound(x.shape[0]) > FEW_ROWS
