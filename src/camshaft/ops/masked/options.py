"""Options: which keys a token attends to and how scores are modified, for every op and kernel of attention.

Key j is visible to a token at position p of its slot if all of these hold, or j < prefix[slot] (prefix-LM):

- causal: j <= p;
- window w: j > p - w, and without causal also j < p + w;
- chunk c: j // c = p // c;

and if j < lengths[slot] (required without causal) and the boolean mask is true there, also within a prefix.

A visible key's score is s = scale q K; then cap tanh(s / cap) where there is a soft cap; plus slopes[head] (j - p) (ALiBi), or
without causal -slopes[head] |j - p|; plus the additive mask. Each head's sink is one more score, whose value is 0. A token
with no visible key and no sink gives zeros, and a log-sum-exp of -infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from camshaft.dtypes import bf16, boolean, f16, f32, i32
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.parameters import HEAD_DIM, HEADS, KV_HEADS, RING, Attribute
from camshaft.ops.spec import Dim, TensorSpec, bound

# Additional inputs, in the order in which `extras` names them.
EXTRAS = ("mask", "slopes", "sinks", "prefix", "lengths")
ATTRIBUTES = (
    Attribute("causal", "bool", True),
    Attribute("window", "int", 0),
    Attribute("chunk", "int", 0),
    Attribute("cap", "float", 0.0),
    Attribute("lse", "bool", False),
    Attribute("extras", "str", ""),
)
# Those that attention over a paged cache takes.
PAGED = (HEADS, KV_HEADS, HEAD_DIM, Attribute("scale", "float"), Attribute("length", "int | Extent"), *ATTRIBUTES, RING)


@dataclass(frozen=True)
class Options:
    """The options of one use of attention. `window`, `chunk` and `cap` are off at 0. With `lse` there is a second result, the
    log-sum-exp of the scores, f32 [tokens, heads]. `extras` names the additional inputs. With `ring`, key j is in row j mod the
    capacity of its slot's block table."""

    causal: bool = True
    window: int = 0
    chunk: int = 0
    cap: float = 0.0
    lse: bool = False
    extras: tuple[str, ...] = ()
    ring: bool = False

    @classmethod
    def of(cls, op: str, attrs: ops.Attrs) -> Options:
        """Returns the options among an op's attributes. ShapeError for wrong ones."""
        found = {a.name: attrs.get(a.name, a.default) for a in (*ATTRIBUTES, RING)}
        names = found["extras"]
        good = (
            isinstance(names, str) and set(names.split()) <= set(EXTRAS) and len({*names.split()}) == len(names.split())
        )
        ops.expect(good, op, f"extras {names!r}", f"extras of the words {', '.join(EXTRAS)}, each once")
        for name in ("causal", "lse", "ring"):
            ops.expect(isinstance(found[name], bool), op, f"{name} {found[name]!r}", f"{name} True or False")
        for name in ("window", "chunk"):
            n = found[name]
            ops.expect(type(n) is int and n >= 0, op, f"{name} {n!r}", f"a {name} that is an integer of at least 0")
        cap = found["cap"]
        good = isinstance(cap, (int, float)) and isfinite(cap) and cap >= 0
        ops.expect(good, op, f"cap {cap!r}", "a cap that is a finite number of at least 0")
        return cls(**(found | {"extras": tuple(names.split()), "cap": float(cap)}))

    @property
    def is_plain(self) -> bool:
        """Whether attention is plain causal, with no other option."""
        return self == Options()

    def has(self, name: str) -> bool:
        """Whether there is an additional input of this name."""
        return name in self.extras

    def check(self, op: str, extras: Sequence[TensorSpec], sizes: Sizes) -> None:
        """Raises ShapeError unless the additional inputs fit, and the ring is long enough."""
        ops.expect(
            len(extras) == len(self.extras), op, f"{len(extras)} extras", f"{len(self.extras)} that `extras` names"
        )
        ops.expect(
            self.causal or self.has("lengths"),
            op,
            "causal=False",
            "`lengths` among extras, the number of keys of each slot",
        )
        for name, spec in zip(self.extras, extras, strict=True):
            _CHECKS[name](op, name, spec, sizes)
        if self.ring:
            span = min(n for n in (self.window, self.chunk, 1 << 40) if n)
            ops.expect(span <= sizes.capacity, op, f"ring {self}", f"a window or chunk of at most {sizes.capacity}")
            others = [name for name in ("mask", "prefix") if self.has(name)]
            ops.expect(
                self.causal and not others, op, f"ring with {others or 'causal=False'}", "a causal ring without these"
            )

    def span(self, length: int) -> int:
        """Returns the maximum number of keys from the first visible key's block to the last visible key."""
        if self.has("prefix"):
            return length
        sides = 1 if self.causal else 2
        spans = [n for n in (self.window * sides, self.chunk) if n]
        if not spans:
            return length
        return min(spans) + BLOCK_TOKENS if self.ring else min(length, min(spans) + BLOCK_TOKENS)

    def constants(self) -> dict[str, Any]:
        """Returns the options as constants of a kernel."""
        names = ("causal", "window", "chunk", "cap", "lse", "extras", "ring")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Sizes:
    """Sizes that additional inputs must match: tokens of a call, q heads, slots, `length` of keys, and the capacity of a slot."""

    tokens: Dim
    heads: int
    slots: int
    length: int
    capacity: int


def _check_mask(op: str, name: str, spec: TensorSpec, sizes: Sizes) -> None:
    wanted = (
        f"a mask of bool, f32, f16 or bf16 [{sizes.slots} or 1, {sizes.heads} or 1, tokens, {sizes.length} or more]"
    )
    good = spec.is_plain and spec.dtype in (boolean, f32, f16, bf16) and len(spec.shape) == 4
    ops.expect(good, op, spec, wanted)
    slots, heads, tokens, keys = spec.shape
    good = slots in (1, sizes.slots) and heads in (1, sizes.heads) and isinstance(keys, int) and keys >= sizes.length
    ops.expect(good, op, spec, wanted)
    divides = tokens == sizes.tokens or (isinstance(tokens, int) and tokens > 0 and bound(sizes.tokens) % tokens == 0)
    ops.expect(divides, op, spec, f"tokens of the mask to divide {sizes.tokens}, the tokens of q")


def _check_heads(op: str, name: str, spec: TensorSpec, sizes: Sizes) -> None:
    ops.expect(spec == TensorSpec((sizes.heads,), f32), op, spec, f"{name} of f32 [{sizes.heads}]")


def _check_slots(op: str, name: str, spec: TensorSpec, sizes: Sizes) -> None:
    ops.expect(spec == TensorSpec((sizes.slots,), i32), op, spec, f"{name} of i32 [{sizes.slots}]")


_CHECKS = {
    "mask": _check_mask,
    "slopes": _check_heads,
    "sinks": _check_heads,
    "prefix": _check_slots,
    "lengths": _check_slots,
}
