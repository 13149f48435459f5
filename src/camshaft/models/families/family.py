"""Family: the options by which a model family differs from the plain decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """How a family differs from the plain decoder. Options that a file's metadata also has are defaults for files without it.

    Norms
        norms: rms_norm before attention and feed-forward ('pre'), of their results ('post'), both, or of the sums ('sum').
        norm: rms_norm ('rms'), layer_norm ('layer', with a bias unless `norm_bias` is False) or without weights ('bare').
        ffn_norm, output_norm: the tensors of the feed-forward's norm and of the last norm.
        qk_norm: rms_norm of q and k: of each head ('head'; 'file': if the file has its weights; 'heads': with weights per head;
        'bare': without weights, in layers that rotate, except in models of 128 experts) or of whole rows ('row').
        norms_rotated: q and k are normed after the rotation.
        norms_values: values are normed, without weights; files without V use the projection of keys.
        embedding_norm: embeddings are normed.

    Positions
        pairing: which elements of a head rotate together; GGUF permutes q and k of families with 'interleaved'.
        rotates: whether q and k rotate (RoPE). rotates_if_finetuned: only if the file sets rope.scaling.finetuned.
        unrotated_every: every n-th layer does not rotate.
        rotates_windows_only: in files with a window, only layers with it rotate.
        window_rope: layers with a window rotate like others ('same'), or unscaled, by rope.freq_base_swa or window_theta
        ('plain').
        yarn_truncates: the ends of YaRN's ramp are whole dimensions.
        axes: how pairs are assigned to the axes of images (rope.dimension_sections).
        learned_positions: position embeddings instead of RoPE.
        alibi: ALiBi instead of RoPE; alibi_layers: in files with this many layers.

    Attention
        windows: attention.sliding_window applies, except in every n-th layer of full_every (0: in none): the last of n, or with
        full_first the first.
        chunks: windows are chunks of the context instead; the default chunk size in tokens.
        biases: of q, k and v ('qkv'; 'file': if the file has them), also of the output ('attention'), or of all linear layers
        ('all').
        fused: q, k and v are one tensor ('qkv'), or gate and up ('up'), or both ('all').
        sinks: each head has an additional score, whose value is 0.
        gated_attention: results are gated; the gate is part of q ('joined') or a projection ('apart').
        query_scale_layers: in files with this many layers scores are divided by sqrt(dim / heads), not by sqrt(head_dim).
        score_scale: the scale of scores, if not 1 / sqrt(head_dim).
        temperature: scores are scaled by position, only in layers without RoPE; the default scale.
        softcaps: the soft caps of scores and logits.
        latent: multi-head latent attention; under YaRN its scores are scaled.
        indexed: layers select keys in texts longer than attention.indexer.top_k tokens; such texts are not supported.

    Feed-forward and experts
        gated: the feed-forward is down(act(gate) * up), else down(act(up)). activation: act.
        halves_width: its width is half of the file's.
        normalizes_experts: the chosen experts' weights are divided by their sum. expert_score: how logits become weights.
        expert_biases: experts and their router have biases. shared_experts: how many experts are shared.
        weighs_inputs: weights multiply the experts' inputs; one expert is chosen.
        routes_inputs: the router sees the layer's input.
        dense_unrouted: layers without a router have no experts.
        dense_beside_experts: layers with experts also have a dense feed-forward: with its own norms ('normed'), or if the file
        has it, and the sum is divided by sqrt(2) ('halved').

    Layers
        parallel: attention and feed-forward have the same input; a file's use_parallel_residual takes precedence.
        attention, feed_forward: whether layers have them.
        one_block: each layer has one norm and either attention, a feed-forward or a recurrence.
        layers_apart: each layer has attention, a projection or neither, then a feed-forward or none, by the file's sizes.
        recurrent: the kind of recurrent layers. side_by_side: attention and a recurrence have the same input and are added.
        attention_every: only every n-th layer has attention (0: by the file's head_count_kv).
        tiled_heads: value heads share key heads in a repeating pattern, not in runs.
        layer_sizes: layers differ in head and feed-forward sizes, and the last ones reuse keys of earlier ones.
        per_layer: each layer has its own token embeddings, if the file has them, and a scale of its result.
        loops: the layers run num_loops times, with the last norm between, unless the file sets skip_loop_final_norm.
        builder: the module of models/families that builds its layers instead of models/decoder.py.

    Embeddings and output
        embedding_scale: embeddings are multiplied by sqrt(dim) ('dim') or by the file's embedding_scale.
        scales: default scales of embeddings, residuals, scores and logits, of MiniCPM or Grok.
        multiplies_logits: the file's logit_scale multiplies logits; for other families it divides them.
        one_table: the output matrix is also the embedding table, if the file has none.
        encoder: tokens attend to all tokens of their text, and the result is a vector for each; windows extend to both sides.
        one_text: a run has one text.
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
