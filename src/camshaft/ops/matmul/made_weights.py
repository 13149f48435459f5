"""Products by weights that are f32 numbers only once a launch made them in scratch: a variant for each kernel of matmul.

Each is validated, measured and chosen by itself, as any other variant is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.blocked import BLOCKED
from camshaft.ops.matmul.lanes import LANES
from camshaft.ops.matmul.tile import TILE
from camshaft.ops.matmul.tiled import TILED

KERNELS = (LANES, TILED, BLOCKED, TILE)
Supports = Callable[[ops.NodeSpec, ops.Target], str | None]


def variants(
    prefix: str,
    product: Callable[[ops.NodeSpec], ops.NodeSpec],
    unpack: Callable[[ops.NodeSpec, ops.Target], ops.Launch],
    supports: Supports,
    ns_per_weight: float,
    kernels: Iterable[ops.KernelVariant] = KERNELS,
) -> tuple[ops.KernelVariant, ...]:
    """Returns a variant `prefix_KERNEL` for each kernel of matmul.

    `product` is the node of matmul: x, input 0 of the node, by f32 weights. `unpack` is the launch that writes these weights to
    scratch tensor 0, `ns_per_weight` its time for one. `supports` may refuse the node before the kernel is asked.
    """
    return tuple(_variant(f"{prefix}_{v.name}", v, product, unpack, supports, ns_per_weight) for v in kernels)


def _variant(
    name: str,
    kernel: ops.KernelVariant,
    product: Callable[[ops.NodeSpec], ops.NodeSpec],
    unpack: Callable[[ops.NodeSpec, ops.Target], ops.Launch],
    supports: Supports,
    ns_per_weight: float,
) -> ops.KernelVariant:
    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        plain = product(node)
        made = kernel.build(plain, target)
        assert isinstance(made, ops.Build)
        launches = [replace(launch, arrays=tuple(map(_moved, launch.arrays))) for launch in made.launches]
        return ops.Build((unpack(node, target), *launches), (plain.inputs[1], *made.scratch))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        plain = product(node)
        n, k = plain.inputs[1].bounds
        return kernel.cost(plain, target) + ns_per_weight * n * k

    def refusal(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return supports(node, target) or kernel.supports(product(node), target)

    return ops.KernelVariant(name, kernel.backends, build, refusal, cost)


def _moved(operand: ops.Operand) -> ops.Operand:
    """An operand of the product as one of the node: the weights are its first scratch tensor."""
    if operand.kind == "scratch":
        return replace(operand, index=operand.index + 1)
    return replace(operand, kind="scratch", index=0) if (operand.kind, operand.index) == ("input", 1) else operand
