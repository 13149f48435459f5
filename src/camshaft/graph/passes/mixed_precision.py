"""Mixed precision: keeps results of a forward pass in bf16 or f16, which halves the memory that gradients hold on to.

Applied before gradients are added. An op still computes in f32: its operands are widened and its result is rounded. Gradients of
rounded results have the same 16-bit dtype. Inputs, states and constants, such as weights, keep their dtype, so the gradient of
an f32 parameter is f32. Products in bf16 differ: f32 weights are rounded too, once for both passes (Micikevicius et al., 2018),
so that matrix units multiply bf16 by bf16. Gradients of weights are still summed in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f32
from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.node import Node, readers
from camshaft.graph.passes.rewrite import Rewriter
from camshaft.graph.tensor import Array, graph_of
from camshaft.ops.elementwise import cast
from camshaft.ops.matmul import matmul
from camshaft.ops.op import Attrs, Op
from camshaft.ops.spec import TensorSpec

# Ops whose results may be rounded to 16 bits with little loss. Others, such as sums, exponentials and losses, read and return
# f32, as in torch.autocast.
_PRODUCTS = "matmul batch_invariant_matmul quantized_matmul affine_matmul minifloat_matmul conv1d conv2d"
_ROWS = "rms_norm layer_norm l2_norm norm_gate norm_add residual_norm embedding gather"
_ATTENTION = "scaled_dot_product_attention rope rope_multi rope_axial_2d rope_vision_2d head_norm_rope"
_FUNCTIONS = "silu gelu gelu_erf relu sigmoid silu_multiply gelu_multiply sigmoid_multiply"
# A result of these is as precise as its operands: where it must be f32, they must be too.
_CARRIED = (
    "add subtract multiply divide negate tanh softcap dropout transpose slice concat split broadcast_to repeat copy"
)

CARRIED = frozenset(_CARRIED.split())
ROUNDED = frozenset(" ".join((_PRODUCTS, _ROWS, _ATTENTION, _FUNCTIONS)).split()) | CARRIED

Flags = tuple[bool, ...]
LEAST_SIDE = 64
# Matrix units take depths that are multiples of this; others are padded with zeros. 49152 x 254 x 576 takes 113 ms without (AMX).
DEPTH_STEP = 32


def with_mixed_precision(graph: Graph, dtype: DType) -> Graph:
    """Returns a forward pass whose f32 results have the 16-bit `dtype` where only ops of `ROUNDED` make and read them.

    Outputs, results that other ops read, and results with fewer than two axes stay f32. PlanError for a graph with gradients:
    their dtypes follow from those of the forward pass."""
    if graph.derived:
        raise PlanError("mixed precision: got a graph with gradients; wanted the forward pass alone")
    return _Rounding(graph, dtype, _rounded_results(graph)).run()


def _rounded_results(graph: Graph) -> set[Tensor]:
    """Returns the results to round."""
    read, outputs = readers(graph), {root(t) for t in graph.outputs.values()}
    found: set[Tensor] = set()
    for node in reversed(graph.nodes):
        if node.op.name not in ROUNDED:
            continue
        for made in node.outputs:
            is_matrix = made.kind == "value" and made.dtype == f32 and made.ndim > 1
            if is_matrix and made not in outputs and made in read and all(_allows(n, found) for n in read[made]):
                found.add(made)
    return found


def _allows(reader: Node, rounded: set[Tensor]) -> bool:
    """Returns whether a node may read a rounded tensor: not if it passes values on to a result that must be f32."""
    name = reader.op.name
    return name in ROUNDED and (name not in CARRIED or all(t in rounded or t.dtype != f32 for t in reader.outputs))


class _Rounding(Rewriter):
    def __init__(self, graph: Graph, dtype: DType, rounded: set[Tensor]) -> None:
        super().__init__(graph)
        self._dtype, self._rounded = dtype, rounded
        self._halves: dict[Tensor, Tensor] = {}

    def run(self) -> Graph:
        for node in self.old.nodes:
            gives = tuple(t in self._rounded for t in node.outputs)
            takes = tuple(root(t) in self._rounded for t in node.inputs)
            if self._is_product(node, takes):
                self._multiply(node, gives[0])
            elif any(gives) or any(takes):
                op = _rounded(node.op, self._dtype, takes, gives)
                with self.new.on(node.device):
                    made = self.new.apply(op, tuple(map(self.get, node.inputs)), node.attrs, node.name)
                self.map.update(zip(node.outputs, made, strict=True))
            else:
                self.carry_node(node)
        return self.end()

    def _is_product(self, node: Node, takes: Flags) -> bool:
        """Returns whether a node multiplies bf16 results by f32 weights, other than low-rank factors."""
        if self._dtype != bf16 or node.op is not matmul.OP or takes != (True, False):
            return False
        w = node.inputs[1].spec
        return w.dtype == f32 and min(w.bounds) >= LEAST_SIDE

    def _multiply(self, node: Node, gives: bool) -> None:
        x, w = map(self.get, node.inputs)
        with self.new.on(node.device):
            if w not in self._halves:
                (self._halves[w],) = self.new.apply(cast.OP, (w,), {"to": "bf16"}, f"{w.name}.bf16")
            op, attrs = _product(gives), {name: v for name, v in node.attrs.items() if name != matmul.PRECISION.name}
            made = self.new.apply(op, (x, w, self._halves[w]), attrs, node.name)
        self.map.update(zip(node.outputs, made, strict=True))


def _product(gives: bool) -> Op:
    """Returns the op that multiplies bf16 x by f32 w, whose bf16 copy is a third input. The gradient of w is f32."""
    more = {"to": "bf16"} if gives else {}

    def infer(specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
        return matmul.OP.outputs((specs[0], specs[2]), {**attrs, **more})

    def reference(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        (y,) = matmul.OP.reference((inputs[0], inputs[2]), attrs)
        return (np.asarray(y).astype(bf16.numpy) if gives else y,)

    def decompose(f: Any, x: Tensor, w: Tensor, half: Tensor, **attrs: Any) -> Any:
        return f.matmul(x, half, **attrs, **more)

    def vjp(f: Any, dy: Any, y: Any, x: Any, w: Any, half: Any, transpose_b: bool = False) -> tuple[Any, ...]:
        rounded, dtypes = dy if dy.dtype == bf16 else f.cast(dy, to="bf16"), (x.dtype, w.dtype)
        of_x, _ = matmul.gradients(f, rounded, y, x, half, dtypes, transpose_b)

        def of_w() -> Any:
            rows = x.shape[0] if x.ndim == 2 and isinstance(x.shape[0], int) else 0
            more = ((0, -rows % DEPTH_STEP), (0, 0))
            given = (f.pad(t, pad_width=more) for t in (rounded, x)) if rows % DEPTH_STEP else (rounded, x)
            of_dy, of_rows = given
            return matmul.gradients(f, of_dy, y, of_rows, half, dtypes, transpose_b)[1]()

        return of_x, of_w, None

    formula = "matmul of x and w, both in bf16"
    return Op("matmul in bf16", formula, infer, reference, tuple, tuple, {}, decompose=decompose, vjp=vjp)


def _rounded(op: Op, dtype: DType, takes: Flags, gives: Flags) -> Op:
    """Returns the op with some operands and results in another dtype, computed in f32. Its gradient comes from this
    decomposition, which widens the operands again rather than keeping them in f32."""

    def infer(specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
        wide = tuple(TensorSpec(s.shape, f32) if is_rounded else s for s, is_rounded in zip(specs, takes, strict=True))
        made = zip(op.outputs(wide, attrs), gives, strict=True)
        return tuple(TensorSpec(s.shape, dtype) if is_rounded else s for s, is_rounded in made)

    def reference(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        wide = [x.astype(np.float32) if is_rounded else x for x, is_rounded in zip(inputs, takes, strict=True)]
        made = zip(op.reference(wide, attrs), gives, strict=True)
        return tuple(np.asarray(y).astype(dtype.numpy) if is_rounded else y for y, is_rounded in made)

    def decompose(f: Any, *tensors: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
        wide = [f.cast(t, to="f32") if is_rounded else t for t, is_rounded in zip(tensors, takes, strict=True)]
        made = graph_of(tensors[0]).apply(op, wide, attrs)
        return tuple(f.cast(t, to=dtype.name) if is_rounded else t for t, is_rounded in zip(made, gives, strict=True))

    name, formula = f"{op.name} in {dtype.name}", f"{op.name}, rounded to {dtype.name}"
    return Op(name, formula, infer, reference, tuple, tuple, {}, decompose=decompose)
