"""Tiny random models that see images, made and run by transformers."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from scripts.oracles.tiny.images.model import TinyVision
from scripts.oracles.tiny.vocabulary import make_tokens, write_tokenizer
from tests.support.models.images import drawn_image

MARKERS = ("image_token_id", "image_token_index")
EVERY = 7  # of so many tokens one has its logits frozen, and the last ones


def build(model: TinyVision, seed: int) -> Any:
    """The transformers model, every parameter drawn."""
    text = model.text
    ids = {token: i for i, token in enumerate(make_tokens(text.n_vocab, model.more)[0])}
    of_text = {
        "model_type": text.family.lower(),
        "vocab_size": text.n_vocab + len(model.more),
        "hidden_size": text.hidden,
        "intermediate_size": text.ffn,
        "num_hidden_layers": text.n_layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {**text.rope, "rope_theta": text.theta},
        "tie_word_embeddings": text.tied,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 2),
        **text.options,
    }
    config = getattr(transformers, f"{model.family}Config")(
        vision_config={**({} if "depth" in model.sizes else {"num_hidden_layers": 2}), **model.sizes},
        text_config=of_text,
        **{name: ids[token] for name, token in {**dict.fromkeys(MARKERS, model.marker), **model.ids}.items()},
        tie_word_embeddings=text.tied,
        attn_implementation="eager",
        experts_implementation="eager",
        **model.options,
    )
    network = getattr(transformers, f"{model.family}ForConditionalGeneration")(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        limits = ("std_bias", "std_scale", "input_min", "input_max", "output_min", "output_max", "layer_scalar")
        buffers = ((name, buffer) for name, buffer in network.named_buffers() if name.endswith(limits))
        for name, parameter in (*network.named_parameters(), *buffers):
            drawn = _draw(name, parameter.shape, generator, text.tied)
            parameter.copy_(drawn.to(getattr(torch, text.values)).float())
    return network


def _draw(name: str, shape: torch.Size, generator: torch.Generator, is_tied: bool) -> torch.Tensor:
    if "norm" in name and name.endswith("weight"):
        return torch.rand(shape, generator=generator) + 0.5
    if name.endswith(("std_scale", "layer_scalar", "_max")):
        return torch.rand(shape, generator=generator) + 0.5
    if name.endswith("_min"):
        return -torch.rand(shape, generator=generator) - 0.5
    values = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return values / 2
    if "embed_tokens" in name:
        return values * (0.4 if is_tied else 1.0)
    if "position_embedding" in name or name.endswith("std_bias"):
        return values
    if "input_projection" in name:
        return values / math.sqrt(shape[0])
    gain = 1.6 if any(word in name for word in ("q_proj", "k_proj", "lm_head")) else 1.0
    return values * gain / math.sqrt(math.prod(shape[1:]))


def processor_of(model: TinyVision) -> Any:
    """The processor of transformers, over the tiny vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(
            Path(folder), "qwen2" if model.text.arch.startswith("qwen") else "smollm", model.text.n_vocab, model.more
        )
        settings = Path(folder) / "tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"additional_special_tokens": [*model.more]}))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return model.processor(tokenizer)


def answers(model: TinyVision, network: Any) -> dict[str, np.ndarray]:
    """Of each prompt the ids, which of them have logits, and these, float32 [rows, vocab], computed in float64; the pixels that
    the encoder got of each image."""
    processor, network = processor_of(model), network.double()
    made: dict[str, np.ndarray] = {}
    for n, (text, numbers) in enumerate(model.prompts):
        images = [drawn_image(*model.images[k]) for k in numbers]
        given = processor(text=text, images=[images], return_tensors="pt")
        with torch.no_grad():
            logits = network(**given).logits[0].numpy().astype(np.float32)
        rows = sorted({*range(0, len(logits), EVERY), *range(len(logits) - 4, len(logits))})
        made |= {
            f"text{n}": np.array(text),
            f"sizes{n}": np.array([model.images[k] for k in numbers], np.int32),
            f"ids{n}": given["input_ids"][0].numpy().astype(np.int32),
            f"rows{n}": np.array(rows, np.int32),
            f"logits{n}": logits[rows],
        }
    return made
