"""Rows of single quantized matrix products against ggml, for one token and for a prompt."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compare.model_files import Watch
from bench.compare.suites.suite import OURS, Peer, Suite, Target, Task
from camshaft.formats.blocks import BLOCK_FORMATS

M, K = 4096, 14336
FORMATS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
COPIES = 4  # of the weights, at least 132 MB, so that a token's product reads them from memory
TOKENS = 512


def _token(name: str) -> Task:
    row = BLOCK_FORMATS[name]
    nbytes = float(M * K // row.block_size * row.block_nbytes * COPIES)
    order = {"format": name, "m": M, "k": K, "n": 1, "copies": COPIES}
    return Task(
        f"{name} {M} x {K}, n 1",
        order,
        "GB/s",
        nbytes,
        Target(ratio=1.0, share=0.9),
        nbytes,
        family="quantized products, n 1",
    )


def _prompt(name: str) -> Task:
    ops = 2.0 * M * K * TOKENS
    order = {"format": name, "m": M, "k": K, "n": TOKENS, "copies": 1}
    wanted = Target(ratio=1.0, share=0.7)
    return Task(
        f"{name} {M} x {K}, n {TOKENS}",
        order,
        "Gop/s",
        ops,
        wanted,
        ops={"int8": ops},
        family=f"quantized products, n {TOKENS}",
    )


def products(threads: int, watch: Watch) -> Iterator[Suite]:
    """One suite per format, so that its weights are freed before the next."""
    given = {"threads": threads}
    peers = Peer("ggml", "ggml:Products", given), Peer(OURS, "ours/products:Products", given, peer_python=False)
    for name in FORMATS:
        yield Suite("products", threads, peers, (_token(name), _prompt(name)))
