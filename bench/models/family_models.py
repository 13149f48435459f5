"""Models of published shapes with random weights, by transformers, converted and quantized: to measure a family at its size.

    python -m bench.models.family_models gemma3-1b OUT.gguf [--type Q4_K_M]
    python -m bench.models.language_model OUT.gguf --json FILE

The vocabulary has bytes and a few merges, filled up to the family's size, so its text is noise. llama.cpp opens the files too.
The extra `oracles` has transformers and torch.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from camshaft.models.convert.convert import convert
from scripts.oracles.tiny.vocabulary import write_tokenizer


@dataclass(frozen=True)
class FamilyShape:
    """The class of a configuration in transformers, its values, and the pre-tokenizer's name in GGUF files."""

    config: str
    values: dict[str, Any] = field(hash=False)
    pre: str = "llama-bpe"


_GEMMA3 = {
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "vocab_size": 262_144,
    "max_position_embeddings": 32_768,
}
# From the config.json that each model is published with.
SHAPES = {
    "gemma3-270m": FamilyShape(
        "Gemma3TextConfig",
        {
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            **_GEMMA3,
        },
    ),
    "gemma3-1b": FamilyShape(
        "Gemma3TextConfig",
        {
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            **_GEMMA3,
        },
    ),
    "qwen35-0.8b": FamilyShape(
        "Qwen3_5TextConfig",
        {
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "vocab_size": 248_320,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
        },
        "qwen35",
    ),
    "lfm2-350m": FamilyShape(
        "Lfm2Config",
        {
            "hidden_size": 1024,
            "intermediate_size": 6656,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "vocab_size": 65_536,
            "max_position_embeddings": 32_768,
        },
    ),
    "mamba2-130m": FamilyShape(
        "Mamba2Config",
        {
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "num_heads": 24,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "expand": 2,
            "vocab_size": 50_288,
            "tie_word_embeddings": True,
        },
    ),
}


def draw(shape: FamilyShape, folder: Path) -> None:
    """Save a model of the shape as transformers draws it, in bf16, with a vocabulary."""
    import torch
    import transformers

    config = getattr(transformers, shape.config)(**shape.values, dtype=torch.bfloat16, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    write_tokenizer(folder, shape.pre)


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_K_M", help="a file type of `camshaft quantize`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
        draw(SHAPES[options.shape], Path(folder))
        made = convert(folder, options.out, options.type, force=True)
    print(f"{made.path}: {made.nbytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
