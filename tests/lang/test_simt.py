"""SIMT form means what the kernel means: every variant of every op on small samples, thread by thread in shuffled order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype, f32, i32
from camshaft.errors import KernelError, VerifyError
from camshaft.lang import ir, kernel, traversal
from camshaft.lang.interpreter.interpret import interpret
from camshaft.lang.interpreter.simt import interpret_simt
from camshaft.lang.simt.form import to_simt
from camshaft.lang.verifier.verify import verify
from camshaft.ops.op import Launch
from camshaft.validation import run
from camshaft.validation.validate import check_outputs, node_of
from tests.support.compilers.op_kernels import arguments_at
from tests.support.devices.simulated_gpu import SimulatedDevice
from tests.support.samples import STANDING, has_turn, smallest, usable, without

# A variant's smallest sample, if it has no more elements: in the default run, and behind `full`, which has it in other widths.
QUICK_ELEMENTS, FULL_ELEMENTS = 300, 1200
# ... and behind `full` alone, as their smallest sample takes seconds.
SLOW = ("chunks", "tiled_with_options")
# Variants for CPUs alone are left out: threads never run their kernels, and some pack the lanes of a vector, which threads
# have no word for.
GPUS = {"webgpu", "cuda", "metal"}
# Threads: the default run has all widths for two ops only, and for others one of two in turn, as `full` has two of four. One
# thread takes as many steps as there are elements.
IN_TURN, FULL_IN_TURN, WIDTHS = ((8,), (32,)), ((2, 32), (1, 8)), (1, 2, 8, 32)
# Variants for GPUs alone are built for so many threads.
GPU = SimulatedDevice(lanes=64)


def _device(variant):
    return cpu_device("simd") if "simd" in variant.backends else GPU


def _cases(op, variant) -> list:
    there = usable(op, variant, _device(variant))
    small = smallest(there, 1, FULL_ELEMENTS)
    quick = smallest(small, 1, QUICK_ELEMENTS)
    few = quick if op.name in STANDING else []
    quick = quick if has_turn(op, "simt", variant) and variant.name not in SLOW else []
    turn = IN_TURN[op.variants.index(variant) % len(IN_TURN)]
    more = FULL_IN_TURN[op.variants.index(variant) % len(IN_TURN)]
    width, more, every = (turn, more, WIDTHS) if _device(variant) is not GPU else ((GPU.lanes,),) * 3
    parts = (few, every, ()), (without(quick, few), width, ()), (without(small, few), more, pytest.mark.full)
    return [
        pytest.param(op, variant, sample, widths, id=f"{op.name}-{variant.name}-{sample.name}", marks=marks)
        for part, widths, marks in parts
        for sample in part
    ]


VARIANTS = [(op, v) for op in ops.all_ops() for v in op.variants if {"simd", "cuda"} & v.backends and v.backends & GPUS]
CASES = [case for op, v in VARIANTS for case in _cases(op, v)]


def agree(kernel_ir, arrays, scalars, lanes, programs=None):
    """Runs both forms on copies; gives the outputs of the first. NumPy does the same arithmetic for both: bit for bit."""
    simt = to_simt(kernel_ir, lanes)
    meant, got = ([a.copy() for a in arrays] for _ in range(2))
    interpret(kernel_ir, meant, scalars, lanes=simt.lanes, programs=programs, subgroup_lanes=32)
    interpret_simt(simt, got, scalars, programs=programs, seed=lanes)
    for a, b, array in zip(got, meant, kernel_ir.arrays, strict=True):
        # by bytes where NumPy's comparison does not know the dtype's NaN
        a, b = (x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x for x in (a, b))
        np.testing.assert_array_equal(a, b, err_msg=f"{array.name} of {kernel_ir.name} at {simt.lanes} threads")
    return meant


class BothForms:
    """Stands in for a compiled kernel: interprets both forms at each width and leaves what they agree on."""

    def __init__(self, launch, made, widths) -> None:
        self._ir = made.request(launch).trace()
        # A launch that names its lanes is never run with others: it may shuffle among so many.
        self._widths = (launch.lanes,) if launch.lanes else widths
        self._made, self.address = made, 0  # code of a host device, as far as dispatch asks

    def __call__(self, args: int, first: int, last: int) -> None:
        views, scalars = arguments_at(args, self._made)
        vectors = any(isinstance(item, ir.Value) and item.width for item in traversal.walk(self._ir.body))
        for lanes in (1,) if vectors else self._widths:
            result = agree(self._ir, views, scalars, lanes, range(first, last))
        for view, new in zip(views, result, strict=True):
            if view.flags.writeable:
                view[...] = new


@pytest.mark.parametrize(("op", "variant", "sample", "widths"), CASES)
def test_threads_do_what_lanes_do(op, variant, sample, widths, monkeypatch) -> None:
    native = run.compile_launch

    def substitute(launch, made, device):
        return BothForms(launch, made, widths) if isinstance(launch, Launch) else native(launch, made, device)

    monkeypatch.setattr(run, "compile_launch", substitute)
    node = node_of(op, sample)
    outputs = run.run_variant(variant, node, _device(variant), sample.inputs, sample.extents)
    found = check_outputs(op, variant, node, sample, outputs)
    assert found.max_error <= found.tolerance


def traced(function, arrays, outputs=1, grid=(1,)):
    first = len(arrays) - outputs
    params = [ir.ArrayParam(f"a{i}", as_dtype(a.dtype), a.shape, i >= first) for i, a in enumerate(arrays)]
    made = kernel(function).trace(params, (), {}, [ir.GridDim(d) for d in grid])
    verify(made)
    return made


@pytest.mark.parametrize("lanes", [1, 2, 8, 32, 64])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_words_between_lanes_agree(kind, lanes):
    def exchange(k, x, out):
        lane, width = k.lane(), k.lane_count()
        value = x[k.program(0), lane]
        total = k.lanes_scan(value, kind) + k.lanes_scan(value, kind, exclusive=True)
        total = total + k.shuffle(value, width - 1 - lane) + k.broadcast(value, width // 2) + k.broadcast(value, 0)
        total = total + k.shuffle_xor(value, 1) + k.shuffle_up(value, 3) + k.shuffle_down(value, 5)
        total = total + getattr(k, f"subgroup_{kind}")(value) + k.subgroup_lanes().to(f32)
        out[k.program(0), lane] = total + getattr(k, f"lanes_{kind}")(value)

    x = np.random.default_rng(lanes).integers(-9, 9, (3, 64)).astype(np.float32)
    agree(traced(exchange, [x, np.zeros_like(x)], grid=(3,)), [x, np.zeros_like(x)], (), lanes)


@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_atomics_agree(lanes):
    def count(k, x, out, totals):
        part = k.scratch(i32, 4)
        for i in range(4):
            part[i] = 0
        k.barrier()
        for c in k.lanes(37):
            with k.when(x[c] > 0):
                k.atomic_add(part, x[c], c % 4)
        k.barrier()
        out[k.program(0)] = k.atomic_exchange(part, 5, 2) + part[3]
        k.atomic_max(totals, k.atomic_add(part, 1, 2), 0)

    x = np.random.default_rng(3).integers(-9, 9, 37).astype(np.int32)
    arrays = [x, np.zeros(3, np.int32), np.zeros(1, np.int32)]
    agree(traced(count, arrays, 2, (3,)), arrays, (), lanes)


def faulty(message, function, arrays, lanes=8):
    made = traced(function, arrays)
    with pytest.raises(VerifyError, match=rf"kernel {function.__name__}, line \d+: .*{message}"):
        interpret(made, [a.copy() for a in arrays], lanes=lanes)
    for seed in range(4):
        with pytest.raises(VerifyError, match=rf"kernel {function.__name__}, line \d+: .*{message}"):
            interpret_simt(to_simt(made, lanes), [a.copy() for a in arrays], seed=seed)


def test_a_missing_barrier_is_found_in_both_forms():
    def scratch_neighbour(k, x, out):
        part = k.scratch(f32, 8)
        part[k.lane()] = x[k.lane()]
        out[k.lane()] = k.gather(part, k.lane() ^ 1)

    def array_neighbour(k, x, out):
        out[k.lane()] = x[k.lane()]
        out[k.lane()] = k.gather(out, k.lane() ^ 1) + 1

    x = np.arange(8, dtype=np.float32)
    for function in (scratch_neighbour, array_neighbour):
        faulty("a race without a barrier between: lane", function, [x, np.zeros_like(x)])


def test_a_workgroup_is_a_power_of_two():
    def copied(k, x, out):
        out[k.lane()] = x[k.lane()]

    x = np.arange(96, dtype=np.float32)
    with pytest.raises(KernelError, match="a workgroup of 96 threads; wanted a power of two"):
        to_simt(traced(copied, [x, np.zeros_like(x)]), 96)


def test_a_barrier_orders_lanes_on_any_array():
    def neighbour(k, x, out):
        out[k.lane()] = x[k.lane()]
        k.barrier()
        other = k.gather(out, k.lane() ^ 1)
        k.barrier()
        out[k.lane()] = other

    x = np.arange(8, dtype=np.float32)
    _, out = agree(traced(neighbour, [x, np.zeros_like(x)]), [x, np.zeros_like(x)], (), 8)
    np.testing.assert_array_equal(out, [1, 0, 3, 2, 5, 4, 7, 6])


def test_a_barrier_that_was_lost_is_found():
    def through_scratch(k, x, out):
        part = k.scratch(f32, 8)
        part[k.lane()] = x[k.lane()]
        k.barrier()
        out[k.lane()] = k.gather(part, 7 - k.lane())

    x = np.arange(8, dtype=np.float32)
    simt = to_simt(traced(through_scratch, [x, np.zeros_like(x)]), 8)
    interpret_simt(simt, [x, np.zeros_like(x)])
    simt.body.statements[:] = [s for s in simt.body.statements if not isinstance(s, ir.Barrier)]
    for seed in range(8):
        with pytest.raises(VerifyError, match=r"race without a barrier between: lane \d (reads|writes)"):
            interpret_simt(simt, [x, np.zeros_like(x)], seed=seed)


def test_a_barrier_that_not_all_threads_reach_is_found():
    def plain(k, x, out):
        out[k.lane()] = x[k.lane()]

    x = np.arange(8, dtype=np.float32)
    simt = to_simt(traced(plain, [x, np.zeros_like(x)]), 8)
    lane = next(v for v in simt.body.statements if isinstance(v, ir.Value) and v.op == "lane")
    three = ir.Value("const", lane.dtype, attr=3, block=simt.body)
    few = ir.Value("less", as_dtype(np.bool_), (lane, three), block=simt.body)
    branch = ir.When(7, few, ir.Block(simt.body))
    branch.body.statements.append(ir.Barrier(7))
    simt.body.statements += [three, few, branch]
    for seed in range(4):
        with pytest.raises(VerifyError, match="line 7: a barrier or a collective that not all threads reach"):
            interpret_simt(simt, [x, np.zeros_like(x)], seed=seed)
