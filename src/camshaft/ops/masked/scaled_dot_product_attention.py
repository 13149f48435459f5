"""scaled_dot_product_attention: softmax(scale q K^T + mask) V of plain tensors, as a paged cache of one slot per batch row.

q is [batch, heads, queries, size], k [batch, kv_heads, keys, size], v [batch, kv_heads, keys, v_size]: the layout of torch's
function of that name. kv_heads divides heads (grouped query), keys may differ from queries (cross attention). Query i has
position i + offset, which is torch's is_causal with offset 0. The options are those of options.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, boolean, f16, f32, i32
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.gradient import rule_in_f32
from camshaft.ops.masked.decomposition import LOWEST
from camshaft.ops.masked.gradient.attention_gradient import visible
from camshaft.ops.masked.options import ATTRIBUTES, Options, Sizes
from camshaft.ops.masked.reference import attend
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

NAME = "scaled_dot_product_attention"
_DEFAULTS = {"causal": False, "extras": "mask"}
_ATTRIBUTES = tuple(Attribute(a.name, a.type, _DEFAULTS.get(a.name, a.default)) for a in ATTRIBUTES)


def _options(attrs: ops.Attrs, n_extras: int) -> Options:
    """Returns the options. One additional input is a mask if `extras` does not say otherwise."""
    words = attrs.get("extras", "mask" if n_extras else "")
    return Options.of(NAME, {"causal": False, **attrs, "extras": words if n_extras else ""})


def _scale(attrs: ops.Attrs, size: int) -> float:
    scale = attrs.get("scale")
    return size**-0.5 if scale is None else float(scale)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) >= 3, NAME, specs, "q, k, v, then what `extras` names")
    q, k, v, *extras = specs
    for spec, name in ((q, "q"), (k, "k"), (v, "v")):
        good = spec.is_plain and spec.dtype in (f32, f16, bf16) and spec.dtype == q.dtype and len(spec.shape) == 4
        good = good and 0 not in spec.bounds and all(isinstance(n, int) for n in spec.shape)
        ops.expect(
            good, NAME, spec, f"{name} of f32, f16 or bf16, like q, [batch, heads, length, size] with no empty axis"
        )
    (batch, heads, queries, size), (_, kv_heads, keys, _), v_size = q.bounds, k.bounds, v.bounds[3]
    ops.expect(heads % kv_heads == 0, NAME, (heads, kv_heads), "heads of q a multiple of those of k")
    for spec, wanted, name in ((k, (batch, kv_heads, keys, size), "k"), (v, (batch, kv_heads, keys, v_size), "v")):
        ops.expect(spec.bounds == wanted, NAME, spec, f"{name} of {list(wanted)}")
    scale, offset = attrs.get("scale"), attrs.get("offset", 0)
    good = scale is None or (isinstance(scale, (int, float)) and isfinite(scale))
    ops.expect(good, NAME, f"scale {scale!r}", "a scale that is a finite number, or None for 1 / sqrt(size)")
    most = (1 << 31) - 1 - queries
    good = type(offset) is int and 0 <= offset <= most
    ops.expect(good, NAME, f"offset {offset!r}", f"an offset that is an integer from 0 to {most}")
    options = _options(attrs, len(extras))
    n = len(options.extras)
    ops.expect(
        len(extras) == n, NAME, f"{len(extras)} extras", f"the {n} that `extras` names: {' '.join(options.extras)}"
    )
    sizes = Sizes(queries, heads, batch, keys, keys)
    wide = tuple(_four(e) if name == "mask" else e for name, e in zip(options.extras, extras, strict=True))
    _with_lengths(options).check(NAME, (*wide, *_lengths(options, batch)), sizes)
    for name, spec in zip(options.extras, wide, strict=True):
        good = name != "mask" or (spec.bounds[3] == keys and spec.bounds[2] in (1, queries))
        ops.expect(good, NAME, spec, f"a mask that broadcasts to [{batch}, {heads}, {queries}, {keys}]")
    sums = (TensorSpec((batch, heads, queries), f32),) if options.lse else ()
    return (TensorSpec((batch, heads, queries, v_size), q.dtype), *sums)


def _four(spec: TensorSpec) -> TensorSpec:
    """A mask's spec with leading axes of 1."""
    return TensorSpec((1,) * (4 - len(spec.shape)) + tuple(spec.shape), spec.dtype) if spec.is_plain else spec


def _with_lengths(options: Options) -> Options:
    """The options with `lengths`: the number of keys, where a caller gives none."""
    return options if options.has("lengths") else replace(options, extras=(*options.extras, "lengths"))


def _lengths(options: Options, batch: int) -> tuple[TensorSpec, ...]:
    return () if options.has("lengths") else (TensorSpec((batch,), i32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    q, k, v, *extras = inputs
    options = _options(attrs, len(extras))
    batch, heads, queries, size = q.shape
    given = dict(zip(options.extras, extras, strict=True))
    if "mask" in given:
        given["mask"] = given["mask"].reshape((1,) * (4 - given["mask"].ndim) + given["mask"].shape)
    positions = np.tile(np.arange(queries) + attrs.get("offset", 0), batch)
    wide_k, wide_v = k.astype(np.float64), v.astype(np.float64)
    out, sums = attend(
        options,
        q.astype(np.float64).transpose(0, 2, 1, 3).reshape(-1, heads, size),
        (positions, np.repeat(np.arange(batch), queries)),
        lambda slot, keys: (wide_k[slot][:, keys], wide_v[slot][:, keys]),
        given,
        k.shape[2],
        v.shape[3],
        _scale(attrs, size),
    )
    made = out.reshape(batch, queries, heads, -1).transpose(0, 2, 1, 3)
    return (made, sums.reshape(batch, queries, heads).transpose(0, 2, 1)) if options.lse else (made,)


def _paged(f: Any, part: Any, axes: tuple[int, ...]) -> Any:
    """Keys or values [batch, heads, keys, size] as blocks of 16 keys, of which the last is filled with zeros."""
    batch, heads, keys, size = part.shape
    n = -(-keys // BLOCK_TOKENS)
    if n * BLOCK_TOKENS > keys:
        zeros = np.zeros((batch, heads, n * BLOCK_TOKENS - keys, size), part.dtype.numpy)
        part = f.concat(part, zeros, axis=2)
    blocks = f.transpose(part.reshape((batch, heads, n, BLOCK_TOKENS, size)), axes=axes)
    return blocks.reshape((batch * n, heads, *blocks.shape[3:]))


def _decompose(f: Any, q: Any, k: Any, v: Any, *extras: Any, scale: Any = None, offset: int = 0, **attrs: Any) -> Any:
    options = _options(attrs, len(extras))
    (batch, heads, queries, size), (_, kv_heads, keys, v_size) = q.shape, v.shape
    n_blocks = -(-keys // BLOCK_TOKENS)
    named = dict(zip(options.extras, extras, strict=True))
    if "mask" in named and len(named["mask"].shape) < 4:
        named["mask"] = named["mask"].reshape((1,) * (4 - len(named["mask"].shape)) + tuple(named["mask"].shape))
    if "lengths" not in named and not (options.causal and offset + queries <= keys and "prefix" not in named):
        named["lengths"] = np.full(batch, keys, np.int32)
    rows = f.transpose(f.cast(q, to="f32") if q.dtype != f32 else q, axes=(0, 2, 1, 3))
    out, *sums = _tuple(
        f.attention(
            rows.reshape((batch * queries, heads * size)),
            _paged(f, k, (0, 2, 1, 4, 3)),
            _paged(f, v, (0, 2, 1, 3, 4)),
            np.tile(np.arange(offset, offset + queries, dtype=np.int32), batch),
            np.repeat(np.arange(batch, dtype=np.int32), queries),
            np.arange(batch * n_blocks, dtype=np.int32).reshape(batch, n_blocks),
            *named.values(),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=size,
            scale=_scale({"scale": scale}, size),
            length=keys,
            **{a.name: getattr(options, a.name) for a in ATTRIBUTES if a.name != "extras"},
            extras=" ".join(named),
        )
    )
    made = f.transpose(out.reshape((batch, queries, heads, v_size)), axes=(0, 2, 1, 3))
    made = f.cast(made, to=q.dtype.name) if q.dtype != f32 else made
    return (made, f.transpose(sums[0].reshape((batch, queries, heads)), axes=(0, 2, 1))) if sums else made


def _for_gradient(node: ops.NodeSpec) -> ops.Attrs | None:
    """With the log-sum-exp, where attention_gradient takes the node."""
    options = _options(node.attrs, len(node.inputs) - 3)
    taken = not (options.lse or options.cap) and _only_masked(options, node.inputs[3:])
    return {**node.attrs, "lse": True} if taken else None


def _only_masked(options: Options, extras: Sequence[Any]) -> bool:
    return set(options.extras) <= {"mask"} and all(e.dtype == boolean for e in extras)


@rule_in_f32
def _vjp(
    f: Any, dy: Any, y: Any, q: Any, k: Any, v: Any, *extras: Any, scale: Any = None, offset: int = 0, **attrs: Any
) -> Any:
    """By attention_gradient, or, with a soft cap, by parts; with other extras than a boolean mask by decomposition."""
    options, factor = _options(attrs, len(extras)), _scale({"scale": scale}, q.shape[3])
    if not _only_masked(options, extras) or options.lse == bool(options.cap):
        return NotImplemented
    if options.lse:
        masks = [e.reshape((1,) * (4 - len(e.shape)) + tuple(e.shape)) for e in extras]
        delta = f.sum(dy[0] * y[0], axes=3) - dy[1]
        named = {name: getattr(options, name) for name in ("causal", "window", "chunk")}
        made = f.attention_gradient(q, k, v, dy[0], y[1], delta, *masks, scale=factor, offset=offset, **named)
        return *made, *(None for _ in extras)
    (batch, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    shape = batch, heads, queries, keys

    def rows(x: Any) -> Any:
        return x.reshape((batch, kv_heads, -1, x.shape[3]))

    def transposed(x: Any) -> Any:
        return f.transpose(x, axes=(0, 1, 3, 2))

    bent = options.cap * f.tanh(f.matmul(rows(q), rows(k), transpose_b=True).reshape(shape) * (factor / options.cap))
    seen = visible(options, queries, keys, offset)
    seen = f.logical_and(seen, *extras) if extras else seen
    p = f.where(seen, f.softmax(f.where(seen, bent, LOWEST)), 0)
    of_scores = f.matmul(rows(dy), rows(v), transpose_b=True).reshape(shape)
    of_scores = p * (of_scores - f.sum(dy * y, axes=3, keepdims=True)) * factor
    of_scores, weights = rows(of_scores * (1 - f.square(bent / options.cap))), rows(p)
    of_q, of_k = f.matmul(of_scores, rows(k)).reshape(q.shape), f.matmul(transposed(of_scores), rows(q))
    return of_q, of_k, f.matmul(transposed(weights), rows(dy)), *(None for _ in extras)


def _tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _sample(
    name: str, sizes: tuple[int, ...], extras: dict[str, Any] | None = None, dtype: DType = f32, **attrs: Any
) -> ops.Sample:
    """A sample with `sizes` batch, heads, kv_heads, queries, keys, size, v_size."""
    rng = np.random.default_rng(31)
    batch, heads, kv_heads, queries, keys, size, v_size = sizes
    shapes = (batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, v_size)
    arrays = [rng.normal(size=shape).astype(dtype.numpy) for shape in shapes]
    named = {"extras": " ".join(extras)} if extras else {}
    return ops.Sample(name, (*arrays, *(extras or {}).values()), {**attrs, **named})


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(32)
    mask = rng.random((2, 1, 5, 19)) < 0.5
    mask[1, :, 2] = False
    yield _sample("cross, a row of none", (2, 4, 2, 5, 19, 8, 8), {"mask": mask}, lse=True)
    yield _sample("causal", (1, 3, 1, 20, 20, 16, 16), causal=True)
    sinks = rng.normal(size=4).astype(np.float32)
    yield _sample(
        "f16, window, sinks", (2, 4, 2, 3, 33, 8, 12), {"sinks": sinks}, f16, window=6, causal=True, offset=30
    )
    added, lengths = rng.normal(size=(5, 19)).astype(np.float32), np.array([11, 19], np.int32)
    extras = {"mask": added, "lengths": lengths}
    yield _sample("bf16, additive, padded", (2, 2, 2, 5, 19, 8, 8), extras, bf16, cap=2.0, scale=0.5)


def _error_samples() -> Iterable[ops.ErrorSample]:
    q, k, mask = TensorSpec((2, 4, 5, 8), f32), TensorSpec((2, 2, 7, 8), f32), TensorSpec((5, 7), boolean)
    yield ops.ErrorSample((q, k), {}, "wanted q, k, v")
    yield ops.ErrorSample((q, TensorSpec((2, 3, 7, 8), f32), k), {}, "wanted heads of q a multiple")
    yield ops.ErrorSample((q, k, TensorSpec((2, 2, 6, 8), f32)), {}, "wanted v of")
    yield ops.ErrorSample((q, k, TensorSpec((2, 2, 7, 8), f16)), {}, "wanted v of f32, f16 or bf16")
    yield ops.ErrorSample((q, k, k, TensorSpec((5, 6), boolean)), {}, "wanted a mask")
    yield ops.ErrorSample((q, k, k, TensorSpec((4, 7), boolean)), {}, "wanted tokens of the mask")
    yield ops.ErrorSample((q, k, k, mask, mask), {"extras": "mask mask"}, "wanted extras of the words")
    yield ops.ErrorSample((q, k, k, mask), {"extras": "sinks"}, "wanted sinks of f32")
    yield ops.ErrorSample((q, k, k), {"offset": -1}, "wanted an offset")
    yield ops.ErrorSample((q, k, k), {"scale": float("nan")}, "wanted a scale")
    yield ops.ErrorSample((q, k, k), {"window": -1}, "wanted a window")


OP = ops.Op(
    name=NAME,
    formula="softmax(scale q K^T + mask) V per head of [batch, heads, length, size]",
    parameters=Parameters(
        "q k v *others",
        (*_ATTRIBUTES, Attribute("scale", "float | None", None), Attribute("offset", "int", 0)),
        results=None,
    ),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    tolerance={**TO_TOLERANCE, "f32": 1e-11},
    flops=lambda node: 2.0 * node.inputs[1].bounds[2] * (node.inputs[0].nbytes + node.outputs[0].nbytes) / 4,
    decompose=_decompose,
    vjp=_vjp,
    for_gradient=_for_gradient,
)
