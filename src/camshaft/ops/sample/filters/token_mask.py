"""The kernel of token_mask: a token stays where its bit of the mask is 1."""

from __future__ import annotations

from camshaft.dtypes import u32
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels import blocks
from camshaft.ops.sample.kept import LOWEST, WORD


@kernel
def mask_block(k: Tracer, logits: Array, mask: Array, out: Array, *, columns: int, block: int) -> None:
    # y[r, c] = bit c % 32 of mask[r, c // 32] ? logits[r, c] : the lowest number
    row, first = k.program(0), k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        bit = (k.gather(mask, row, c // WORD) >> (c % WORD).to(u32)) & 1
        out[row, c] = k.select(bit == 1, logits[row, c], LOWEST)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    columns = logits.bounds[1]
    block = blocks.even_block(columns)
    grid = ops.Cells(logits.shape[0]), ops.Cells(columns, per=block)
    arrays = ops.read(0), ops.read(1), ops.write(0)
    return ops.Build((ops.Launch(mask_block, arrays, grid, {"columns": columns, "block": block}),))


VARIANT = ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build)
