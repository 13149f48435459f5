"""Time from process start to the first byte of output, for camshaft and llama-cpp-python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

LLAMA = """
import sys
from llama_cpp import Llama
llama = Llama(sys.argv[1], n_ctx=2048, n_threads=int(sys.argv[3]), n_threads_batch=int(sys.argv[3]), verbose=False)
messages = [{"role": "user", "content": sys.argv[2]}]
for part in llama.create_chat_completion(messages, max_tokens=8, temperature=0.0, stream=True):
    print(part["choices"][0]["delta"].get("content", ""), end="", flush=True)
"""


class Starts:
    """Orders: {"model": path, "prompt": a question, "threads": n}. Measures until the first byte of the answer."""

    version, built_for = "as the command line starts it", "this Python"

    def seconds(self, order: dict[str, Any]) -> float:
        """Seconds from process start to its first byte; then waits for the process to end."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        started = time.perf_counter()
        with subprocess.Popen(
            self.command(order), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        ) as child:
            assert child.stdout is not None
            child.stdout.read(1)
            elapsed = time.perf_counter() - started
            _, stderr = child.communicate()
        if child.returncode:
            lines = stderr.decode("utf-8", "replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"a process ended with status {child.returncode}")
        return elapsed

    def command(self, order: dict[str, Any]) -> list[str]:
        """camshaft's command line."""
        options = ["-p", order["prompt"], "-n", "8", "--greedy", "--threads", str(order["threads"])]
        return [sys.executable, "-m", "camshaft.cli", "generate", order["model"], *options]


class LlamaStarts(Starts):
    """llama-cpp-python with the file's chat template, as in its documentation."""

    def command(self, order: dict[str, Any]) -> list[str]:
        """A program that streams the answer."""
        return [sys.executable, "-c", LLAMA, order["model"], order["prompt"], str(order["threads"])]
