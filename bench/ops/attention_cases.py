"""The cases of bench/ops/attention.py: heads, caches and numbers of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.models.layer_options import LayerOptions


@dataclass(frozen=True)
class Heads:
    """q heads, kv heads, their size; the caches that a plan has, a layer's each."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_layers: int = 1
    window: int = 0
    architecture: str = "gemma3"  # what a KV cache asks of a model

    @property
    def layers(self) -> tuple[LayerOptions, ...]:
        """A layer for each cache."""
        return (LayerOptions(self.window),) * self.n_layers

    def of_layer(self, layer: int) -> Heads:
        """All layers are alike."""
        return self

    def __str__(self) -> str:
        return f"{self.n_heads}/{self.n_kv_heads} heads of {self.head_dim}"


@dataclass(frozen=True)
class Case:
    """The last `tokens` tokens of `keys`, over a cache in a form that LanguageModel knows; `writes`: and what fills it first."""

    heads: Heads
    tokens: int
    keys: int
    form: str = "f16"
    writes: bool = False

    @property
    def label(self) -> str:
        if self.writes:
            return f"causal SDPA, {self.tokens} tokens, {self.heads}"
        what = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        seen = f", window of {self.heads.window}" if self.heads.window else ""
        return f"{what} at {self.keys} keys, {self.heads}{seen}"

    @property
    def seen(self) -> int:
        """Keys that a token sees at most."""
        return min(self.keys, self.heads.window or self.keys)

    @property
    def flops(self) -> float:
        """Of q K and p V, causal."""
        window = self.heads.window
        pairs = self.tokens * (self.seen if window else self.keys - (self.tokens - 1) / 2)
        return 4.0 * pairs * self.heads.n_heads * self.heads.head_dim

    @property
    def key_nbytes(self) -> float:
        """A key and its value of every head."""
        bits = {"f32": 32, "q8_0": 8.5, "q4_0": 4.5}.get(self.form, 16)
        return 2 * self.heads.n_kv_heads * self.heads.head_dim * bits / 8


SMOL, QWEN, LLAMA = Heads(9, 3, 64), Heads(14, 2, 64), Heads(32, 8, 128)
WINDOWED = Heads(8, 4, 256, window=1024)  # of Gemma 3 4B
SDPA = Case(Heads(8, 8, 64), 1024, 1024, "f32", writes=True)
CASES = (
    SDPA,
    *(Case(SMOL, 1, keys, form) for keys in (512, 4096) for form in ("f16", "bf16", "q8_0", "q4_0")),
    *(Case(heads, 1, 4096) for heads in (QWEN, LLAMA)),
    *(Case(SMOL, 512, keys) for keys in (512, 4096)),
    Case(SMOL, 512, 4096, "q8_0"),
    Case(QWEN, 512, 4096),
    Case(Heads(8, 8, 72), 512, 512),
    *(Case(WINDOWED, tokens, keys) for tokens in (1, 512) for keys in (2048, 32768)),
)
