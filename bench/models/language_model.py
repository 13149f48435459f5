"""camshaft against llama.cpp on one model file: prompt and generation tokens per second, in interleaved rounds.

Run: python -m bench.models.language_model [MODEL] [--threads 1 2] [--peer-python PYTHON] [--peer-binary PATH] [--json FILE].
llama-cpp-python is the extra `bench`; --peer-python names an interpreter of another environment that has it. --peer-binary names
the llama-bench program of llama.cpp or of ik_llama.cpp, which takes part in the rounds. The rows of `python -m bench.compare` are
made the same way (bench/compare/suites/language_rows.py).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from bench import rows
from bench.compare.compare import run_suite
from bench.compare.interleaved import Limits, starter
from bench.compare.model_files import quietly
from bench.compare.report import markdown_of
from bench.compare.results import Results
from bench.compare.suites.language_rows import of_file, with_binary
from bench.compare.suites.suite import OURS
from camshaft.models.files.pull import resolve_model


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a name or the path of a .gguf")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--generate-tokens", type=int, default=128)
    parser.add_argument(
        "--sequences", type=int, nargs="*", default=[], help="also so many generating together, up to 16"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of rest before each turn")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--no-peer", action="store_true", help="without llama-cpp-python")
    parser.add_argument("--peer-binary", help="also the llama-bench program of this path")
    parser.add_argument("--peer-arguments", default="", help="more arguments of that program, as '-rtr 1 -fa 1'")
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)
    options = rows.with_clock(parser, parser.parse_args())
    if options.repeat < 1 or options.prompt_tokens < 1 or options.generate_tokens < 2:
        parser.error("wanted at least 1 repeat, 1 token to read and 2 to generate")
    if options.processor_time and options.peer_binary:
        parser.error("--peer-binary with --processor-time: such a program has a clock of its own")
    path, results = resolve_model(options.model).resolve(), Results(options.json)
    for threads in options.threads:
        suite = of_file(path, threads, options.prompt_tokens, options.generate_tokens, options.sequences)
        peers = tuple(peer for peer in suite.peers if peer.name == OURS or not options.no_peer)
        suite = replace(suite, peers=peers, pause_s=options.pause)
        if options.peer_binary:
            suite = with_binary(suite, options.peer_binary, path, shlex.split(options.peer_arguments))
        run_suite(suite, Limits(options.repeat), results, starter(options.peer_python), quietly)
    print(markdown_of(results.document()), end="")


if __name__ == "__main__":
    main()
