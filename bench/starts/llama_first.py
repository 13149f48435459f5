"""Answer a message with llama-cpp-python, streamed; run by first_token.py. Does not import camshaft.

`python -m bench.starts.llama_first MODEL PROMPT [THREADS]` prints the pieces as they arrive.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Opens the model and streams 8 tokens, the likeliest each."""
    from llama_cpp import Llama

    model, prompt, *threads = sys.argv[1:]
    number = int(threads[0]) if threads else None
    llama = Llama(model, n_ctx=2048, n_threads=number, n_threads_batch=number, n_gpu_layers=0, verbose=False)
    messages = [{"role": "user", "content": prompt}]
    for part in llama.create_chat_completion(messages, max_tokens=8, temperature=0.0, stream=True):
        sys.stdout.write(part["choices"][0]["delta"].get("content") or "")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
