"""The names that GGUF files have for the tensors of transformers' models."""

from __future__ import annotations

import re
from dataclasses import dataclass

from camshaft.models.convert.families import encoders
from camshaft.models.families import FAMILIES

_TOP = {
    "embed_tokens": "token_embd",
    "wte": "token_embd",
    "embed_in": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "wpe": "position_embd",
    "norm": "output_norm",
    "ln_f": "output_norm",
    "final_layer_norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    **dict.fromkeys(("embedding_norm", "word_embeddings_layernorm"), "token_embd_norm"),
    "lm_head": "output",
    "embed_out": "output",
}
_STATE_SPACE = {"in_proj": "in", "conv1d": "conv1d", "x_proj": "x", "dt_proj": "dt", "norm": "norm", "out_proj": "out"}
_STATE_SPACE |= {"dt_layernorm": "dt_norm", "b_layernorm": "b_norm", "c_layernorm": "c_norm"}
_INDEXER = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "self_attn.gate_proj": "attn_gate",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    **{f"self_attn.indexer.{theirs}": f"indexer.{ours}" for theirs, ours in _INDEXER.items()},
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "feed_forward.router": "ffn_gate_inp",
    "pre_ff_layernorm": "ffn_norm",
    "router.proj": "ffn_gate_inp",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.c_proj": "ffn_down",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.wg": "ffn_gate_inp",
    "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
    "mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "mlp.shared_mlp.down_proj": "ffn_down_shexp",
    **dict.fromkeys(("mlp.router", "mlp.router.gate"), "ffn_gate_inp"),
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
    "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
    "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "shared_mlp.input_linear": "ffn_gate_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    **{f"{part}.{name}": f"ssm_{ours}" for part in ("mixer", "mamba") for name, ours in _STATE_SPACE.items()},
    "norm": "attn_norm",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_qkvz": "attn_qkvz",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "norm_attn_norm.attn.Wqkv": "attn_qkv",
    "norm_attn_norm.attn.out_proj": "attn_output",
    "norm_attn_norm.norm_1": "attn_norm",
    "norm_attn_norm.norm_2": "attn_output_norm",
    "ffn.router.layer": "ffn_gate_inp",
    **{f"self_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
    **{f"self_attn.{part}_proj": f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")},
    "self_attn.b_proj": "ssm_beta",
    "self_attn.o_norm": "ssm_norm",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    "input_layernorm": "attn_norm",
    "attention_layernorm": "attn_norm",
    "feedforward_layernorm": "ffn_norm",
    "operator_norm": "attn_norm",
    "ln_1": "attn_norm",
    "ln_mlp": "attn_norm",
    "ln_attn": "attn_norm_2",
    "ln_2": "ffn_norm",
    "ffn_norm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "pre_mlp_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# Parameters without '.weight' or '.bias' that have neither or the other one in GGUF.
_BARE = {
    "altup.correct_output_scale": ("altup_correct_scale", ".weight"),
    "ffn.experts.mlp.w1": ("ffn_gate_exps", ".weight"),
    "ffn.experts.mlp.v1": ("ffn_up_exps", ".weight"),
    "ffn.experts.mlp.w2": ("ffn_down_exps", ".weight"),
    "self_attn.A_log": ("ssm_a", ""),
    "self_attn.dt_bias": ("ssm_dt", ".bias"),
    "linear_attn.A_log": ("ssm_a", ""),
    "linear_attn.dt_bias": ("ssm_dt", ".bias"),
    **{f"{part}.A_log": ("ssm_a", "") for part in ("mixer", "mamba")},
    **{f"{part}.D": ("ssm_d", "") for part in ("mixer", "mamba")},
    **{f"{part}.dt_bias": ("ssm_dt", ".bias") for part in ("mixer", "mamba")},
    "mlp.e_score_correction_bias": ("exp_probs_b", ".bias"),
    "block_sparse_moe.e_score_correction_bias": ("exp_probs_b", ".bias"),
    "mlp.gate.e_score_correction_bias": ("exp_probs_b", ".bias"),
    "mlp.moe_statics.e_score_correction_bias": ("exp_probs_b", ".bias"),
    "mlp.gate.moe_statics.e_score_correction_bias": ("exp_probs_b", ".bias"),
    "mlp.expert_bias": ("exp_probs_b", ".bias"),
    "feed_forward.expert_bias": ("exp_probs_b", ".bias"),
    "mixer.gate.e_score_correction_bias": ("exp_probs_b", ".bias"),
    "layer_scalar": ("layer_output_scale", ".weight"),
    "router.scale": ("ffn_gate_inp", ".scale"),
    "router.per_expert_scale": ("ffn_down_exps", ".scale"),
}
# Experts, stacked in one tensor by name.
_EXPERT = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
_PREFIX = re.compile(r"(?:(?:model|transformer|gpt_neox|backbone|language_model|bert|roberta|encoder|new)\.)*")
_IN_LAYER = re.compile(r"(?:layers|layer|blocks|h)\.([0-9]{1,4})\.(.+)")
_STREAM = re.compile(r"altup_(projections|unembed_projections)\.([0-9])\.weight")
_ONE_EXPERT = re.compile(r"(?:mlp|block_sparse_moe|feed_forward|mixer)\.experts\.([0-9]{1,4})\.(\w+)\.weight")
_STACKED = re.compile(
    r"(?:(?:mlp|block_sparse_moe|feed_forward|mixer)\.)?(?:experts\.)?"
    r"(gate_up_proj|up_proj|down_proj|input_linear|output_linear)(_bias|\.weight)?"
)
_STACKED_PARTS = {"gate_up_proj": "gate_up", "input_linear": "gate_up", "up_proj": "up"}
_STACKED_PARTS |= {"down_proj": "down", "output_linear": "down"}
# Tensors that are computed again, or belong to parts of a model that GGUF keeps in another file.
_LEFT_OUT = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|attention\.bias|attention\.masked_bias)$"
    r"|(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|mtp|audio_tower|embed_vision|embed_audio)\..*"
)


@dataclass(frozen=True)
class NewName:
    """A tensor's name in the GGUF file without '.weight' or '.bias', and that ending; `expert` is the number of one of the
    tensors that are stacked. `name` ends with 'gate_up_exps' where two tensors of the file are in one."""

    name: str
    ending: str
    expert: int | None = None


def is_left_out(name: str) -> bool:
    """Whether a tensor has no place in the file."""
    return _LEFT_OUT.fullmatch(name) is not None


def layer_of(name: str) -> int:
    """The number of a tensor's layer, -1 for one outside of layers."""
    layer = _IN_LAYER.fullmatch(name[_PREFIX.match(name).end() :])  # type: ignore[union-attr]
    return -1 if layer is None else int(layer[1])


def new_name(name: str, architecture: str) -> NewName | None:
    """The name of a tensor in a GGUF file; None if it has none."""
    rest = name[_PREFIX.match(name).end() :]  # type: ignore[union-attr]  # it matches nothing too
    layer = _IN_LAYER.fullmatch(rest)
    is_encoder = FAMILIES[architecture].encoder
    if layer is None:
        if stream := _STREAM.fullmatch(rest):
            part = stream[1].replace("projections", "proj").replace("unembed", "unembd")
            return NewName(f"altup_{part}", ".weight", int(stream[2]))
        stem, ending = _split(rest)
        top = _TOP | encoders.TOP if is_encoder else _TOP
        return NewName(top[stem], ending) if stem in top else None
    prefix, inner = f"blk.{layer[1]}", layer[2]
    if architecture == "kimi-linear":  # whose dense layers have this name too, for tensors that are not stacks
        inner = inner.replace("block_sparse_moe.", "mlp.")
    if is_encoder:
        stem, ending = _split(inner)
        return NewName(f"{prefix}.{encoders.LAYER[stem]}", ending) if stem in encoders.LAYER else None
    if one := _ONE_EXPERT.fullmatch(inner):
        return NewName(f"{prefix}.ffn_{_EXPERT[one[2]]}_exps", ".weight", int(one[1])) if one[2] in _EXPERT else None
    experts = "experts." in inner or "sparse_moe" in inner
    if experts and (stacked := _STACKED.fullmatch(inner)):
        part = _STACKED_PARTS[stacked[1]]
        return NewName(f"{prefix}.ffn_{part}_exps", ".bias" if stacked[2] == "_bias" else ".weight")
    if inner in _BARE:
        bare, ending = _BARE[inner]
        return NewName(f"{prefix}.{bare}", ending)
    stem, ending = _split(inner)
    if stem == "post_attention_layernorm":
        family = FAMILIES[architecture]
        return NewName(
            f"{prefix}.{family.ffn_norm if family.norms == 'pre' or architecture == 'glm4' else 'post_attention_norm'}",
            ending,
        )
    return NewName(f"{prefix}.{_LAYER[stem]}", ending) if stem in _LAYER else None


def _split(name: str) -> tuple[str, str]:
    """A name and its ending; sinks are weights without one."""
    stem, dot, ending = name.rpartition(".")
    return (stem, dot + ending) if ending in ("weight", "bias") else (name, ".weight")
