"""Products on CPUs' matrix units: on AMX as NumPy plays it; test_aarch64.py runs NEON's under qemu."""

from __future__ import annotations

from collections import Counter

import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.samples import Case, sample
from camshaft.validation.validate import check_sample, node_of
from tests.support.needs import require_level
from tests.support.played_amx import device
from tests.support.quick import quick_of

OP = ops.get("quantized_matmul")
GROUNDS = 2  # a sample runs on two, with kernels made for each
UNITS = next(v for v in OP.variants if v.name == "matrix_unit")


def run(op, variant, sample) -> Counter[str]:
    """How often each instruction was played in one run; the sample agrees with the op's reference."""
    require_level("avx512-bf16")  # for the rest of such a kernel
    machine = device()
    checked = check_sample(op, variant, machine, sample)
    assert checked.max_error <= checked.tolerance
    assert not [line for amx in machine.players for line in amx.failed]
    played = sum((Counter(amx.counts) for amx in machine.players), Counter())
    assert not any(n % GROUNDS for n in played.values())
    return Counter({name: n // GROUNDS for name, n in played.items()})


@pytest.mark.parametrize("name", quick_of(PACKED_FORMATS, ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL"]))
def test_every_block_format_is_multiplied_by_amx(name) -> None:
    sample = next(s for s in OP.samples() if s.name.startswith(f"{name} 29(7)") and s.name.endswith("q8"))
    assert run(OP, UNITS, sample)["tdpbsud.internal"] > 0


def test_two_pieces_of_tokens_share_the_weights() -> None:
    """45 tokens are a tile of 32 and one that starts at 13; 33 rows are three tiles of 16."""
    counts = run(OP, UNITS, sample(Case("Q4_0", 45, 45, 33, 64, "q8")))
    blocks, tiles = 64 // 32, 2 * 3
    assert counts["tdpbsud.internal"] == 2 * blocks * tiles
    assert counts["tileloadd64.internal"] == 3 * blocks * tiles


def test_who_has_no_unit_is_told() -> None:
    samples = {s.name: s for s in OP.samples()}
    node = node_of(OP, samples["Q4_0 29(7)x192x17 q8"])
    assert UNITS.supports(node, device()) is None
    few = node_of(OP, samples["Q4_0 13(13)x128x16 q8"])
    assert UNITS.supports(few, device()) == "a tile of 16 tokens for 13"
    floats = node_of(OP, samples["Q4_0 29(7)x192x17 f32"])
    assert UNITS.supports(floats, device()) == "takes quantized activations"
    assert "AMX" in (UNITS.supports(node, cpu_device("scalar")) or "")


MATMUL = ops.get("matmul")
BF16 = next(v for v in MATMUL.variants if v.name == "matrix_unit")


WHOLE = [s for s in MATMUL.samples() if s.name.split()[1:2] and s.name.split()[1] in ("32x64x32", "37x44x33", "deep")]


@pytest.mark.parametrize("sample", WHOLE, ids=lambda s: s.name)
def test_bf16_is_multiplied_by_amx(sample) -> None:
    (rows, depth), columns = sample.inputs[0].shape, sample.inputs[1].shape[0 if sample.attrs else 1]
    counts = run(MATMUL, BF16, sample)
    height = 16 if depth % 32 else 32
    pieces = height // 16 * 2 * -(-rows // height) * -(-columns // 32)
    assert counts["tdpbf16ps.internal"] == pieces * -(-depth // 32)


def test_what_the_unit_does_not_take_is_told() -> None:
    samples = {s.name: s for s in MATMUL.samples()}
    assert BF16.supports(node_of(MATMUL, samples["bf16 32x64x32"]), device()) is None
    assert BF16.supports(node_of(MATMUL, samples["()33x34x35()"]), device()) == "takes bf16 by bf16"
    assert "AMX" in (BF16.supports(node_of(MATMUL, samples["bf16 32x64x32"]), cpu_device("scalar")) or "")
