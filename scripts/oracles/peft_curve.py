"""Freeze the losses of PEFT's LoRA on SmolLM2 over 200 steps: python -m scripts.oracles.peft_curve

transformers reads the GGUF file of `camshaft pull`, so weights are those of its blocks. Adapters start as train.LoraModel's, of
rank 8; a step learns one piece of 24 tokens of the excerpt, the rate is a cosine with warm-up, gradients are clipped to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft import train
from camshaft.models.files.pull import resolve_model
from tests.support.fixtures import DATA, DEFAULT_MODEL, excerpt

Array = np.ndarray[Any, Any]
STEPS, LENGTH, RATE, WARMUP = 200, 24, 1e-3, 10
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def pieces(model: train.LoraModel) -> train.Windows:
    """What each step learns."""
    ids = np.array(model.tokenizer.encode(excerpt(), add_special=False), np.int32)
    return train.Windows(ids, LENGTH, 1, seed=7)


def rate(n: int) -> float:
    """The learning rate after n steps."""
    return train.cosine(RATE, STEPS, warmup=WARMUP)(n)


def steps(model: train.LoraModel, dtype: str = "float32") -> Callable[[Array, Array, float], float]:
    """Steps of PEFT with the model's weights, of that dtype, and its new adapters: of ids, targets and a rate to the loss."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    path = resolve_model("smollm2")
    network = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=DEFAULT_MODEL, dtype=getattr(torch, dtype))
    modules = [name.rpartition(".")[2] for name in NAMES.values()]
    tuned = peft.get_peft_model(network, peft.LoraConfig(r=8, lora_alpha=16, target_modules=modules))
    with torch.no_grad():
        for name, pair in model.adapters().items():
            _, layer, short = name.split(".")
            linear = tuned.get_submodule(f"base_model.model.model.layers.{layer}.{NAMES[short]}")
            linear.lora_A["default"].weight.copy_(torch.tensor(pair["a"]))
            linear.lora_B["default"].weight.zero_()
    learned = [p for p in tuned.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1.0)

    def step(ids: Array, targets: Array, rate: float) -> float:
        x, y = (torch.tensor(a).long() for a in (ids, targets))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        scores = tuned(input_ids=x).logits.float()
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        return float(loss.item())

    return step


def main() -> None:
    """Run PEFT and write tests/data/peft_curve.npz."""
    with train.LoraModel(resolve_model("smollm2")) as model:
        windows, step = pieces(model), steps(model)
    losses = np.zeros(STEPS)
    for n in range(STEPS):
        losses[n] = step(*windows(n), rate(n))
        if n % 20 == 0:
            print(n, losses[n], flush=True)
    np.savez_compressed(DATA / "peft_curve.npz", losses=losses)


if __name__ == "__main__":
    main()
