"""The kernels that find a machine's roof: reading memory, and chains of multiply-adds in int8, bf16 and f32."""

from __future__ import annotations

from camshaft.dtypes import i32, u32
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array, Tracer

WIDTH = 16
CHAINS = 16  # independent accumulators: enough to cover the latency of an instruction that starts twice a cycle
PIECE = 1024  # vectors that a program reads: 64 KiB
STEPS = 20_000


@kernel
def read_memory(k: Tracer, x: Array, out: Array, *, streams: int, ahead: int) -> None:
    # out[p] = xor of piece p and of the pieces as far into the other streams' shares, four vectors of each at a time
    p = k.program(0)
    pieces = [p + stream * (x.shape[0] // streams) for stream in range(streams)]
    sums = [k.var(k.splat(0, WIDTH, u32), u32) for _ in range(4)]
    for i in k.range(0, PIECE, 4):
        for piece in pieces:
            for j, total in enumerate(sums):
                if ahead:
                    k.prefetch(x, piece, i + (j + ahead), 0)
                total.set(total.value ^ k.load_vector(x, piece, i + j, 0, width=WIDTH))
    k.store_vector(out, sums[0].value ^ sums[1].value ^ sums[2].value ^ sums[3].value, p, 0)


@kernel
def int8_chains(k: Tracer, x: Array, out: Array) -> None:
    # CHAINS sums of products of 4 bytes
    p = k.program(0)
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(j, WIDTH, i32), i32) for j in range(CHAINS)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(k.dot4(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)


@kernel
def bf16_chains(k: Tracer, x: Array, out: Array) -> None:
    # CHAINS f32 sums of products of two bf16 that a word holds
    p = k.program(0)
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(float(j), WIDTH)) for j in range(CHAINS)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(k.dot2(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)


@kernel
def f32_chains(k: Tracer, x: Array, out: Array) -> None:
    # CHAINS sums of f32 products
    p = k.program(0)
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(float(j), WIDTH)) for j in range(CHAINS)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(k.fma(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)
