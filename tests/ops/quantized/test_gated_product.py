"""gated_product: which variant a CPU takes by its features, and that on AMX it is near to two products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import CpuDevice
from camshaft.dtypes import f32
from camshaft.emit.target import LEVELS, native_lanes
from camshaft.ops.op import KernelVariant, NodeSpec, Op
from camshaft.ops.quantize.q8_blocks import TILES
from camshaft.ops.quantize.quantize_activations import FORMS
from camshaft.ops.quantized.samples import Case
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from camshaft.validation.validate import error_between
from tests.support.devices.played_amx import device
from tests.support.needs import require_level
from tests.support.quick import quick_of

OP, PRODUCT, SILU = (ops.get(name) for name in ("gated_product", "quantized_matmul", "silu_multiply_q8"))


def machine(level: str) -> CpuDevice:
    """A CPU of that level, to ask and not to run."""
    row = LEVELS[level]
    return CpuDevice("cpu", "simd", native_lanes(row.features), row.features, row.architecture)


def best(op: Op, node: NodeSpec, target: ops.Target) -> KernelVariant:
    able = [v for v in op.variants if target.backend in v.backends and v.supports(node, target) is None]
    return min(able, key=lambda variant: variant.cost(node, target))


def specs_of(case: Case) -> tuple[TensorSpec, ...]:
    return (*case.specs, case.specs[1])


@pytest.mark.parametrize("level", LEVELS)
def test_many_tokens_are_one_kernel_where_no_unit_multiplies_bytes(level: str) -> None:
    target, attrs, chosen = machine(level), {"sums": ((32, 0),)}, []
    for tokens in (1, 64):
        specs = specs_of(Case("Q4_1", tokens, tokens, 1536, 576, "q8", 0))
        chosen.append(best(OP, NodeSpec(specs, OP.infer(specs, attrs), attrs), target).name)
    has_unit = level in ("neon-i8mm", "neon-bf16")
    one, *many = chosen
    assert one.startswith("unfused_")
    own = {"avx2": "int16_sums", "avx-vnni": "vnni_sums"}
    assert many == ["unfused_matrix_unit" if has_unit else own.get(level, "tile")]


def test_products_apart_are_by_each_variant_that_the_product_has() -> None:
    apart = {v.name.removeprefix("unfused_"): v for v in OP.variants if v.name.startswith("unfused_")}
    assert apart.keys() == {v.name for v in PRODUCT.variants} - {"unpacked", "multiples"}
    for product in PRODUCT.variants:
        for tokens in (1, 64) if product.name in apart else ():
            case, target = Case("Q4_1", tokens, tokens, 1536, 576, "q8", 0), machine("amx")
            spec, attrs = NodeSpec(case.specs, PRODUCT.infer(case.specs, {}), {}), {"sums": ((32, 0),)}
            node = NodeSpec(specs_of(case), OP.infer(specs_of(case), attrs), attrs)
            variant = apart[product.name]
            assert variant.backends == product.backends
            assert variant.supports(node, target) == product.supports(spec, target)


@pytest.mark.parametrize("level", ["amx", "avx512-bf16"])
def test_bf16_in_tiles_is_one_kernel_with_tiles(level: str) -> None:
    specs, attrs = specs_of(Case("Q4_1", 64, 64, 1536, 576, "tiles", 0)), {"sums": (TILES,)}
    node = NodeSpec(specs, OP.infer(specs, attrs), attrs)
    assert best(OP, node, machine(level)).name == ("unpacked_tiles" if level == "amx" else "unfused_row")


@pytest.mark.parametrize("name", quick_of(["Q4_1", "Q8_0", "Q6_K"], ["Q6_K"]))
def test_on_amx_one_node_is_near_to_two_products(name: str) -> None:
    require_level("avx512-bf16")  # for what is not played
    gate, up = (Case(name, 29, 29, 96, 512, "tiles", seed) for seed in (1, 2))
    given, attrs = (gate.x, gate.packed(), up.packed()), {"sums": (TILES,)}
    (together,) = computed(OP, specs_of(gate), given, attrs)
    products = [computed(PRODUCT, gate.specs, (gate.x, weights), {})[0] for weights in given[1:]]
    y = TensorSpec(products[0].shape, f32)
    (want,) = computed(SILU, (y, y), products, attrs | {"floats": False})
    layout = TensorSpec(y.shape, f32, FORMS[TILES])
    numbers = [layout.layout.numbers(bytes_, layout) for bytes_ in (together, want)]  # not the rows past the last
    assert error_between(*numbers, 1e-5) < 1e-5  # a step of bf16 here and there


def computed(op: Op, specs: tuple[TensorSpec, ...], given: Sequence[np.ndarray], attrs: ops.Attrs) -> list[np.ndarray]:
    """The op's outputs on a CPU with AMX, by the variant that its cost model would choose there."""
    target, node = device(), NodeSpec(specs, op.infer(specs, attrs), attrs)
    outputs = run_variant(best(op, node, target), node, target, given)
    assert not [line for amx in target.players for line in amx.failed]
    played = sum(amx.counts.get("tdpbf16ps.internal", 0) for amx in target.players)
    assert (played > 0) == (op is not SILU)
    return list(outputs[: len(node.outputs)])
