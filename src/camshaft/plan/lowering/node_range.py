"""NodeRange: the node that a range of thunks was made from, for profiles and debug output."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.graph.graph import Node
from camshaft.plan.lowering.node_thunks import Piece
from camshaft.selection.select import Choice


@dataclass(frozen=True)
class NodeRange:
    """Thunks [first, last) compute the node, by its choice, from and into this memory."""

    node: Node
    choice: Choice
    first: int
    last: int
    inputs: tuple[Piece, ...]
    outputs: tuple[Piece, ...]
