"""The kernels that measure units that multiply: chains of dot products and multiply-adds, and products in tiles."""

from __future__ import annotations

from camshaft.dtypes import i32, u32
from camshaft.lang import Array as KernelArray
from camshaft.lang import Tracer, kernel

WIDTH = 16
CHAINS = 16  # independent accumulators: enough to hide the latency at two instructions per cycle
STEPS, TILE_STEPS = 4_000, 4_000
TILE_DEPTH, SLOTS = 16, 4  # words of k of one product; products with operands of their own


@kernel
def tiles(k: Tracer, x: KernelArray, out: KernelArray, *, side: int, times: int) -> None:
    # out = the sum of `times` products of words, rows of x by rows of x after them, in a tile of side x side: a matrix unit's
    # four tiles of sums, with operands from the first cache. A product is side x side x TILE_DEPTH words
    first = k.program(0) * (SLOTS * TILE_DEPTH + side)
    total = k.word_tile(side, side, out.dtype)
    for _ in k.range(times // SLOTS):
        for p in k.range(0, SLOTS * TILE_DEPTH, TILE_DEPTH):
            total.mma(x, (first, p), x, (first + side + p, 0), k=TILE_DEPTH)
    total.store(out, (k.program(0) * side, 0))


@kernel
def chains(k: Tracer, x: KernelArray, out: KernelArray, *, step: str) -> None:
    # out = out + x[first vector] * x[second vector], STEPS times in each of out's sums. `step` is the Tracer's method: dot4
    # (int8), dot2 (bf16) or fma (f32)
    p, dtype = k.program(0), out.dtype
    a, b = k.load_vector(x, p, 0, width=WIDTH), k.load_vector(x, p, WIDTH, width=WIDTH)
    sums = [k.var(k.splat(j if dtype == i32 else float(j), WIDTH, dtype), dtype) for j in range(out.shape[1] // WIDTH)]
    for _ in k.range(STEPS):
        for total in sums:
            total.set(getattr(k, step)(total.value, a, b))
    for j, total in enumerate(sums):
        k.store_vector(out, total.value, p, j * WIDTH)


@kernel
def byte_chains(k: Tracer, x: KernelArray, out: KernelArray, *, sums: int, words: int, times: int) -> None:
    # as `chains`, of 4-bit codes, for CPUs that make a byte dot product of several instructions: `words` products are added in 16
    # bits, then widened. Operands change from step to step, or LLVM would move the products out of the loop
    p = k.program(0)
    codes, ones = k.load_vector(x, p, 0, width=WIDTH) & 0x0F0F0F0F, k.splat(0x00010001, WIDTH, u32)
    totals = [k.var(k.splat(j, WIDTH, i32), i32) for j in range(sums)]
    for i in k.range(times):
        for j, total in enumerate(totals):
            first = (i & 3) + (1 + j * words)
            given = [k.load_vector(x, p, (first + w) * WIDTH, width=WIDTH) for w in range(words)]
            pairs = k.splat(0, WIDTH, u32)
            for word in given:
                pairs = k.byte_pairs(pairs, codes, word)
            total.set(k.dot2(total.value, pairs, ones))
    for j, total in enumerate(totals):
        k.store_vector(out, total.value, p, j * WIDTH)
