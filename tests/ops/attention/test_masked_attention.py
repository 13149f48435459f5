"""attention's options beyond the table test: what every mask sees, rings, rows that see nothing, and errors."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype, f32
from camshaft.errors import ShapeError
from camshaft.ops.masked.samples import in_ring, sample, with_options
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import node_of
from tests.support.samples import check_bits

ATTENTION, SDPA = ops.get("attention"), ops.get("scaled_dot_product_attention")


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def plainly(q, k, v, seen, bias=0.0):
    """softmax over the keys that are seen, zeros where there is none, in float64."""
    scores = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / np.sqrt(q.shape[-1]) + bias
    powers = np.where(seen, np.exp(scores), 0)
    return np.einsum("bhqk,bhkd->bhqd", powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300), v)


P, J = np.arange(9)[:, None], np.arange(9)
RULES = {
    "all": ({}, P * J >= 0),
    "causal": ({"causal": True}, J <= P),
    "window": ({"causal": True, "window": 3}, (J <= P) & (J > P - 3)),
    "both sides": ({"window": 3}, abs(J - P) < 3),
    "chunk": ({"causal": True, "chunk": 4}, (J <= P) & (J // 4 == P // 4)),
}


@pytest.mark.parametrize("name", RULES)
def test_options_see_what_they_say(name: str) -> None:
    q, k, v = drawn((1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 8))
    attrs, seen = RULES[name]
    (made, *_) = SDPA.reference((q, k, v), attrs)
    np.testing.assert_allclose(made, plainly(q, k, v, seen), atol=1e-12)
    mask = attention_mask(**{"causal": False, **attrs})
    np.testing.assert_array_equal(mask, seen)


def attention_mask(**attrs):
    places = np.arange(9, dtype=np.int32)
    return ops.get("attention_mask").reference((places, places), attrs)[0]


def test_rows_that_see_nothing_are_zeros_and_never_nan() -> None:
    q, k, v = drawn((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    mask = np.ones((5, 7), bool)
    mask[2] = False
    out, sums = cs.scaled_dot_product_attention(q, k, v, mask, lse=True)
    assert not out[:, :, 2].any()
    assert np.isneginf(sums[:, :, 2]).all()
    assert np.isfinite(out).all()
    assert np.isfinite(np.delete(sums, 2, axis=2)).all()
    for lowest in (-np.inf, np.finfo(np.float32).min):
        added = np.where(mask, 0, lowest).astype(np.float32)
        np.testing.assert_array_equal(cs.scaled_dot_product_attention(q, k, v, added), out)


def test_padded_keys_are_never_read() -> None:
    q, k, v = drawn((2, 2, 3, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    lengths = np.array([4, 7], np.int32)
    short = cs.scaled_dot_product_attention(q[:1], k[:1, :, :4], v[:1, :, :4])
    k[0, :, 4:], v[0, :, 4:] = np.nan, np.nan
    made = cs.scaled_dot_product_attention(q, k, v, lengths, extras="lengths")
    np.testing.assert_allclose(made[:1], short, rtol=1e-6)


def test_a_ring_equals_a_cache_with_room_for_all() -> None:
    """A window of 20 over 100 tokens in 48 rows: each token sees what it would see in a cache of 112."""
    kv_heads, size, window = 1, 8, 20
    keys, values, queries = drawn((100, size), (100, size), (100, 2 * size))
    sizes = {"kv_heads": kv_heads, "head_dim": size}
    made = []
    for blocks, ring in ((3, True), (7, False)):
        caches = np.zeros((blocks, 1, size, 16), np.float32), np.zeros((blocks, 1, 16, size), np.float32)
        table, rows = np.arange(blocks, dtype=np.int32)[None], []
        for start in range(0, 100, 20):
            p, slots = np.arange(start, start + 20, dtype=np.int32), np.zeros(20, np.int32)
            part = slice(start, start + 20)
            cs.kv_cache_update(*caches, keys[part], values[part], p, slots, table, ring=ring, **sizes)
            attrs = {**sizes, "heads": 2, "scale": 0.3, "length": blocks * 16, "window": window, "ring": ring}
            rows.append(cs.attention(queries[part], *caches, p, slots, table, **attrs))
        made.append(np.concatenate(rows))
    np.testing.assert_allclose(*made, rtol=1e-5, atol=1e-6)


FAR = [(0, 0), (0, 127), (0, 300), (1, 700)]
FEW_TOKENS = {
    "window of several splits": ({"window": 600, "lse": True}, {}, "f32"),
    "window that begins in a block": ({"window": 130, "cap": 2.0}, {"sinks": (4,)}, "f16"),
    "chunks": ({"chunk": 100}, {"slopes": (4,)}, "bf16"),
    "both sides": ({"causal": False, "window": 9, "lse": True}, {"lengths": (90, 705)}, "f16"),
    "a mask": ({}, {"mask": (2, 4, 4, 704)}, "f32"),
    "a prefix": ({"lse": True}, {"prefix": (200, 0)}, "f16"),
}


@pytest.mark.parametrize("name", FEW_TOKENS)
def test_few_tokens_split_the_keys_that_they_see(name: str) -> None:
    attrs, extras, dtype = FEW_TOKENS[name]
    rng = np.random.default_rng(5)
    given = {
        key: rng.normal(size=value).astype(np.float32)
        for key, value in extras.items()
        if key in ("sinks", "slopes", "mask")
    }
    given |= {key: np.array(value, np.int32) for key, value in extras.items() if key not in given}
    if "mask" in given:
        given["mask"][:, :, 2] = -np.inf
    few = sample(name, FAR, heads=(4, 2), head_dim=20, dtype=as_dtype(dtype))
    check("split_with_options", with_options(few, given, **attrs))


@pytest.mark.parametrize("name", ["split_with_options", "span_per_program"])
def test_a_ring_may_be_as_long_as_the_window(name: str) -> None:
    """The last 256 keys begin within a block, so they lie in 17 blocks of a ring of 16."""
    full = sample("ring", [(0, 255), (0, 251)], heads=(2, 1), head_dim=16)
    check(name, in_ring(full, 300, window=256))


def check(name: str, given: Sample) -> None:
    """Asserts that a variant of attention takes a sample, and that it is right."""
    (variant,) = (v for v in ATTENTION.variants if v.name == name)
    device = cpu_device("simd")
    assert variant.supports(node_of(ATTENTION, given), device) is None
    check_bits(ATTENTION, variant, device, given)


def test_the_sum_merges_parts_of_the_keys() -> None:
    q, k, v = drawn((1, 2, 3, 8), (1, 2, 40, 8), (1, 2, 40, 8))
    whole, total = SDPA.reference((q, k, v), {"lse": True})
    parts = [SDPA.reference((q, k[:, :, s], v[:, :, s]), {"lse": True}) for s in (slice(0, 11), slice(11, 40))]
    shares = [np.exp(sums - total)[..., None] for _, sums in parts]
    np.testing.assert_allclose(sum(y * s for (y, _), s in zip(parts, shares, strict=True)), whole, atol=1e-12)


@pytest.mark.parametrize(
    ("attrs", "match"),
    [
        ({"window": -1}, "wanted a window"),
        ({"cap": float("inf")}, "wanted a cap"),
        ({"causal": False}, "wanted `lengths`"),
        ({"extras": "mask"}, "wanted q, k_cache"),
        ({"extras": "colour"}, "wanted extras of the words"),
        ({"ring": True}, "wanted a window or chunk of at most 32"),
        ({"ring": True, "window": 33}, "wanted a window or chunk of at most 32"),
    ],
)
def test_wrong_options_are_refused(attrs, match: str) -> None:
    given = sample("", [(0, 20)], heads=(2, 1), head_dim=16)
    with pytest.raises(ShapeError, match=match):
        ATTENTION.infer(given.specs, {**given.attrs, **attrs})


def test_wrong_extras_are_refused() -> None:
    given = sample("", [(0, p) for p in range(17, 21)], heads=(2, 1), head_dim=16)
    for extras, match in (
        ({"mask": np.zeros((1, 2, 3, 32), np.float32)}, "tokens of the mask to divide 4"),
        ({"mask": np.zeros((1, 2, 4, 20), np.float32)}, "wanted a mask of bool"),
        ({"sinks": np.zeros(3, np.float32)}, r"sinks of f32 \[2\]"),
        ({"prefix": np.zeros(1, np.int64)}, r"prefix of i32 \[1\]"),
    ):
        made = with_options(given, extras)
        with pytest.raises(ShapeError, match=match):
            ATTENTION.infer(made.specs, {**made.attrs, "length": 32})


def test_a_length_past_the_cache_reads_no_other_memory() -> None:
    """Lengths and prefixes are data: a kernel sees at most the keys of its slot's blocks."""
    q, k, v = drawn((1, 1, 2, 8), (1, 1, 16, 8), (1, 1, 16, 8))
    whole = cs.scaled_dot_product_attention(q, k, v)
    far = np.array([2**31 - 1], np.int32)
    np.testing.assert_array_equal(cs.scaled_dot_product_attention(q, k, v, far, extras="lengths"), whole)
    made = cs.scaled_dot_product_attention(q, k, v, far, extras="prefix", causal=True)
    np.testing.assert_array_equal(made, whole)


def test_kernels_of_plain_attention_refuse_options() -> None:
    specs = sample("", [(0, 20)], heads=(2, 1), head_dim=16)
    attrs = {**specs.attrs, "window": 4, "length": 32}
    node = NodeSpec(specs.specs, ATTENTION.infer(specs.specs, attrs), attrs)
    from camshaft.backends.cpu.device import cpu_device

    taking = [v.name for v in ATTENTION.variants if v.supports(node, cpu_device()) is None]
    assert "one_query_per_program" not in taking
    assert "span_per_program" in taking
    assert node.outputs == (TensorSpec((1, 32), f32),)
