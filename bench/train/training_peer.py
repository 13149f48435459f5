"""The peer of training.py: transformers' Llama of SmolLM2's sizes with PEFT, or whole, by torch. Does not import camshaft.

Run by training.py as `python -P training_peer.py THREADS METHOD BATCH LENGTH simd|cuda f32|bf16`. Each input line asks for a
step, each output line is {"s": seconds, "cpu_s": CPU seconds of all threads}. Ids are random. In bf16 a network with adapters has
weights of bf16, its adapters f32, as PEFT loads it; a whole one is trained by autocast, with weights of f32, as AdamW needs them.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Print torch's version, then answer requests until the pipe ends."""
    import peft
    import torch
    import transformers

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not lie between the answers
    threads, method, batch, length = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config)
    where = "cuda" if sys.argv[5] == "cuda" else "cpu"
    in_bf16 = sys.argv[6] == "bf16"
    if in_bf16 and method == "lora":
        network = network.to(torch.bfloat16)
    if method == "lora":
        modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        network = peft.get_peft_model(network, peft.LoraConfig(r=8, lora_alpha=16, target_modules=modules))
    network = network.to(where)
    learned = [p for p in network.parameters() if p.requires_grad]
    optimizer, ids = torch.optim.AdamW(learned, lr=1e-4), torch.randint(5, 40000, (batch, length), device=where)
    print(json.dumps({"version": f"torch {torch.__version__}, PEFT {peft.__version__}"}), file=answers, flush=True)
    for _ in sys.stdin:
        started, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        with torch.autocast(where, torch.bfloat16, enabled=in_bf16 and method == "full"):
            loss = network(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        if where == "cuda":
            torch.cuda.synchronize()
        found = {"s": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
