"""An op, y = 2 x, whose variants are each wrong in another way. Child processes import it from here."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import StoreError
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

# Environment variables: the file that `crashes_once` leaves when it crashed; whether the disk of `disk_is_full` is.
CRASHED, FULL = "PLANTED_CRASHED", "PLANTED_FULL"


@kernel
def double(k: Tracer, x: Array, out: Array, *, n: int, wrong_from: int) -> None:
    # out[i] = 2 x[i], but 2 x[i] + 1 from wrong_from on
    for i in k.lanes(n):
        out[i] = k.select(i < wrong_from, x[i] * 2.0, x[i] * 2.0 + 1.0)


def _kernel(ragged_fault: bool) -> ops.KernelVariant:
    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        n = node.inputs[0].bounds[0]
        constants = {"n": n, "wrong_from": n - 1 if ragged_fault and n % 16 else n}
        return ops.Build((ops.Launch(double, (ops.read(0), ops.write(0)), (ops.Cells(1),), constants),))

    name = "wrong_in_last_ragged_element" if ragged_fault else "right"
    return ops.KernelVariant(name, frozenset({"scalar", "simd"}), build, cost=lambda node, target: 5.0)


def _native(name: str, body: str) -> ops.KernelVariant:
    """A variant of LLVM IR text: `body` has %x, %out and %n."""

    def text(symbol: str) -> str:
        return f"""
define void @{symbol}(ptr %args, i64 %first, i64 %last) {{
entry:
  %out.at = getelementptr i64, ptr %args, i64 1
  %words.at = getelementptr i64, ptr %args, i64 2
  %x = load ptr, ptr %args
  %out = load ptr, ptr %out.at
  %words = load ptr, ptr %words.at
  %n = load i64, ptr %words
{body}
}}
"""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        words = np.array(node.inputs[0].bounds, np.int64)
        call = ops.NativeCall(name, f"{name}|{body}", text, (ops.read(0), ops.write(0)), words, (ops.Cells(1),))
        return ops.Build((call,))

    return ops.KernelVariant(name, frozenset({"simd"}), build)


_COPIES = "  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]"
_COPIES += """
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %out, i64 %i
  %value = load float, ptr %from
  %twice = fadd float %value, %value
  store float %twice, ptr %to
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %done
done:
"""
_PAST = _COPIES + "  %past = getelementptr float, ptr %out, i64 %n\n  store float 0.0, ptr %past\n  ret void"
_HANGS = "  br label %again\nagain:\n  store volatile float 0.0, ptr %out\n  br label %again"


# y = 2 x + y of whatever lay there; on guard bytes, which are tiny numbers, nobody sees it.
_ADDS = _COPIES.replace("%twice = fadd float %value, %value", "%old = load float, ptr %to\n  %both = fadd float %value, %value\n  %twice = fadd float %both, %old")  # fmt: skip  # noqa: E501
# y = 2 x where the output begins a cache line, else x: as kernels written for a plan's arena might.
_ALIGNED = _COPIES.replace(
    "  br label %loop\nloop:",
    """  %where = ptrtoint ptr %out to i64
  %rest = and i64 %where, 63
  %even = icmp eq i64 %rest, 0
  %factor = select i1 %even, float 2.0, float 1.0
  br label %loop
loop:""",
).replace("fadd float %value, %value", "fmul float %value, %factor")


def _every_second(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    _calls.append(1)
    np.multiply(inputs[0], 2 if len(_calls) % 2 else 3, out=outputs[0])


_calls: list[int] = []


def _crash(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    ctypes.string_at(0)


def _exit(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    os._exit(7)


def _killed(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _raise(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    raise ValueError("out of patience")


def _crash_once(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    path = Path(os.environ[CRASHED])
    if not path.exists():
        path.touch()
        ctypes.string_at(0)
    _double(node, inputs, outputs)


def _allocate(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    np.zeros(7 << 30, np.uint8)  # which the system itself would grant
    _double(node, inputs, outputs)


def _full(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    if FULL in os.environ:
        raise StoreError("an object: cannot be written: No space left on device")
    _double(node, inputs, outputs)


def _host(name: str, function: object, cost: float = 1e9) -> ops.KernelVariant:
    build = lambda node, target: ops.HostCall(function)  # type: ignore[arg-type]  # noqa: E731
    return ops.KernelVariant(name, frozenset({"simd"}), build, cost=lambda node, target: cost)


def _double(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    np.multiply(inputs[0], 2, out=outputs[0])


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1 and specs[0].dtype == f32, "double", specs, "x of f32")
    return specs


def _samples() -> Iterable[ops.Sample]:
    for n in (16, 1, 32, 15, 33):
        yield ops.Sample(f"n={n}", (np.arange(1, n + 1, dtype=np.float32),))


def _refuses(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return "wants a machine that nobody has built"


OP = ops.Op(
    name="double",
    formula="y = 2 x",
    infer=_infer,
    reference=lambda inputs, attrs: (inputs[0].astype(np.float64) * 2,),
    variants=(
        _kernel(ragged_fault=True),
        _kernel(ragged_fault=False),
        _native("writes_past_its_output", _PAST),
        _native("native", _COPIES + "  ret void"),
        _native("hangs", _HANGS),
        _native("adds_to_what_lay_there", _ADDS + "  ret void"),
        _native("right_on_cache_lines_only", _ALIGNED + "  ret void"),
        _host("wrong_every_second_time", _every_second),
        _host("crashes", _crash),
        _host("exits", _exit),
        _host("killed", _killed),
        _host("raises", _raise),
        _host("crashes_once", _crash_once),
        _host("allocates_far_too_much", _allocate),
        _host("disk_is_full", _full),
        _host("right_but_slow", _double),
        ops.KernelVariant("refuses", frozenset({"simd"}), _native("", "").build, _refuses),
    ),
    samples=_samples,
    error_samples=tuple,
    tolerance={"f32": 1e-12},
)
