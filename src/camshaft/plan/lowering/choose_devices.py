"""Choose the device and variant of each node: its own device, else the override."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from camshaft.backends.device import Device
from camshaft.backends.registry import device
from camshaft.errors import PlanError
from camshaft.graph.custom import COPY, MEMCPY, CustomOp
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.ops.op import NodeSpec, Op
from camshaft.selection.kernel_dispatch import KernelDispatch, dispatched
from camshaft.selection.override import check_override
from camshaft.selection.select import Choice, choose


def device_of(name: str) -> Device:
    """The device of that name, which can be used. BackendError if it cannot."""
    return device(check_override(name))


def places_of(graph: Graph, given: Mapping[Tensor, Device]) -> dict[Tensor, Device]:
    """Where the root tensors lie that the graph places, or whose memory is `given`. PlanError where both do, and differ."""
    named = (*graph.inputs.values(), *graph.states.values(), *(t for n in graph.nodes for t in (*n.inputs, *n.outputs)))
    placed = {base: device_of(base.device) for base in map(root, named) if base.device is not None}
    for tensor, there in given.items():
        if tensor in placed and placed[tensor].space != there.space:
            wanted = placed[tensor].space
            raise PlanError(f"compile: memory for {tensor.name!r} lies on {there.space}; wanted it on {wanted}")
    return {**given, **placed}


def choose_placed(
    nodes: Sequence[Node],
    override: str | None,
    strict: bool,
    dispatcher: KernelDispatch | None = None,
    upcoming: Callable[[], Sequence[Node]] = tuple,
) -> list[Choice]:
    """A Choice per node: a caller's own function as it is, by the dispatcher where it knows the op, else proved together for
    each device, along with those `upcoming` there (all of which the override places).

    BackendError as `choose`'s, and for a device that cannot be used.
    """
    wanted = {name: check_override(name) for name in {node.device for node in nodes} if name is not None}
    places = [override if node.device is None else wanted[node.device] for node in nodes]
    found = [_given(node, dispatcher) for node in nodes]
    for place in dict.fromkeys(places):
        indexes = [i for i, p in enumerate(places) if p == place and found[i] is None]
        uses = [(nodes[i].op, nodes[i].spec) for i in indexes]
        chosen = choose(uses, place, strict=strict, upcoming=_uses(upcoming) if place == override else tuple)
        for i, choice in zip(indexes, chosen, strict=True):
            found[i] = choice
    return [choice for choice in found if choice is not None]


def _uses(nodes: Callable[[], Sequence[Node]]) -> Callable[[], list[tuple[Op, NodeSpec]]]:
    return lambda: [(node.op, node.spec) for node in nodes()]


def _given(node: Node, dispatcher: KernelDispatch | None) -> Choice | None:
    """The choice that somebody made already."""
    if isinstance(node.op, CustomOp):
        return Choice(node.op, node.op.variants[0], "simd", device("cpu"), "the caller's own function", ())
    if node.op is COPY:
        return Choice(node.op, MEMCPY, "simd", device_of(node.device or "cpu"), "the caller's copy", ())
    return None if dispatcher is None else dispatched(dispatcher, node.op, node.spec)
