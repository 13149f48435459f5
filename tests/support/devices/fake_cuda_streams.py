"""Streams, captured graphs and events of the fake CUDA driver, on which calls run at once.

A graph runs its nodes in a random order that its edges allow, so an edge that is missing shows in the results.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cuda.bindings import __version__ as bindings_version
from cuda.bindings import driver as real

MAJOR = int(bindings_version.split(".")[0])


@dataclass(eq=False)
class Node:
    """A captured call; `run` does it. `after` are the nodes that it depends on."""

    handle: int
    kind: str
    run: object
    after: list
    grid: int = 0
    ends: tuple = ()


@dataclass
class Stream:
    capturing: bool = False
    nodes: list = field(default_factory=list)
    depends: list = field(default_factory=list)


class FakeStreams:
    """What FakeDriver answers about streams, graphs and events; `updates` counts the nodes of graphs that were changed."""

    def __init__(self, seed: int) -> None:
        self.functions: dict[int, str] = {}
        self.streams: dict[int, Stream] = {}
        self.graphs: dict[int, list[Node]] = {}
        self.updates = 0
        self.random = random.Random(seed)
        self.next = 0x1000

    def handle(self) -> int:
        self.next += 16
        return self.next

    # --- streams and graphs ----------------------------------------------------------------------------------------------
    def cuStreamCreate(self, flags):
        handle = self.handle()
        self.streams[handle] = Stream()
        return handle

    def _do(self, stream, kind, run, grid=0, ends=()):
        found = self.streams[stream]
        if not found.capturing:
            run()
            return
        node = Node(self.handle(), kind, run, list(found.depends), grid, ends)
        found.nodes.append(node)
        found.depends = [node]

    def cuStreamSynchronize(self, stream):
        return None

    def cuStreamBeginCapture(self, stream, mode):
        found = self.streams[stream]
        assert not found.capturing
        found.capturing, found.nodes, found.depends = True, [], []

    def cuStreamGetCaptureInfo(self, stream):
        nodes = [real.CUgraphNode(n.handle) for n in self.streams[stream].depends]
        edges = ([],) if MAJOR >= 13 else ()
        return 1, 7, 0, nodes, *edges, len(nodes)

    def cuStreamUpdateCaptureDependencies(self, stream, nodes, *rest):
        assert rest[-2] == len(nodes)
        wanted = {int(n) for n in nodes}
        found = self.streams[stream]
        found.depends = [n for n in found.nodes if n.handle in wanted]
        assert len(found.depends) == len(wanted)

    def cuStreamEndCapture(self, stream):
        found = self.streams[stream]
        found.capturing = False
        graph = self.handle()
        self.graphs[graph] = found.nodes
        return graph

    def cuGraphInstantiate(self, graph, flags):
        executable = self.handle()
        self.graphs[executable] = self.graphs[graph]
        return executable

    def cuGraphExecKernelNodeSetParams(self, executable, node, params):
        found = next(n for n in self.graphs[executable] if n.handle == int(node))
        assert params.blockDimX
        assert params.kernelParams
        assert int(params.func) in self.functions
        found.grid = params.gridDimX
        self.updates += 1

    def cuGraphExecMemcpyNodeSetParams(self, executable, node, params, context):
        found = next(n for n in self.graphs[executable] if n.handle == int(node))
        kinds = {1: "Host", 2: "Device"}
        ends = [
            int(getattr(params, end + kinds[int(getattr(params, f"{end}MemoryType"))]) or 0) for end in ("src", "dst")
        ]
        assert (found.kind, found.ends) == ("copy", tuple(ends))
        assert (params.Height, params.Depth) == (1, 1)
        assert params.WidthInBytes > 0, "a node copies no bytes"
        found.grid = params.WidthInBytes
        self.updates += 1

    def cuGraphLaunch(self, executable, stream):
        waiting, done = list(self.graphs[executable]), set()
        while waiting:
            ready = [n for n in waiting if all(a.handle in done for a in n.after)]
            node = self.random.choice(ready)
            node.run(node.grid) if node.kind in ("kernel", "copy") else node.run()
            waiting.remove(node)
            done.add(node.handle)

    def cuGraphExecDestroy(self, executable):
        del self.graphs[executable]

    def cuGraphDestroy(self, graph):
        del self.graphs[graph]

    # --- events ----------------------------------------------------------------------------------------------------------
    def cuEventCreate(self, flags):
        return self.handle()

    def cuEventRecord(self, event, stream):
        assert not self.streams[stream].capturing

    def cuEventSynchronize(self, event):
        return None

    def cuEventElapsedTime(self, start, end):
        return 0.002

    def cuEventDestroy(self, event):
        return None
