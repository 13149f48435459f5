"""Every op and variant on AArch64, with NEON's dot products and without, under qemu; what the inner loops are made of."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from camshaft import ops
from camshaft.backends.cpu.features import features_of
from camshaft.validation.validate import node_of
from tests.support.compilers.aarch64 import CPUS, EMULATOR, Executable, missing
from tests.support.needs import require
from tests.support.quick import quick_of
from tests.support.samples import covering, has_turn, is_row, samples, spread, without

OPS = [op for op in ops.all_ops() if any("simd" in v.backends for v in op.variants)]
# One executable for an op, or for a family of rows that share their kernels.
GROUPS = {
    name: [op for op in OPS if ops.group_of(op.name) == name] for name in {ops.group_of(op.name): 0 for op in OPS}
}
# Variants for some CPUs: with matrix units, products of pairs of bf16, vectors of 16 numbers, or AVX-512, which none here has.
OF_SOME = {
    "matrix_unit": lambda cpu: "bf16" in cpu.features,
    **dict.fromkeys(("int16_sums", "vnni_sums", "multiples"), lambda cpu: False),  # of AVX2 and AVX-512
    **dict.fromkeys(
        ("bf16_products", "unit_panels", "unit_tiles", "unit_tiles_with_options", "unpacked_tiles", "bf16_parts"),
        lambda cpu: False,
    ),  # of AMX
    "bf16_dot": lambda cpu: "bf16" in cpu.features,
    "gemv": lambda cpu: cpu.device.lanes == 16,
    "by_outputs": lambda cpu: cpu.device.lanes == 16,
    "streams": lambda cpu: cpu.device.lanes == 16,
    **dict.fromkeys(("partition", "buckets"), lambda cpu: cpu.device.lanes >= 8),
    "int16_gemm": lambda cpu: "avx512vnni" in cpu.device.features,
}
FEWEST = 3  # samples that a variant is proved on, where there are so many
QUICK, QUICK_OF_OTHERS = 1, 1  # ... in the default run
# In the default run a third of the ops run on one CPU in turn; these, whose instructions depend on the CPU, also on the last.
BY_CPU = ("quantized_matmul", "matmul", "rounded_matmul")
# ... but for these: LLVM takes 8 s for rows that are quantized as they are made.
DEAR = ("fused_quantize",)
# Samples of a variant behind `full`, evenly apart and others on each CPU; all on each behind `soak`. A block format is a
# kernel of its own.
SAMPLES, OTHERS = {"quantized_matmul": 13, "matmul": 8, "attention": 22}, 2
# ... and of each row of a family: rows differ by the formula alone, and have no use for what CPUs differ in.
ROW_SAMPLES = {"cortex-a76": 2}


def chosen(op, n: int | None, cpu) -> list:
    """`n` samples (None: all), and more where a variant takes few of those: matrix units want whole tiles."""
    found = list(samples(op.name))
    return topped_up(op, found if n is None else spread(found, n, list(CPUS.values()).index(cpu)), FEWEST, cpu)


def quick(op, cpu) -> list:
    """Few samples, unlike each other."""
    n = QUICK if op.name in BY_CPU else QUICK_OF_OTHERS
    return topped_up(op, covering(op, samples(op.name), most=n), n, cpu)


def topped_up(op, found, n, cpu) -> list:
    """The samples, and others until each variant has `n`."""
    found = list(found)
    for variant in op.variants:
        there = [s for s in samples(op.name) if "simd" in variant.backends and takes(variant, op, s, cpu)]
        few = n - sum(takes(variant, op, s, cpu) for s in found)
        found += (
            covering(op, without(there, found), most=few)
            if few > 0 and (len(op.variants) > 1 or not is_row(op))
            else []
        )
    return found


def takes(variant, op, sample, cpu) -> bool:
    return variant.supports(node_of(op, sample), cpu.device) is None


def n_taken(variant, op, cpu) -> int:
    return sum(takes(variant, op, sample, cpu) for sample in samples(op.name))


def test_the_cpus_together_run_every_sample_of_attention_and_every_block_format() -> None:
    for name, part in (("attention", lambda s: s.name), ("quantized_matmul", lambda s: s.name.split()[0])):
        op = ops.get(name)
        found = {part(s) for cpu in CPUS.values() for s in chosen(op, SAMPLES[name], cpu)}
        assert found == {part(s) for s in op.samples()}


def prove(cpu, given, folder) -> Counter[tuple[str, str]]:
    """How many samples each variant of the ops, given with their samples, was proved on."""
    executable = Executable(cpu, folder)
    for op, tried in given:
        for variant in op.variants:
            if "simd" in variant.backends:
                for sample in tried:
                    executable.add(op, variant, sample)
    proved: Counter[tuple[str, str]] = Counter()
    wrong = []
    for op, variant, sample, error, tolerance in executable.run():
        proved[op, variant] += 1
        if not error <= tolerance:
            wrong.append(f"{op} {variant} ({sample}): error {error:.3g} above {tolerance:.3g}")
    assert not wrong, "\n".join(wrong)
    return proved


def at_least(n, op, proved, cpu) -> None:
    """Each variant was proved on `n` samples, or on all that it takes."""
    variants = {v.name: v for v in op.variants if "simd" in v.backends}
    products = {name: name.removeprefix("unfused_") for name in variants}
    wanted = {name: of not in OF_SOME or OF_SOME[of](cpu) for name, of in products.items()}
    few = [name for name, is_there in wanted.items() if is_there and proved[op.name, name] < n]
    few = [name for name in few if proved[op.name, name] < max(1, n_taken(variants[name], op, cpu))]
    assert not few, f"{op.name}: fewer than {n} samples proved of {few}: {dict(proved)}"
    others = [name for name, is_there in wanted.items() if not is_there and proved[op.name, name]]
    assert not others, f"{op.name}: {others} are said to be for other CPUs, and took samples of {cpu.name}"


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    reason = missing()
    require(reason is None, reason or "")
    return tmp_path_factory.mktemp("aarch64")


def _has_turn(op) -> bool:
    return op.name in BY_CPU or has_turn(op, "aarch64")


def _in_turn(i: int, group: str) -> set[str]:
    names = list(CPUS)
    return {names[i % len(names)], *(names[-1:] if group in BY_CPU else ())}


QUICK_OPS = {name: [] for name in CPUS}
for i, group in enumerate(GROUPS):
    for name in _in_turn(i, group):
        QUICK_OPS[name] += [op for op in GROUPS[group] if group not in DEAR and _has_turn(op)]


@pytest.mark.parametrize("name", quick_of(CPUS, [name for name in CPUS if name != "neoverse-n2"]))
def test_each_variant_agrees_with_the_reference(name, objects) -> None:
    """All in one executable: linking and starting one for each op take half of this test's time."""
    folder = objects / f"quick-{name}"
    folder.mkdir()
    proved = prove(CPUS[name], [(op, quick(op, CPUS[name])) for op in QUICK_OPS[name]], folder)
    for op in QUICK_OPS[name]:
        at_least(QUICK if op.name in BY_CPU else QUICK_OF_OTHERS, op, proved, CPUS[name])


def _longer_cases():
    """Each family of ops behind `full` on the CPU after that of the default run; on the others behind `soak`."""
    for i, group in enumerate(GROUPS):
        now = _in_turn(i + 1, group)
        for name in CPUS:
            yield pytest.param(group, name, marks=pytest.mark.full if name in now else pytest.mark.soak)


@pytest.mark.parametrize(("group", "name"), [*_longer_cases()])
def test_variants_agree_with_the_reference(group, name, objects) -> None:
    folder = objects / f"{group}-{name}"
    folder.mkdir()
    n = ROW_SAMPLES.get(name, 1) if group in {m.rpartition(".")[2] for m in ops.TABLES} else OTHERS
    given = [(op, chosen(op, SAMPLES.get(op.name, n), CPUS[name])) for op in GROUPS[group]]
    given = [(op, tried[:1] if group in DEAR else tried) for op, tried in given]
    proved = prove(CPUS[name], given, folder)
    for op, tried in given:
        at_least(min(FEWEST, len(tried)), op, proved, CPUS[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("op", [ops.get(name) for name in SAMPLES], ids=lambda op: op.name)
def test_all_samples_agree_with_the_reference(op, name, objects) -> None:
    folder = objects / f"all-{op.name}-{name}"
    folder.mkdir()
    at_least(FEWEST, op, prove(CPUS[name], [(op, list(op.samples()))], folder), CPUS[name])


@pytest.mark.parametrize("name", CPUS)
def test_features_are_what_the_system_says(name, objects) -> None:
    """qemu plays a CPU whose words of feature bits are read as they are on hardware; LLVM's host features lack these."""
    folder = objects / f"bits-{name}"
    folder.mkdir()
    program = Executable(CPUS[name], folder).link()
    said = subprocess.run([EMULATOR, "-cpu", CPUS[name].qemu, program], capture_output=True, text=True, check=True)
    assert features_of(*map(int, said.stdout.split())) | {"neon"} == CPUS[name].features
