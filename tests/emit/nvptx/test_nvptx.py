"""PTX of the ops' kernels: read for what it must hold, and assembled for three generations of GPUs."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from camshaft.backends.cuda.kernel import ptx
from camshaft.dtypes import f32, i8, i32
from camshaft.emit.nvptx.module import MOST_SHARED_NBYTES, emit, simt_form
from camshaft.emit.target import GPU_TARGETS, GpuTarget
from camshaft.errors import BackendError
from camshaft.lang import ir
from camshaft.lang import kernel as traced
from tests.support.compilers.op_kernels import op_kernels
from tests.support.devices.ptxas import assemble, find_tool, joined, ptx_of
from tests.support.needs import require
from tests.support.quick import full
from tests.support.samples import has_turn

LANES = 128
LIMITS = {"workgroup_memory": MOST_SHARED_NBYTES, "lanes": 1024}
TARGET = SimpleNamespace(backend="cuda", name="cuda", lanes=LANES, features=frozenset(), limits=LIMITS, space="cuda")
# Kernels that keep more than the registers hold, by processor, and why.
_MASKED = "masked_sample_one_masked_row_per_program_one_masked_row_per_program"
_SEVERAL = "softmax_sample_one_row_per_program_several_per_row"
# 8 to 32 bytes with heads of 16, of 56 to 80 registers: ptxas's choice.
_UNITS = "attention_unit_threads_one_tile_per_program"
# 8 bytes with codes of IQ2_XS, of 64 registers.
_CODES = "quantized_matmul_tile_product_tile"
SPILLS = {
    # 68 bytes and less; a row is sampled once per token
    "sm_80": {"sample_one_row_per_program_one_row_per_program", _MASKED, _SEVERAL, _UNITS},
    "sm_90a": {_SEVERAL, _UNITS, _CODES},
    "sm_100": {_SEVERAL, _UNITS},
}


@traced
def product_and_sum(k, x, y, out):
    for c in k.lanes(100):
        out[c] = k.rounded(x[c] * y[c]) + y[c]


@traced
def least(k, x, y, out):
    for c in k.lanes(100):
        out[c] = k.minimum(x[c], y[c])


def _text_of(kernel, n: int = 100) -> str:
    """PTX of a kernel of arrays x, y and out of n elements."""
    params = [ir.ArrayParam(name, f32, (n,), name == "out") for name in ("x", "y", "out")]
    return ptx(emit(simt_form(kernel.trace(params), LANES), GPU_TARGETS["sm_80"], "made"), GPU_TARGETS["sm_80"])


SOME, BOTH = (-1,), (0, -1)


@pytest.fixture(scope="module", params=[pytest.param(SOME, id="some"), full(BOTH, id="both")])
def kernels(request):
    """Symbol -> SIMT form, of every variant's last sample, of a third of the rows; with `-m full` of all rows, and the first
    sample too, but for rows, which share a frame."""
    found, some = {}, request.param == SOME
    for item in op_kernels(TARGET, request.param, (-1,), lambda op: not some or has_turn(op, "ptx")):
        found[f"{item.symbol}_{len(found)}"] = simt_form(item.kernel, item.lanes or LANES)
    return found


@pytest.fixture(scope="module")
def texts(kernels):
    """Symbol -> PTX for the oldest GPU."""
    return {
        name: ptx_of(emit(kernel, GPU_TARGETS["sm_80"], name), GPU_TARGETS["sm_80"]) for name, kernel in kernels.items()
    }


def test_every_access_knows_its_memory(texts) -> None:
    # a generic access looks up at run time whether it means workgroup memory
    generic = [name for name, text in texts.items() if re.search(r"\b(ld|st)(\.v\d)?\.[bfsu]\d", text)]
    assert not generic


def test_workgroup_size_is_fixed(kernels, texts) -> None:
    for name, kernel in kernels.items():
        assert f".reqntid {kernel.lanes}" in texts[name], name


def test_dot_products_of_bytes_and_conversions_are_instructions(texts) -> None:
    together = "\n".join(texts.values())
    for instruction in ("dp4a.u32.s32", "cvt.f32.f16", "fma.rn.f32", "shfl.sync.idx", "bar.sync"):
        assert instruction in together, instruction


@pytest.mark.parametrize(("n", "waits"), [(1, False), (16, False), (32, True)])
def test_lanes_of_a_warp_exchange_values_without_a_barrier(n, waits) -> None:
    @traced
    def butterfly(k, x, y, out):
        out[k.lane()] = k.shuffle_xor(x[k.lane()], n) + y[k.lane()]

    text = _text_of(butterfly, LANES)
    assert ("bar" in text) is waits
    assert ("shfl.sync" in text) is not waits


@traced
def low_bytes(k, x, y, out):
    for c in k.lanes(100):
        out[c] = k.bitcast(k.fma(x[c], y[c], 12582912.0), i32)


def test_no_narrow_store_has_a_register_that_a_float_instruction_wrote(texts) -> None:
    # ptxas 13.0 converts such a float to an integer: codes of 8 bits were 255 on an H200
    params = [ir.ArrayParam(name, dtype, (100,), dtype == i8) for name, dtype in (("x", f32), ("y", f32), ("out", i8))]
    form = simt_form(low_bytes.trace(params), LANES)
    made = ptx(emit(form, GPU_TARGETS["sm_80"], "made"), GPU_TARGETS["sm_80"])
    assert "fma.rn.f32" in made
    for name, text in [("made", made), *texts.items()]:
        floats = set(re.findall(r"\.f32 \t(%r\d+),", text))
        stored = set(re.findall(r"\bst\.\w+\.[bsu](?:8|16) \t\[[^\]]*\], (%r\d+);", text))
        assert not floats & stored, name


def test_a_minimum_that_keeps_nan_is_an_instruction() -> None:
    assert "min.NaN.f32" in _text_of(least)


def test_a_rounded_product_names_the_rounding_after_it() -> None:
    # ptxas fuses mul.f32 with add.f32, never with add.rn.f32
    text = _text_of(product_and_sum)
    assert re.search(
        r"mul\.f32 \t(%r\d+),.*?add\.rn\.f32 \t(%r\d+), \1,.*?add\.f32 \t%r\d+, (%r\d+, )?\2", text, re.DOTALL
    )
    assert "fma" not in text


# Every kernel has those of the quick run with it; all generations but one are behind `soak`.
@pytest.mark.parametrize(
    ("kernels", "processor"),
    [
        pytest.param(SOME, "sm_80", id="some-sm_80"),
        full(BOTH, "sm_90a", id="both-sm_90a"),
        *(
            pytest.param(BOTH, processor, id=f"both-{processor}", marks=pytest.mark.soak)
            for processor in sorted(GPU_TARGETS.keys() - {"sm_90a"})
        ),
    ],
    indirect=["kernels"],
)
def test_ptxas_takes_every_kernel(kernels, texts, processor) -> None:
    require(find_tool("ptxas"), "ptxas is not here: install the wheel nvidia-cuda-nvcc")
    if processor != "sm_80":
        target = GPU_TARGETS[processor]
        texts = {name: ptx_of(emit(kernel, target, name), target) for name, kernel in kernels.items()}
    report = assemble(joined(list(texts.values())), processor)
    assert report.keys() == kernels.keys()
    spilled = {name.rpartition("_")[0] for name, found in report.items() if found.spill_nbytes}
    there = {name.rpartition("_")[0] for name in kernels}
    assert spilled <= SPILLS.get(processor, set()) & there
    assert max(found.registers for found in report.values()) <= 255


# What a step of training has beside the kernels of its forward pass.
GRADIENTS = (
    "quantized_matmul_transposed",
    "attention_gradient",
    "cross_entropy_gradient",
    "adam_update",
    "assign",
    "dropout",
    "gated_delta_rule_gradient",
    "rwkv7_gradient",
)


@pytest.mark.full
def test_ptxas_takes_the_kernels_of_training() -> None:
    require(find_tool("ptxas"), "ptxas is not here: install the wheel nvidia-cuda-nvcc")
    target, texts = GPU_TARGETS["sm_80"], {}
    for item in op_kernels(TARGET, SOME, takes=lambda op: op.name in GRADIENTS):
        symbol = f"{item.symbol}_{len(texts)}"
        texts[symbol] = ptx_of(emit(simt_form(item.kernel, item.lanes or LANES), target, symbol), target)
    assert all(any(name.startswith(op) for name in texts) for op in GRADIENTS)
    report = assemble(joined(list(texts.values())), "sm_80")
    assert report.keys() == texts.keys()
    assert not any(found.spill_nbytes for found in report.values())


def test_llvm_s_words_are_passed_on() -> None:
    with pytest.raises(BackendError, match="LLVM refused a module"):
        ptx("define void @k() { nonsense }", GpuTarget())
