"""What the ops' functions say that they take: to help(), to an editor and to a type checker."""

from __future__ import annotations

import importlib.util
import inspect
from inspect import Parameter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import camshaft
from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.eager.any_length import n_inputs
from camshaft.eager.native import cpython_abi
from camshaft.eager.numpy_forms import count_of
from camshaft.eager.tables import DispatchTable, table
from camshaft.graph import functions
from camshaft.ops import signatures
from camshaft.ops.parameters import ANY, REQUIRED
from camshaft.ops.spec import TensorSpec
from tests.support.samples import samples

ROOT = Path(__file__).parents[2]
# Attributes of samples alone: what a reference gives where it cannot be computed from the packed inputs.
OF_SAMPLES = {"wanted", "values"}


def stubs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "scripts" / "stubs.py")
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(script)
    return script


def test_the_stubs_are_current() -> None:
    for path, text_of in stubs().STUBS.items():
        assert path.read_text("utf-8") == text_of(), "run scripts/stubs.py"


def test_every_op_has_parameters() -> None:
    assert not [op.name for op in ops.all_ops() if op.parameters is ANY]


@pytest.mark.parametrize("name", ops.NAMES)
def test_the_samples_of_an_op_fit_its_parameters(name: str) -> None:
    op, row = ops.get(name), ops.get(name).parameters
    names = row.tensors.split()
    attributes = {a.name for a in row.attributes}
    required = {a.name for a in row.attributes if a.default is REQUIRED}
    for sample in samples(name):
        count = len(sample.specs or sample.inputs)  # inputs that are made on first use compile a kernel for each format
        assert count == len(names) or (names[-1][0] == "*" and count >= len(names) - 1)
        assert required <= sample.attrs.keys() - OF_SAMPLES <= attributes
        specs = sample.specs or tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in sample.inputs)
        if row.results is not None:
            assert len(op.outputs(specs, sample.attrs)) == row.results


def test_the_functions_that_take_out_by_position_are_those_that_know_their_number_of_inputs() -> None:
    known = {name for name in ops.NAMES if n_inputs(ops.get(name)) or count_of(name, 0)}
    assert known == {op.name for op in ops.all_ops() if op.parameters.out_by_position}


def test_functions_of_arrays_and_tensors_state_their_parameters() -> None:
    norm = inspect.signature(camshaft.rms_norm)
    assert list(norm.parameters) == ["x", "w", "out", "eps", "offset", "to", "axis", "name"]
    assert list(inspect.signature(functions.rms_norm).parameters) == ["x", "w", "eps", "offset", "to", "axis", "name"]
    assert norm.parameters["x"].kind is Parameter.POSITIONAL_ONLY
    assert norm.parameters["eps"].default is Parameter.empty
    assert norm.parameters["to"].default == "f32"
    assert camshaft.rms_norm.__doc__.startswith("y = x / sqrt(mean(x^2) + eps) * (w + offset)")


@pytest.mark.parametrize("native", [True, False])
def test_functions_of_arrays_state_their_parameters(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(cpython_abi, "refusal", lambda: "this interpreter is another one")
    made = DispatchTable(None)
    for name in ("add", "matmul", "rms_norm", "sum", "concat", "attention", "kv_cache_update"):
        function, wanted = getattr(made, name), signatures.of_arrays(name)
        found = inspect.signature(function)
        assert [(p.name, p.kind, p.default) for p in found.parameters.values()] == [
            (p.name, p.kind, p.default) for p in wanted.parameters.values()
        ]
        assert function.__name__ == name
        assert function.__doc__ == signatures.help_of(ops.get(name))
        assert function.__self__.op is ops.get(name)


def test_a_default_that_is_stated_is_what_holds() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    arguments = {"sum": (x,), "argmax": (x,), "transpose": (x,), "matmul": (x, x.T), "silu_multiply": (x, x)}
    for name, given in arguments.items():
        stated = {a.name: a.default for a in ops.get(name).parameters.attributes}
        function = getattr(table(), name)
        np.testing.assert_array_equal(function(*given, **stated), function(*given))


def test_completion_lists_the_public_names_and_the_ops() -> None:
    assert {*camshaft.__all__, *ops.NAMES, "__version__"} <= set(dir(camshaft))
    assert all(getattr(camshaft, name) is not None for name in dir(camshaft))
    assert set(table().ops) | {"choice", "override", "ops"} <= set(dir(table()))
    assert not [name for name in dir(camshaft) if name.startswith("_") and not name.endswith("__")]
