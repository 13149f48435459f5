"""The tiny models that see pictures: a row of sizes, metadata and transformers' processor for each projector."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock, patch

import transformers

from scripts.oracles.tiny.model import LOCAL, LOCAL_KEYS, MOE, MOE_KEYS, NUMBERS_OF_8_BITS, TinyModel

MEAN, STD = [0.5, 0.4, 0.6], [0.5, 0.25, 0.3]
FIRST_SEED = 300
ASCII = 131  # tokens: the control tokens, the bytes of ASCII, one merge


@dataclass(frozen=True)
class TinyVision:
    """One model to make. `sizes` are those of vision_config in transformers' words, `keys` the metadata of the second file.

    `text` is the text model; `more` are the control tokens of pictures, of which `marker` stands for each token of one.
    `ids` are the control tokens that its config names.
    `prompts` have `written` for each picture, whose width and height are in `pictures`."""

    name: str
    family: str
    projector: str
    text: TinyModel
    sizes: Mapping[str, Any]
    keys: Mapping[str, Any]
    more: tuple[str, ...]
    marker: str
    written: str
    processor: Callable[[Any], Any]
    pictures: tuple[tuple[int, int], ...] = ((37, 23), (61, 90))
    options: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def prompts(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Texts, and the numbers of their pictures."""
        seen = f"the {self.written}in and"
        return (seen, (0,)), (f"Say{self.written} and {self.written} the ring", (1, 0))


def _idefics3(tokenizer: Any) -> Any:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, image_mean=MEAN, image_std=STD
    )
    return transformers.Idefics3Processor(pictures, tokenizer, image_seq_len=4)


def _gemma3(tokenizer: Any) -> Any:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    names = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    for name, token in names.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    pictures = Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, image_mean=MEAN, image_std=STD)
    return transformers.Gemma3Processor(pictures, tokenizer, image_seq_length=4)


def _qwen(tokenizer: Any, kind: str) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    limits = {"shortest_edge": 64, "longest_edge": 900}
    pictures = Qwen2VLImageProcessorPil(size=limits, patch_size=4, merge_size=2, image_mean=MEAN, image_std=STD)
    base = getattr(transformers, kind)
    # It wants a processor of videos, which needs torchvision.
    made = type(kind, (base,), {"check_argument_for_proper_class": lambda *_: None})
    return made(pictures, tokenizer, video_processor=None)


_QWEN = {"intermediate_size": 24, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32}
_QWEN_LIMITS = {"vision.image_min_pixels": 64, "vision.image_max_pixels": 900, "vision.spatial_merge_size": 2}
_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def _pixtral(tokenizer: Any) -> Any:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    # Its module imports functions of torchvision, which a processor with Pillow does not call.
    names = (
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.v2",
        "torchvision.transforms.v2.functional",
    )
    with patch.dict(sys.modules, {name: MagicMock() for name in names}):
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    pictures = PixtralImageProcessorPil(size={"longest_edge": 48}, patch_size=4, image_mean=MEAN, image_std=STD)
    return PixtralProcessor(pictures, tokenizer, patch_size=4, spatial_merge_size=2)


def _gemma4(tokenizer: Any) -> Any:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    names = {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>", "audio_token": "<|audio|>"}
    names |= {"boa_token": "<|audio>", "eoa_token": "<audio|>"}
    for name, token in names.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.pad_token = "<|endoftext|>"
    pictures = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    parts = {"check_argument_for_proper_class": lambda *_: None}
    made = type("Gemma4Processor", (transformers.Gemma4Processor,), parts)
    return made(None, pictures, tokenizer, None)


_GEMMA4_TOKENS = ("<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>")
_GEMMA4_KEYS = {
    "vision.projector.scale_factor": 2,
    "vision.image_max_pixels": 70 * 64,
    "vision.image_mean": [0.0] * 3,
    "vision.image_std": [1.0] * 3,
}
_GEMMA4_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "image_size": 224,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 140,
}


def _gemma4_text(name: str, window: int, options: dict[str, Any], keys: dict[str, Any]) -> TinyModel:
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4}
    return TinyModel(
        name,
        "Gemma4",
        16,
        16,
        heads=2,
        kv_heads=1,
        head_dim=8,
        tied=True,
        rope=rope,
        options={
            "model_type": "gemma4_text",
            "sliding_window": window,
            "global_head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
            "pad_token_id": 0,
            **options,
        },
        keys={
            **{f"attention.{part}_length{end}": 8 for part in ("key", "value") for end in ("", "_swa")},
            "rope.dimension_count": 8,
            "rope.dimension_count_swa": 8,
            "rope.freq_base_swa": 1000.0,
            "attention.sliding_window": window,
            "attention.sliding_window_pattern": [True, False],
            **keys,
        },
        values=NUMBERS_OF_8_BITS,
        n_vocab=ASCII,
    )


def _sections(*pairs: int) -> dict[str, Any]:
    return {"rope_type": "default", "mrope_section": [*pairs], "rope_theta": 10000.0}


MODELS = (
    TinyVision(
        "idefics3",
        "Idefics3",
        "idefics3",
        TinyModel(
            "idefics3", "Llama", 32, 64, heads=2, kv_heads=1, head_dim=16, values=NUMBERS_OF_8_BITS, n_vocab=ASCII
        ),
        {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        {"use_gelu": True, "vision.projector.scale_factor": 2, "vision.preproc_image_size": 64},
        (
            *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        "<image>",
        "<image>",
        _idefics3,
        options={"scale_factor": 2},
    ),
    TinyVision(
        "gemma3",
        "Gemma3",
        "gemma3",
        TinyModel(
            "gemma3",
            "Gemma3",
            32,
            48,
            heads=2,
            kv_heads=1,
            head_dim=16,
            tied=True,
            theta=1e6,
            options={
                **LOCAL,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
                "query_pre_attn_scalar": 16,
                "final_logit_softcapping": None,
                "model_type": "gemma3_text",
            },
            keys=LOCAL_KEYS,
            values=NUMBERS_OF_8_BITS,
            n_vocab=ASCII,
        ),
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 4,
            "vision_use_head": False,
        },
        {"use_gelu": True},
        ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        "<image_soft_token>",
        "<start_of_image>",
        _gemma3,
        options={"mm_tokens_per_image": 4, "boi_token_index": 131, "eoi_token_index": 133},
    ),
    TinyVision(
        "qwen2.5vl",
        "Qwen2_5_VL",
        "qwen2.5vl_merger",
        TinyModel(
            "qwen2.5vl",
            "Qwen2VL",
            32,
            48,
            heads=2,
            kv_heads=1,
            head_dim=16,
            options={"model_type": "qwen2_5_vl_text", "rope_parameters": _sections(2, 3, 3)},
            keys={"rope.dimension_sections": [2, 3, 3, 0]},
            values=NUMBERS_OF_8_BITS,
            n_vocab=ASCII,
        ),
        {**_QWEN, "depth": 3, "window_size": 16, "fullatt_block_indexes": [1], "image_size": 560},
        {"use_silu": True, "vision.n_wa_pattern": 2, "vision.window_size": 16, **_QWEN_LIMITS},
        _QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: _qwen(tokenizer, "Qwen2_5_VLProcessor"),
        ids=_QWEN_IDS,
    ),
    TinyVision(
        "qwen3vl",
        "Qwen3VL",
        "qwen3vl_merger",
        TinyModel(
            "qwen3vl",
            "Qwen3VL",
            32,
            48,
            heads=2,
            kv_heads=1,
            head_dim=16,
            n_layers=3,
            options={"model_type": "qwen3_vl_text", "rope_parameters": _sections(4, 2, 2)},
            keys={"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 2},
            values=NUMBERS_OF_8_BITS,
            n_vocab=ASCII,
        ),
        {**_QWEN, "depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 25, "image_size": 20},
        {"use_gelu": True, "vision.is_deepstack_layers": [True, True, False], **_QWEN_LIMITS},
        _QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: _qwen(tokenizer, "Qwen3VLProcessor"),
        ids=_QWEN_IDS,
    ),
    TinyVision(
        "pixtral",
        "Mistral3",
        "pixtral",
        TinyModel(
            "pixtral",
            "Mistral",
            32,
            48,
            heads=2,
            kv_heads=1,
            head_dim=16,
            tied=True,
            options={"sliding_window": None},
            values=NUMBERS_OF_8_BITS,
            n_vocab=ASCII,
        ),
        {
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "image_size": 48,
            "patch_size": 4,
            "head_dim": 8,
            "hidden_act": "silu",
        },
        {"use_silu": True, "vision.spatial_merge_size": 2, "vision.attention.layer_norm_epsilon": 1e-5},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        "[IMG]",
        "[IMG]",
        _pixtral,
        options={"spatial_merge_size": 2},
    ),
    TinyVision(
        "qwen2vl",
        "Qwen2VL",
        "qwen2vl_merger",
        TinyModel(
            "qwen2vl",
            "Qwen2VL",
            16,
            24,
            heads=2,
            kv_heads=1,
            head_dim=8,
            options={"model_type": "qwen2_vl_text", "rope_parameters": _sections(2, 1, 1)},
            keys={"rope.dimension_sections": [2, 1, 1, 0]},
            values=NUMBERS_OF_8_BITS,
            n_vocab=ASCII,
        ),
        {"embed_dim": 8, "hidden_size": 16, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4, "depth": 2}
        | {"intermediate_size": 16, "image_size": 560},
        _QWEN_LIMITS,
        _QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: _qwen(tokenizer, "Qwen2VLProcessor"),
        ids=_QWEN_IDS,
    ),
    TinyVision(
        "qwen3vlmoe",
        "Qwen3VLMoe",
        "qwen3vl_merger",
        TinyModel(
            "qwen3vlmoe",
            "Qwen3VLMoe",
            16,
            24,
            heads=2,
            kv_heads=1,
            head_dim=16,
            options={
                "model_type": "qwen3_vl_moe_text",
                "rope_parameters": _sections(4, 2, 2),
                **MOE,
                "moe_intermediate_size": 8,
                "norm_topk_prob": True,
            },
            keys={
                "rope.dimension_sections": [4, 2, 2, 0],
                "n_deepstack_layers": 1,
                **MOE_KEYS,
                "expert_feed_forward_length": 8,
            },
            values=NUMBERS_OF_8_BITS,
            n_vocab=ASCII,
        ),
        {**_QWEN, "hidden_size": 8, "out_hidden_size": 16, "depth": 2}
        | {"deepstack_visual_indexes": [0], "num_position_embeddings": 25, "image_size": 20},
        {"use_gelu": True, "vision.is_deepstack_layers": [True, False], **_QWEN_LIMITS},
        _QWEN_TOKENS,
        "<|image_pad|>",
        "<|vision_start|><|image_pad|><|vision_end|>",
        lambda tokenizer: _qwen(tokenizer, "Qwen3VLProcessor"),
        ids=_QWEN_IDS,
    ),
    *(
        TinyVision(
            name,
            "Gemma4",
            "gemma4v",
            text,
            {**_GEMMA4_SIZES, **sizes},
            _GEMMA4_KEYS,
            _GEMMA4_TOKENS,
            "<|image|>",
            "<|image|>",
            _gemma4,
            ids={"boi_token_id": "<|image>", "eoi_token_id": "<image|>", "audio_token_id": "<|audio|>"},
            options={"audio_config": None},
        )
        for name, text, sizes in (
            (
                "gemma4v",
                _gemma4_text(
                    "gemma4v",
                    72,
                    {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0},
                    {"embedding_length_per_layer_input": 0},
                ),
                {"standardize": True},
            ),
            (
                "gemma4v-layers",
                _gemma4_text(
                    "gemma4v-layers",
                    20,
                    {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": ASCII + len(_GEMMA4_TOKENS)},
                    {"embedding_length_per_layer_input": 4},
                ),
                {"use_clipped_linears": True},
            ),
        )
    ),
)
