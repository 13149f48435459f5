"""A language model in a llama-bench program: llama.cpp's, or that of a project made from it, such as ik_llama.cpp."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any


class LlamaBench:
    """llama-bench, a process for each order, which loads the model, runs once without a clock and then once with it.

    Orders: {"prompt": ids} and {"generate": n, "after": ids}; of the ids it takes the number, its own tokens being random.
    `arguments` are added to its command line.
    """

    def __init__(self, binary: str, model: str, threads: int, arguments: Sequence[str] = ()) -> None:
        self.command = [binary, "-m", model, "-t", str(threads), "-r", "1", "-o", "json", *arguments]
        about = self.run(1, 0)
        self.version = f"llama-bench {about['build_number']} ({about['build_commit']})"
        self.built_for = str(about["cpu_info"])

    def seconds(self, order: dict[str, Any]) -> float:
        """Seconds of a prompt or of so many generated tokens."""
        of_prompt, of_text = (0, order["generate"]) if "generate" in order else (len(order["prompt"]), 0)
        return float(self.run(of_prompt, of_text)["avg_ns"]) / 1e9

    def run(self, of_prompt: int, of_text: int) -> dict[str, Any]:
        """The program's only row of a measurement. Raises RuntimeError with its last words if it fails or has another one."""
        command = [*self.command, "-p", str(of_prompt), "-n", str(of_text)]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if ended.returncode:
            lines = ended.stderr.strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"{command[0]} ended with status {ended.returncode}")
        try:
            found: list[dict[str, Any]] = json.loads(ended.stdout)
        except json.JSONDecodeError as error:
            raise RuntimeError(f"{command[0]} printed {ended.stdout!r:.60}; wanted the JSON of llama-bench") from error
        if [(row["n_prompt"], row["n_gen"]) for row in found] != [(of_prompt, of_text)]:
            raise RuntimeError(
                f"{command[0]} measured {len(found)} rows; wanted one of {of_prompt} and {of_text} tokens"
            )
        return found[0]
