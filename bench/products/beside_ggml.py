"""Quantized work beside ggml's on the same blocks, in interleaved rounds: what moe.py and quantized.py share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from bench import rows
from bench.compare import peers as peer_modules
from bench.compare.process import PeerProcess
from bench.compare.suites.suite import OURS, Peer

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every such script."""
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer-python", default="python", help="a Python that has llama-cpp-python")
    parser.add_argument("--no-peer", action="store_true", help="camshaft alone")
    parser.add_argument("--json", type=Path)
    rows.add_processor_time(parser)


@contextmanager
def processes(
    options: argparse.Namespace, threads: int, ours: str, theirs: str, **to_ggml: Any
) -> Iterator[dict[str, PeerProcess]]:
    """The peers by name. `ours`: MODULE:CLASS of bench/compare/peers; `theirs`: FILE:CLASS of this folder; it gets `to_ggml`."""
    given = {"threads": threads}
    peers = [Peer(OURS, ours, given, peer_python=False)]
    if not options.no_peer:
        ggml = Path(peer_modules.__file__).with_name("ggml.py")
        peers.append(Peer("ggml", str(Path(__file__).with_name(theirs)), {**given, "ggml": str(ggml), **to_ggml}))
    with ExitStack() as stack:
        yield {peer.name: stack.enter_context(closing(PeerProcess(peer, options.peer_python))) for peer in peers}


def in_rounds(up: Mapping[str, PeerProcess], orders: Sequence[Row], repeat: int) -> list[dict[str, list[float]]]:
    """Seconds of each order by peer, after a warm-up round. RuntimeError if the peers' results differ."""
    taken: list[dict[str, list[float]]] = [{name: [] for name in up} for _ in orders]
    for round_ in range(-1, repeat):
        for order, found in zip(orders, taken, strict=True):
            for name, process in up.items():
                seconds = process.seconds(order)
                if round_ >= 0:
                    found[name].append(seconds)
            _require_equal(order, {name: p.check for name, p in up.items() if p.check is not None})
    return taken


def _require_equal(order: Row, checks: dict[str, float]) -> None:
    """RuntimeError if the results differ in mean magnitude by more than quantizing activations explains."""
    if max(checks.values()) > 1.02 * min(checks.values()):
        raise RuntimeError(f"the peers compute different results of {order}: {checks}")


def written(
    parser: argparse.ArgumentParser, measured: Callable[[argparse.Namespace, int, Path], Iterator[Row]]
) -> Sequence[Row]:
    """The rows of every number of threads, by a function of the options, that number and a folder for files. Writes --json."""
    options = rows.with_clock(parser, parser.parse_args())
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = [row for threads in options.threads for row in measured(options, threads, Path(folder))]
    rows.write(options.json, made)
    return made
