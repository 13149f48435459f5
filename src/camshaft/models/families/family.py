"""Family: the options of one decoder by which a family differs from others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """How a family differs from the plain decoder.

    pairing: which elements of a head rotate together; GGUF permutes q and k of families with 'interleaved'.
    norms: rms_norm before attention and feed-forward ('pre'), after them ('post') or both, or of the sums ('sum').
    ffn_norm: the tensor of that before the feed-forward.
    norm: rms_norm, or layer_norm, with a bias unless norm_bias is False, or without weights ('bare'). qk_norm: rms_norm of q and
    k, of each head or whole row ('file': of each head where the file has their weights; 'heads': of each head with weights of its
    own; 'bare': of each head without weights, in layers that rotate, but for models of 128 experts). norms_rotated: these norms
    are of rotated q and k.
    parallel: attention and feed-forward have the same input; a file's use_parallel_residual takes precedence.
    biases: of q, k and v ('qkv'; 'file': where the file has them), of attention's output too ('attention'), or of all linear
    layers ('all').
    fused: q, k and v are one tensor ('qkv'), or gate and up ('up'), or both are ('all').
    gated: the feed-forward is down(act(gate) * up), or else down(act(up)). halves_width: it is half as wide as the file says.
    sinks: each head's scores have one more, whose value is 0. learned_positions: embeddings of positions, and no rotation.
    embedding_scale: embeddings are multiplied by sqrt(dim) ('dim') or by the file's embedding_scale.
    one_table: the output's matrix is the table of embeddings too, where the file has none.
    windows: attention.sliding_window applies, but for every n-th layer of full_every, which sees all tokens (0: no layer
    does): the last of n, or the first one with full_first.
    chunks: windows are chunks of the context instead; the default chunk size in tokens.
    window_rope: layers with a window rotate as all ('same'), or without scaling by rope.freq_base_swa or window_theta ('plain').
    yarn_truncates: the ends of YaRN's ramp are whole dimensions.
    unrotated_every: every n-th layer does not rotate. rotates_windows_only: in a file with a window, layers without do not.
    query_scale_layers: in files with this many layers the scores are divided by sqrt(dim / heads), not by sqrt(head_dim).
    temperature: scores are scaled by position, only in layers without RoPE; the default scale.
    softcaps: attention's and the logits', where the file names none.
    scales: those of embeddings, residuals, scores and logits are MiniCPM's or Grok's where the file has none.
    multiplies_logits: the file's logit_scale multiplies logits, and does not divide them.
    encoder: tokens see all of their text, and the result is a vector for each; windows are on both sides, half on each.
    one_text: a run has one text.
    embedding_norm: embeddings are normed. alibi: scores are less by the distance of tokens, and nothing rotates; alibi_layers: so
    it is in files with this many layers.
    normalizes_experts: the chosen experts' weights are divided by their sum. expert_score: how logits become these weights. Both
    where the file does not say.
    shared_experts: how many are shared, where the file does not say. weighs_inputs: weights multiply what experts see, of which
    one is chosen.
    routes_inputs: the router sees what a layer begins with.
    recurrent: the kind of the layers without attention. attention_every: only every n-th layer has attention, where the file does
    not say which (0: it does, by head_count_kv). output_norm: the tensor of the last norm.
    layers_apart: a layer has attention, a projection in its place, or neither, and a feed-forward or none, by the file's numbers
    of heads and widths.
    attention, feed_forward: whether its layers have them. one_block: each layer has either these or a recurrence, and one norm.
    rotates: whether queries and keys rotate. side_by_side: attention and a recurrence have the same input, and are added.
    dense_unrouted: layers without a router have no experts. dense_beside_experts: other layers have a dense feed-forward too,
    each with norms of its own ('normed'), or where the file has it, and both are divided by sqrt(2) ('halved').
    score_scale: what scores are multiplied by, where it is not 1 / sqrt(head_dim).
    layer_sizes: layers may differ in the sizes of heads and feed-forwards, and the last ones read the keys of earlier ones.
    norms_values: values are normed, without weights, and are the projection of keys where the file has none for them.
    per_layer: each layer has embeddings of tokens of its own, where the file has them, and a scale of its result.
    rotates_if_finetuned: layers rotate where the file says rope.scaling.finetuned.
    expert_biases: experts and their router have biases.
    latent: attention to latents of keys and values, whose rotation keeps its magnitude under YaRN: the scores are scaled.
    indexed: layers choose what they see of texts longer than attention.indexer.top_k tokens; such texts are not run.
    axes: how the pairs of a head have the axes of rotations in pictures, by the file's rope.dimension_sections.
    loops: the layers run as often as the file's num_loops says, with the last norm between, unless it has skip_loop_final_norm.
    builder: the file of models/families that builds its layers, where they are its own.
    tiled_heads: heads of values share those of keys in turn, not in runs. gated_attention: what is found has a gate,
    which comes with q ('joined') or is a projection of its own ('apart').
    """

    pairing: Literal["interleaved", "neox"]
    norms: Literal["pre", "post", "both", "sum"] = "pre"
    ffn_norm: str = "ffn_norm"
    norm: Literal["rms", "layer", "bare"] = "rms"
    norm_bias: bool = True
    parallel: bool = False
    biases: Literal["", "qkv", "file", "attention", "all"] = ""
    qk_norm: Literal["", "head", "heads", "row", "file", "bare"] = ""
    norms_rotated: bool = False
    fused: Literal["", "qkv", "up", "all"] = ""
    gated: bool = True
    halves_width: bool = False
    activation: Literal["silu", "gelu", "gelu_erf", "clamped_swiglu", "relu", "relu_squared", "xielu"] = "silu"
    sinks: bool = False
    learned_positions: bool = False
    embedding_scale: Literal["", "dim"] = ""
    one_table: bool = False
    windows: bool = False
    full_every: int = 0
    full_first: bool = False
    chunks: int = 0
    window_rope: Literal["same", "plain"] = "same"
    window_theta: float = 0.0
    yarn_truncates: bool = True
    unrotated_every: int = 0
    rotates_windows_only: bool = False
    query_scale_layers: int = 0
    temperature: float = 0.0
    softcaps: tuple[float, float] = (0.0, 0.0)
    multiplies_logits: bool = False
    scales: Literal["", "minicpm", "grok"] = ""
    normalizes_experts: bool = True
    expert_biases: bool = False
    expert_score: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    shared_experts: int = 0
    weighs_inputs: bool = False
    routes_inputs: bool = False
    encoder: bool = False
    one_text: bool = False
    embedding_norm: bool = False
    alibi: bool = False
    alibi_layers: int = 0
    recurrent: Literal["", "short_conv", "delta", "mamba", "mamba2", "plamo2", "kda", "rwkv"] = ""
    attention: bool = True
    feed_forward: bool = True
    one_block: bool = False
    layers_apart: bool = False
    rotates: bool = True
    side_by_side: bool = False
    dense_unrouted: bool = False
    dense_beside_experts: Literal["", "normed", "halved"] = ""
    score_scale: float = 0.0
    layer_sizes: bool = False
    norms_values: bool = False
    per_layer: bool = False
    attention_every: int = 0
    output_norm: str = "output_norm"
    tiled_heads: bool = False
    gated_attention: Literal["", "joined", "apart"] = ""
    rotates_if_finetuned: bool = False
    latent: bool = False
    indexed: bool = False
    axes: Literal["", "contiguous", "interleaved"] = ""
    loops: bool = False
    builder: Literal["", "rwkv", "gemma3n", "t5"] = ""

    def has_alibi(self, n_layers: int) -> bool:
        """Whether files with this many layers have ALiBi: scores fall with the distance of tokens."""
        return self.alibi or n_layers == self.alibi_layers
