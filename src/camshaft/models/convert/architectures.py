"""The classes of transformers that are converted: the GGUF architecture of each, and what its config adds to the metadata."""

from __future__ import annotations

from dataclasses import replace

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown
from camshaft.models.convert.architecture import Architecture, Keys, MoreKeys
from camshaft.models.convert.delta_rule import delta_keys, rotation_sections
from camshaft.models.convert.encoder_decoder import T5, WHISPER, t5_values
from camshaft.models.convert.families import attention, own
from camshaft.models.convert.families.encoders import bert_name, encoder_changes, encoder_keys, modern_bert_keys
from camshaft.models.convert.families.experts import (
    adjusted_ffn,
    afmoe_experts,
    ernie_experts,
    exaone_experts,
    experts,
    glm4_experts,
    gpt_oss,
    hunyuan_experts,
    indexed,
    lfm2_experts,
    mellum_experts,
    minimax_experts,
    short_convolutions,
)
from camshaft.models.convert.families.gemma4 import gemma4_changes, gemma4_keys
from camshaft.models.convert.families.hybrids import (
    falcon_h1_changes,
    falcon_h1_keys,
    jamba_keys,
    nemotron_keys,
    nemotron_name,
    nemotron_values,
)
from camshaft.models.convert.families.latent import latent_changes, latent_experts, latent_keys
from camshaft.models.convert.families.llama4 import llama4_changes, llama4_keys
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.state_space import granite_hybrid_keys, mamba2_keys, mamba_keys
from camshaft.models.layer_options import XIELU_KEYS


def _soft_caps(config: HubConfig) -> Keys:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    return {name: float(config.number(name)) for name in names if config.get(name)}


def _query_scale(layers: int) -> MoreKeys:
    """attention.scale, unless query_pre_attn_scalar is the head's size, or what readers assume for models with this many
    layers."""

    def keys(config: HubConfig) -> Keys:
        usual = config.size("dim") / config.size("heads") if config.size("layers") == layers else config.head_dim
        wanted = config.number("query_pre_attn_scalar", usual)
        if wanted <= 0:
            raise ModelError(f"{config.path}: query_pre_attn_scalar is {wanted:g}; wanted a number above 0")
        return {} if wanted == usual else {"attention.scale": wanted**-0.5}

    return keys


def _granite(config: HubConfig) -> Keys:
    names = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale"}
    names |= {"attention_multiplier": "attention.scale", "logits_scaling": "logit_scale"}
    return {key: float(config.number(name)) for name, key in names.items() if config.get(name) is not None}


def _parallel(default: bool) -> MoreKeys:
    return lambda config: {"use_parallel_residual": bool(config.get("use_parallel_residual", default))}


def _logit_scale(config: HubConfig) -> Keys:
    return {"logit_scale": float(config.number("logit_scale"))}


def _every_fourth_is_not_rotated(config: HubConfig) -> Keys:
    layers = config.get("no_rope_layers")
    if layers is not None and layers != [int((i + 1) % 4 != 0) for i in range(config.size("layers"))]:
        raise ModelError(f"{config.path}: no_rope_layers is not every fourth layer, which GGUF files of smollm3 have")
    return {}


def _no_attention_bias(config: HubConfig) -> Keys:
    if config.get("attention_bias"):
        raise ModelError(f"{config.path}: attention_bias is true; wanted projections without biases")
    return {}


def _no_alibi(config: HubConfig) -> Keys:
    if config.get("alibi"):
        raise ModelError(f"{config.path}: has alibi; wanted a model with rotary positions")
    return {}


_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")
_GEMMA = {"head_dim": 256, "rms_norm_eps": 1e-6, "sliding_window": 4096, "num_key_value_heads": 4}
_GEMMA3 = {**_GEMMA, "num_attention_heads": 8, "rope_theta": 1e6, "rope_local_base_freq": 10000.0}
_GEMMA3 |= {"max_position_embeddings": 131072}
_GEMMA3N = {
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rope_theta": 1e6,
}
_GEMMA3N |= {"rope_local_base_freq": 10000.0, "max_position_embeddings": 32768}
XIELU = {f".act_fn.{key.removeprefix('xielu.')}": key for key in XIELU_KEYS}
_HALF = {"partial_rotary_factor": 0.5}
_NO_LIMIT = {"max_position_embeddings": 1 << 20}  # recurrent models have none
_LLAMA = Architecture("llama", permuted=True, defaults={"rms_norm_eps": 1e-6})
ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    **dict.fromkeys(
        ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        Architecture("llama4", keys=(llama4_keys,), changes=llama4_changes),
    ),
    "MixtralForCausalLM": Architecture("llama", permuted=True, keys=(experts,)),
    "Qwen2ForCausalLM": Architecture("qwen2"),
    "Qwen2MoeForCausalLM": Architecture("qwen2moe", keys=(experts,)),
    "Qwen3ForCausalLM": Architecture("qwen3"),
    "Qwen3MoeForCausalLM": Architecture("qwen3moe", keys=(experts,)),
    "GemmaForCausalLM": Architecture("gemma", norm_offset=1, defaults={**_GEMMA, "num_key_value_heads": 16}),
    "Gemma2ForCausalLM": Architecture(
        "gemma2",
        norm_offset=1,
        keys=(attention.window_pattern, _soft_caps, _query_scale(46)),
        defaults={**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    **dict.fromkeys(
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        Architecture(
            "gemma3",
            norm_offset=1,
            keys=(attention.window_every(6), attention.window_base, _soft_caps, _query_scale(62)),
            defaults=_GEMMA3,
        ),
    ),
    **dict.fromkeys(
        ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
        Architecture(
            "gemma3n",
            keys=(own.gemma3n_keys, attention.window_base, _soft_caps),
            defaults={**_GEMMA3N, "final_logit_softcapping": 30.0},
            values=own.gemma3n_values,
        ),
    ),
    "Olmo2ForCausalLM": Architecture("olmo2"),
    "Olmo3ForCausalLM": Architecture("olmo2", keys=(attention.window_pattern,)),
    "OlmoeForCausalLM": Architecture("olmoe", keys=(experts,)),
    "Exaone4ForCausalLM": Architecture("exaone4", keys=(attention.window_pattern,)),
    # published files have either name
    **dict.fromkeys(
        ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
        Architecture("exaone-moe", keys=(attention.window_pattern, exaone_experts)),
    ),
    "AfmoeForCausalLM": Architecture("afmoe", keys=(attention.window_pattern, afmoe_experts)),
    "MellumForCausalLM": Architecture("mellum", keys=(attention.window_pattern, attention.window_base, mellum_experts)),
    "Phi3ForCausalLM": Architecture("phi3", keys=(attention.window, attention.longrope)),
    # the published files name the class of their own program
    **dict.fromkeys(
        ("PhimoeForCausalLM", "PhiMoEForCausalLM"), Architecture("phimoe", keys=(attention.phimoe, experts))
    ),
    "SmolLM3ForCausalLM": Architecture("smollm3", permuted=True, keys=(_every_fourth_is_not_rotated,)),
    "ApertusForCausalLM": Architecture("apertus", keys=(_no_attention_bias,), numbers=XIELU),
    "ArceeForCausalLM": Architecture("arcee", permuted=True),
    "NemotronForCausalLM": Architecture("nemotron", norm_offset=1, defaults=_HALF),
    "PhiForCausalLM": Architecture("phi2", defaults={**_HALF, "layer_norm_eps": 1e-5}),
    "GlmForCausalLM": Architecture("chatglm", defaults={**_HALF, "head_dim": 128}),
    "OlmoForCausalLM": Architecture("olmo", permuted=True, keys=(attention.clamp,)),
    "Dots1ForCausalLM": Architecture("dots1", keys=(glm4_experts,)),
    "HunYuanMoEV1ForCausalLM": Architecture("hunyuan-moe", keys=(hunyuan_experts,)),
    "MiniMaxM2ForCausalLM": Architecture("minimax-m2", keys=(minimax_experts,)),
    **dict.fromkeys(
        ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        Architecture("qwen2vl", keys=(rotation_sections,)),
    ),
    "Qwen3VLForConditionalGeneration": Architecture("qwen3vl", keys=(rotation_sections, attention.deepstack)),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        "qwen3vlmoe", keys=(rotation_sections, attention.deepstack, experts)
    ),
    **own.ROWS,
    "SeedOssForCausalLM": Architecture("seed_oss"),
    "Ministral3ForCausalLM": Architecture("mistral3", permuted=True, keys=(attention.temperature,)),
    "GraniteForCausalLM": Architecture("granite", permuted=True, keys=(_granite,)),
    "GraniteMoeForCausalLM": Architecture("granitemoe", permuted=True, keys=(_granite, experts)),
    "GptOssForCausalLM": Architecture("gpt-oss", keys=(gpt_oss, attention.window_every(2))),
    "Starcoder2ForCausalLM": Architecture("starcoder2"),
    "StableLmForCausalLM": Architecture("stablelm", keys=(_parallel(default=False),)),
    "GPT2LMHeadModel": Architecture("gpt2", transposed=True, defaults={"layer_norm_epsilon": 1e-5}),
    "GPTNeoXForCausalLM": Architecture("gptneox", keys=(_parallel(default=True),)),
    "BloomForCausalLM": Architecture("bloom", values=own.bloom_values),
    "FalconForCausalLM": Architecture("falcon", keys=(_no_alibi,), defaults={"max_position_embeddings": 2048}),
    "CohereForCausalLM": Architecture("command-r", keys=(_logit_scale,)),
    "Cohere2ForCausalLM": Architecture("cohere2", keys=(_logit_scale, attention.window_every(4))),
    **dict.fromkeys(
        ("Lfm2ForCausalLM", "Lfm2VlForConditionalGeneration"),
        Architecture("lfm2", keys=(short_convolutions, adjusted_ffn)),
    ),
    "Lfm2MoeForCausalLM": Architecture("lfm2moe", keys=(short_convolutions, lfm2_experts)),
    "Glm4ForCausalLM": Architecture("glm4"),
    "Glm4MoeForCausalLM": Architecture("glm4moe", keys=(glm4_experts,)),
    "Ernie4_5ForCausalLM": Architecture("ernie4_5"),
    "Ernie4_5_MoeForCausalLM": Architecture("ernie4_5-moe", keys=(ernie_experts,)),
    "HunYuanDenseV1ForCausalLM": Architecture("hunyuan-dense"),
    **dict.fromkeys(
        ("MambaForCausalLM", "FalconMambaForCausalLM"), Architecture("mamba", keys=(mamba_keys,), defaults=_NO_LIMIT)
    ),
    "Mamba2ForCausalLM": Architecture("mamba2", keys=(mamba2_keys,), defaults=_NO_LIMIT),
    "GraniteMoeHybridForCausalLM": Architecture(
        "granitehybrid", permuted=True, keys=(granite_hybrid_keys, _granite, experts)
    ),
    "FalconH1ForCausalLM": Architecture("falcon-h1", keys=(falcon_h1_keys,), changes=falcon_h1_changes),
    "JambaForCausalLM": Architecture("jamba", keys=(jamba_keys,), defaults={"max_position_embeddings": 1 << 18}),
    "NemotronHForCausalLM": Architecture(
        "nemotron_h", keys=(nemotron_keys,), values=nemotron_values, name_of=nemotron_name
    ),
    **dict.fromkeys(
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
        Architecture("deepseek2", keys=(latent_keys, latent_experts), changes=latent_changes),
    ),
    **{
        name: Architecture(row, keys=(latent_keys, latent_experts, indexed), changes=latent_changes)
        for name, row in (("DeepseekV32ForCausalLM", "deepseek32"), ("GlmMoeDsaForCausalLM", "glm-dsa"))
    },
    **dict.fromkeys(
        ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        Architecture("gemma4", keys=(gemma4_keys, attention.window_base, _soft_caps), changes=gemma4_changes),
    ),
    **dict.fromkeys(
        (f"{name}{kind}" for name in ("Bert", "XLMRoberta", "Roberta") for kind in _HEADS),
        Architecture("bert", keys=(encoder_keys,), changes=encoder_changes, name_of=bert_name),
    ),
    "NomicBertModel": Architecture("nomic-bert", keys=(encoder_keys,)),
    "JinaEmbeddingsV3Model": Architecture("jina-bert-v3", keys=(encoder_keys,)),
    **dict.fromkeys(
        ("JinaBertModel", "JinaBertForMaskedLM"),
        Architecture("jina-bert-v2", keys=(encoder_keys,), changes=encoder_changes),
    ),
    **dict.fromkeys(
        (f"ModernBert{kind}" for kind in _HEADS), Architecture("modern-bert", keys=(encoder_keys, modern_bert_keys))
    ),
    "Qwen3NextForCausalLM": Architecture("qwen3next", norm_offset=1, keys=(delta_keys, experts)),
    **dict.fromkeys(
        ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        Architecture("qwen35", norm_offset=1, keys=(delta_keys, rotation_sections), in_turn=True),
    ),
    **dict.fromkeys(
        ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        Architecture("qwen35moe", norm_offset=1, keys=(delta_keys, rotation_sections, experts), in_turn=True),
    ),
    "T5ForConditionalGeneration": Architecture("t5", encoder_decoder=T5, values=t5_values),
    "WhisperForConditionalGeneration": Architecture("whisper", encoder_decoder=WHISPER),
}


def architecture_of(config: HubConfig) -> Architecture:
    """The row of a config's class. Raises ModelError, listing those that have one."""
    if config.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{config.path}: no conversion of {shown(config.architecture)}; camshaft converts {known}")
    row = ARCHITECTURES[config.architecture]
    return row if row.name_of is None else replace(row, name=row.name_of(config.values, config.path))


def completed(config: HubConfig, row: Architecture) -> HubConfig:
    """A config with what its file leaves out."""
    return replace(config, values=row.values({**row.defaults, **config.values}, config.path))
