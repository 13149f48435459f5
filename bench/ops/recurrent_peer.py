"""The peer of recurrent.py: transformers' pure-torch chunked delta rule (Qwen3-Next) and chunk scan (Mamba 2). No camshaft.

Run by recurrent.py as `python -m bench.ops.recurrent_peer OP THREADS`. Each input line asks for a call; each output line is
{"s": seconds}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

TOKENS, HEADS = 4096, 16
clock = time.process_time if os.environ.get("BENCH_CLOCK") == "processor" else time.perf_counter


def gated_delta_rule() -> Callable[[], Any]:
    """16 heads of 128."""
    import torch
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as rule

    q, k, v = (torch.randn(1, TOKENS, HEADS, 128) for _ in range(3))
    g, beta = -torch.randn(1, TOKENS, HEADS).abs(), torch.rand(1, TOKENS, HEADS)
    return lambda: rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)


def mamba2_ssd() -> Callable[[], Any]:
    """16 heads of 64, states of 128, chunks of 256 as in Mamba 2's configuration."""
    import torch
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan as scan

    x, dt, a = torch.randn(1, TOKENS, HEADS, 64), torch.rand(1, TOKENS, HEADS), -torch.randn(HEADS).abs()
    (b, c), d = (torch.randn(1, TOKENS, 1, 128) for _ in range(2)), torch.randn(HEADS)
    return lambda: scan(x, dt, a, b, c, chunk_size=256, D=d, return_final_states=True)


CALLS = {"gated_delta_rule": gated_delta_rule, "mamba2_ssd": mamba2_ssd}


def main() -> None:
    """Prints the versions, then answers requests until the pipe ends."""
    import torch
    import transformers

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not lie between the answers
    torch.set_num_threads(int(sys.argv[2]))
    with torch.no_grad():
        call = CALLS[sys.argv[1]]()
        call()
        version = f"transformers {transformers.__version__} on torch {torch.__version__}"
        print(json.dumps({"version": version}), file=answers, flush=True)
        for _ in sys.stdin:
            started = clock()
            call()
            print(json.dumps({"s": clock() - started}), file=answers, flush=True)


if __name__ == "__main__":
    main()
