"""Compilation in child processes, and nodes as JSON."""

from __future__ import annotations

import json

import pytest

from camshaft import ops
from camshaft.dtypes import f32
from camshaft.errors import BackendError
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import Layout, TensorSpec
from camshaft.tune.benchmark import Candidate
from camshaft.tune.compilation import Compiler
from camshaft.tune.compile_worker import node_from, node_json
from camshaft.validation.validate import node_of
from tests.support.samples import samples
from tests.tune.planted_tunables import EXITS, NODE, RIGHT, SLOW, TWIN, op_with


def nodes() -> list[NodeSpec]:
    """A node of every sample of every op; attributes that are arrays or functions belong to samples alone."""
    found = [node_of(op, sample) for op in ops.all_ops() for sample in samples(op.name)]
    plain = [{n: v for n, v in node.attrs.items() if not (hasattr(v, "shape") or callable(v))} for node in found]
    return [NodeSpec(node.inputs, node.outputs, attrs) for node, attrs in zip(found, plain, strict=True)]


def test_nodes_come_back_as_they_were() -> None:
    for node in nodes():
        back = node_from(json.loads(json.dumps(node_json(node))))
        assert back == node
        assert all(a.layout is b.layout for a, b in zip(back.inputs, node.inputs, strict=True))


def test_a_layout_that_nobody_knows_is_refused() -> None:
    odd = TensorSpec((4,), f32, Layout("odd", lambda spec: (("data", f32, spec.bounds),)))
    with pytest.raises(BackendError, match="tuning does not support its layout"):
        node_json(NodeSpec((odd,), (), {}))
    with pytest.raises(BackendError, match=r"does not support the attribute .* of type set"):
        node_json(NodeSpec((), (), {"names": {1}}))


@pytest.mark.full
def test_equal_code_has_one_digest_and_a_dead_child_is_replaced() -> None:
    op = op_with(ways=(RIGHT, TWIN, EXITS), passes=(1, SLOW))
    loops = Candidate(op, NODE, op.variants[0], "simd")
    asked = [{}, {"way": EXITS}, {"way": TWIN}, {"passes": 1}]
    with Compiler() as compiler:
        own, dead, twin, short = compiler.compile(loops.with_values(values) for values in asked)
    assert own.digest is not None
    assert own.digest == twin.digest != short.digest
    assert dead.failed == "crashed its process: exit status 7"
