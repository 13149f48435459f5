"""The peer of convolution.py: torch's conv2d, by oneDNN. Does not import camshaft.

Run by convolution.py as `python convolution_peer.py THREADS`. Each input line is [x, w, stride, padding, calls]; each output line
is {"s": mean seconds per call}.
"""

from __future__ import annotations

import json
import os
import sys
import time

clock = time.process_time if os.environ.get("BENCH_CLOCK") == "processor" else time.perf_counter


def main() -> None:
    """Print torch's version, then answer requests until the pipe ends."""
    import torch

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not lie between the answers
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps({"version": f"torch {torch.__version__}"}), file=answers, flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            x_shape, w_shape, stride, padding, calls = json.loads(line)
            x, w = torch.randn(x_shape), torch.randn(w_shape)
            torch.conv2d(x, w, stride=stride, padding=padding)
            started = clock()
            for _ in range(calls):
                torch.conv2d(x, w, stride=stride, padding=padding)
            print(json.dumps({"s": (clock() - started) / calls}), file=answers, flush=True)


if __name__ == "__main__":
    main()
