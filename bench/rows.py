"""What every script in bench/ shares; it is the package's own. Imported by its neighbours."""

from __future__ import annotations

import argparse
import os

from bench.compare.figures import Spread, facts_line, machine, seconds_per_call, table, write

__all__ = [
    "Spread", "add_processor_time", "facts_line", "machine", "seconds_per_call", "table", "with_clock", "write",
]  # fmt: skip


def add_processor_time(parser: argparse.ArgumentParser) -> None:
    """Adds the option --processor-time."""
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="measure the time of the peers' threads on a core, for a busy machine; with --threads 1",
    )


def with_clock(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Tells the peers, by the environment, which clock to use. Workers that wait count too, so it is for one thread."""
    if options.processor_time:
        if options.threads != [1]:
            parser.error("--processor-time is for --threads 1: workers that wait spend processor time too")
        os.environ["BENCH_CLOCK"] = "processor"
    return options
