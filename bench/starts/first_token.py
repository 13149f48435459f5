"""Time from process start to first token, cold (empty cache) and warm, with its parts.

Run: python -m bench.starts.first_token [MODEL ...] [--threads N ...] [--repeat 5] [--peer-python PYTHON] [--json FILE]. Totals
are of fresh `camshaft generate` processes; the parts are measured in other processes that take the same steps. Cold ones have
an empty cache folder; bytecode is compiled before, as an installation does. If the peer's Python has llama-cpp-python, its time
to first token for the same message is measured interleaved with the warm ones (llama_first.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import rows
from camshaft.models.files.pull import resolve_model

PROMPT = "Why is the sky blue?"
IMPORTED = (
    "numpy",
    "llvmlite.binding",
    "tokenizers",
    "jinja2",
    "typer",
    "pydantic",
    "camshaft.generate.language_model",
)


def environment(cache: str) -> dict[str, str]:
    """This environment with another cache folder, and with bytecode caching as users have it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return environment | {"CAMSHAFT_CACHE_DIR": cache, "PYTHONPATH": paths}


def first_byte_s(command: Sequence[str], cache: str | None) -> float:
    """Seconds from the start of the process to its first byte of output. `cache` is None for another program."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, env=environment(cache) if cache else None, stdout=subprocess.PIPE, bufsize=0
    ) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        elapsed_s = time.perf_counter() - started
        child.stdout.read()
    if child.returncode:
        raise SystemExit(f"{command[:4]} ended with status {child.returncode}")
    return elapsed_s


def parts(model: str, threads: int | None, cache: str) -> dict[str, float]:
    """Seconds of each step in a new process, which prints them as JSON."""
    steps = Path(__file__).with_name("first_steps.py")
    command = [sys.executable, str(steps), model, PROMPT, *([] if threads is None else [str(threads)])]
    started = time.time()
    ended = subprocess.run(command, env=environment(cache), stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return {"interpreter": found.pop("started") - started} | found


def import_seconds(command: Sequence[str], cache: str) -> dict[str, float]:
    """Seconds of the imports that matter, by -X importtime (which slows them), each with all that it imports first."""
    timed, pipe = [command[0], "-X", "importtime", *command[1:]], subprocess.PIPE
    stderr = subprocess.run(timed, env=environment(cache), stdout=pipe, stderr=pipe, check=True, text=True).stderr
    found = {}
    for line in stderr.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if len(fields) == 3 and fields[2].strip() in IMPORTED:
            found[fields[2].strip()] = int(fields[1]) / 1e6
    return found


def threads_option(threads: int | None) -> list[str]:
    """As the command line takes it."""
    return [] if threads is None else ["--threads", str(threads)]


def peer_command(options: argparse.Namespace, model: str, threads: int | None) -> list[str] | None:
    """What starts llama-cpp-python on the message; None where that Python has none."""
    if subprocess.run([options.peer_python, "-c", "import llama_cpp"], stderr=subprocess.DEVNULL).returncode:
        return None
    script = str(Path(__file__).with_name("llama_first.py"))
    return [options.peer_python, script, model, PROMPT, *([] if threads is None else [str(threads)])]


def measure(options: argparse.Namespace, model: str, threads: int | None) -> list[dict[str, Any]]:
    """The rows of a model on so many threads."""
    command = [sys.executable, "-m", "camshaft.cli", "generate", model, "-p", PROMPT, "-n", "8", "--greedy"]
    command += threads_option(threads)
    made = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        first_byte_s([sys.executable, "-m", "camshaft.cli", "--help"], cache)  # bytecode and the file system's cache
        cold = first_byte_s(command, cache)
        peer = peer_command(options, model, threads)
        first_byte_s(command, cache)
        warm, theirs = [], []
        for _ in range(options.repeat):
            warm.append(first_byte_s(command, cache))
            theirs += [first_byte_s(peer, None)] if peer else []
        warm_parts = [parts(model, threads, cache) for _ in range(options.repeat)]
        imports = import_seconds(command, cache)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        cold_parts = parts(model, threads, cache)
    medians = {name: rows.Spread.of([found[name] for found in warm_parts]).median for name in warm_parts[0]}
    kinds = [("cold", [cold], cold_parts), ("warm", warm, medians), ("llama-cpp-python", theirs, {})]
    for name, seconds, spent in kinds if theirs else kinds[:2]:
        spread = rows.Spread.of(seconds)
        made.append(
            {
                "bench": "first_token",
                "op": f"first token, {name}",
                "shape": [],
                "model": Path(model).name,
                "backend": "simd" if spent else name,
                "threads": threads,
                "ns": spread.map(lambda s: s * 1e9).rounded(),
                "parts_s": {part: round(value, 4) for part, value in spent.items()},
                "imports_s": imports,
            }
        )
    return made


def report(made: Sequence[dict[str, Any]]) -> str:
    """The rows as tables."""
    cold, warm = made[:2]
    lines = [(r["op"], *(f"{r['ns'][k] / 1e9:.3f}" for k in ("median", "min", "max"))) for r in made]
    steps = [(part, f"{cold['parts_s'][part]:.4g}", f"{warm['parts_s'][part]:.4g}") for part in warm["parts_s"]]
    imports = [(name, f"{seconds:.3f}") for name, seconds in sorted(warm["imports_s"].items(), key=lambda x: -x[1])]
    tables = (
        rows.table(("", "median s", "min", "max"), lines),
        rows.table(("step", "cold s", "warm s"), steps),
        rows.table(("import (under importtime)", "s"), imports),
    )
    return "\n\n".join(tables)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smollm2"], help="names or paths of .gguf files")
    parser.add_argument("--threads", type=int, nargs="+", default=[None])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("wanted at least 1 repeat")
    models = [str(resolve_model(model).resolve()) for model in options.models]
    print(rows.facts_line(rows.machine()), flush=True)
    made = []
    for model, threads in itertools.product(models, options.threads):
        made += (found := measure(options, model, threads))
        print(f"\n{Path(model).name}, threads: {threads or 'all'}\n\n{report(found)}", flush=True)
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
