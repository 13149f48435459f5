"""Variants int16_sums (AVX2) and vnni_sums (AVX-VNNI) of quantized_matmul: sums.py for any number of tokens, or
staged.py with AVX2 and more tokens than one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dtypes import i64
from camshaft.lang import Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantized.operands import Rows
from camshaft.ops.quantized.packed.packing import ROWS, packed_format
from camshaft.ops.quantized.packed.weights import Index
from camshaft.ops.quantized.products.avx2.staged import Program, pays
from camshaft.ops.quantized.products.avx2.sums import Tile, chain_of, totals_of
from camshaft.ops.quantized.products.kernels import is_q8, operands, packed_only, product_build, tile_cost

# Most tokens in one step: their 16-bit sums, two registers each, fit beside a word of codes.
AT_ONCE = 6
STEP, COLUMNS = 4, 64
# Tiles of rows of a program of staged blocks, whose totals fill half of the first cache, and fewest programs to have so many.
TILES, PROGRAMS = (4, 2, 1), 16
# Distance of prefetches of codes where each is read once, in words of 64 bytes.
AHEAD = 128


@kernel
def avx2_tile(
    k: Tracer,
    *arguments: Any,
    n: int,
    blocks: int,
    columns: int,
    step: int,
    bound: int,
    ahead: int,
    vnni: bool,
    block: str,
) -> None:
    # 16 rows of weights x `columns` tokens per program, `step` at a time
    given = operands(k, arguments, block)
    mine, first = Rows(k, ROWS, n), k.program(1) * columns
    limit = given.active[0] if given.active else k.const(bound, i64)
    count = 1 if columns == step else (k.minimum(limit - first, columns) + (step - 1)) // step
    tile = Tile(given.x, given.weights, mine, blocks, first, bound, step, count, ahead, vnni)
    totals = totals_of(tile, columns)
    for j in tile.times():
        tokens = tile.tokens(j)
        for t, token in enumerate(tokens.places):
            with k.when((token >= first + j * step) & (token < limit)):
                mine.store(given.out, k.var(totals.get(j * step + t)), token)


@kernel
def staged_tile(
    k: Tracer, *arguments: Any, n: int, blocks: int, columns: int, step: int, tiles: int, bound: int, block: str
) -> None:
    # `tiles` tiles of 16 rows of weights x `columns` tokens per program, `step` at a time
    given, part, first = operands(k, arguments, block), k.program(0) * tiles, k.program(1) * columns
    limit = given.active[0] if given.active else k.const(bound, i64)
    steps, count = (k.minimum(limit - first, columns) + (step - 1)) // step, k.minimum(-(-n // ROWS) - part, tiles)

    def tile_at(_: int, r: Index) -> Tile:
        return Tile(given.x, given.weights, Rows(k, ROWS, n, part + r), blocks, first, bound, step, steps)

    totals = Program(k, tile_at, 1, count, tiles, columns).totals()
    for r in k.range(count):
        tile = tile_at(0, r)
        for j in k.range(steps):
            for t, token in enumerate(tile.tokens(j).places):
                with k.when((token >= first + j * step) & (token < limit)):
                    total = k.load_vector(totals, 0, j * step + t, r * ROWS, width=ROWS)
                    tile.mine.store(given.out, k.var(total), token)


def values_of(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default tokens of a program, those taken at a time, and the prefetch distance in words."""
    bound = node.inputs[0].bounds[0]
    if bound <= AT_ONCE:
        return {"step": bound, "columns": bound, "tiles": 1, "ahead": AHEAD}
    values = many_values(bound, COLUMNS)
    if not _is_staged(node, target, values):
        return {**values, "tiles": 1, "ahead": AHEAD if values["columns"] >= bound else 0}
    most = -(-node.inputs[1].bounds[0] // ROWS) * -(-bound // COLUMNS) // PROGRAMS
    return {**values, "tiles": next(tiles for tiles in TILES if tiles <= max(most, 1)), "ahead": 0}


def many_values(bound: int, columns: int) -> ops.Values:
    """Returns the tokens of a program, at most `columns`, and those taken at a time, for more than AT_ONCE tokens."""
    return {"step": STEP, "columns": min(columns, -(-bound // STEP) * STEP)}


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    x, w = node.inputs
    tiles, ahead, tokens = values["tiles"], values["ahead"], {name: values[name] for name in ("step", "columns")}
    grid = ops.Cells(w.bounds[0], ROWS * tiles), ops.Cells(x.shape[0], values["columns"])
    constants = {"n": w.bounds[0], "bound": x.bounds[0], **tokens}
    if _is_staged(node, target, values):
        return product_build(staged_tile, node, grid, {**constants, "tiles": tiles})
    return product_build(avx2_tile, node, grid, {**constants, "vnni": has_vnni_sums(target), "ahead": ahead})


def _is_staged(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> bool:
    """Returns whether blocks are staged."""
    x, w = node.inputs
    in_steps = values["columns"] > values["step"] and not has_vnni_sums(target)
    return in_steps and pays(packed_format(w), x.bounds[0], w.bounds[1])


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    bound, step, columns = node.inputs[0].bounds[0], values["step"], values["columns"]
    if step > bound or (columns == step and step > AT_ONCE):
        return f"{step} tokens at a time of {bound}"
    is_staged = _is_staged(node, target, values)
    if (is_staged and values["ahead"]) or (not is_staged and values["tiles"] > 1):
        return "takes a distance of prefetches where blocks are not staged, several tiles where they are"
    return f"{columns} tokens, {step} at a time" if columns % step else None


def has_int16_sums(target: ops.Target) -> bool:
    """Returns whether the CPU adds products of bytes in 16 bits, and has no instruction that adds them in 32."""
    features = target.features
    return target.backend == "simd" and target.lanes == 8 and "avx2" in features and "avxvnni" not in features


def has_vnni_sums(target: ops.Target) -> bool:
    """Returns whether the CPU has 16 vector registers and an instruction that adds products of bytes in 32 bits: AVX-VNNI."""
    return target.backend == "simd" and target.lanes == 8 and "avxvnni" in target.features


def without_int16_sums(target: ops.Target) -> str | None:
    """Returns why int16_sums does not take a target, or None."""
    return None if has_int16_sums(target) else "takes CPUs with AVX2 and without VNNI"


def without_vnni_sums(target: ops.Target) -> str | None:
    """Returns why vnni_sums does not take a target, or None."""
    return None if has_vnni_sums(target) else "takes CPUs with AVX-VNNI and without AVX-512"


def _variant(
    name: str, without: Callable[[ops.Target], str | None], cost: Callable[[ops.NodeSpec, ops.Target], float]
) -> ops.KernelVariant:
    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        if (reason := without(target)) is not None:
            return reason
        return packed_only(node, target) if is_q8(node.inputs[0]) else "takes quantized activations"

    return ops.KernelVariant(name, frozenset({"simd"}), TUNABLES.build_default, supports, cost, TUNABLES)


def _vnni_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Emerald Rapids without AVX-512: 1.14 to 1.36 times the speed of a tile for 128 tokens, 1.1 to 1.9 times for
    2 to 16. One token is as fast."""
    return (1.1 if node.inputs[0].bounds[0] == 1 else 0.8) * tile_cost(node, target)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on one Zen 3 core: 1.5 to 2.6 times the speed of a tile for many tokens. One token is as fast or 1.2 times so with
    codes of 5 and 6 bits and Q4_K, as fast or slower with other codes."""
    form = packed_format(node.inputs[1])
    is_slow = chain_of(form) == 0 or (form.bits == 4 and not form.is_nested)
    return (1.1 if node.inputs[0].bounds[0] == 1 and is_slow else 0.6) * tile_cost(node, target)


TUNABLES = ops.Tunables(
    {
        "step": (1, 2, 3, 4, 5, 6),
        "columns": (1, 2, 3, 4, 5, 6, 24, 32, 48, 64, 96),
        "tiles": (1, 2, 4, 8),
        "ahead": (0, 32, 64, 128, 256),
    },
    values_of,
    _build,
    _refusal,
)
INT16, VNNI = _variant("int16_sums", without_int16_sums, _cost), _variant("vnni_sums", without_vnni_sums, _vnni_cost)
