"""Checks the arguments of a plan's run: inputs by name, and the arrays of `out`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import CamshaftError, PlanError
from camshaft.extent import Extent
from camshaft.ops.arguments import operand
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
# The options of `run`: an input of such a name is given in a dict.
_OPTIONS = ("keep", "out", "view")


def check_flags(**flags: object) -> None:
    """Raises PlanError unless each value is a bool."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise PlanError(f"run: {name} is {_kind(value)}; wanted True or False ({_in_a_dict(name)})")


def input_arrays(
    plan: ExecutionPlan, inputs: Mapping[str, object] | None, named: Mapping[str, object], *, keep: bool
) -> dict[str, Array]:
    """Returns the given inputs as arrays. Raises PlanError for unknown inputs, for missing ones unless `keep`, and for values
    that are not arrays."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise PlanError(f"run: got {_kind(inputs)}; wanted inputs by name, as in run(x=x) or run({{'x': x}})")
    if inputs and (twice := named.keys() & inputs.keys()):
        raise PlanError(f"run: got {', '.join(sorted(twice))} in a dict and by keyword; wanted each input once")
    given = {**(inputs or {}), **named}
    for name in given:
        if name in plan.away:
            there = plan.away[name].device.name
            raise PlanError(f"run: input {name!r} is on {there}; wanted its bytes there (plan.away[{name!r}].write)")
        if name not in plan.inputs:
            raise PlanError(f"run: no input {name!r}; this plan has {', '.join(plan.inputs) or 'none'}")
    missing = [name for name in plan.inputs if name not in given and name not in plan.lent]
    if missing and not keep:
        hints = ["keep=True reuses the last values", *map(_in_a_dict, [m for m in missing if m in _OPTIONS])]
        came = ", ".join(given) or "none"
        raise PlanError(f"run: got inputs {came}; wanted also {', '.join(missing)} ({'; '.join(hints)})")
    return {name: _array(name, value) for name, value in given.items()}


def active_sizes(plan: ExecutionPlan, values: Mapping[str, Array]) -> dict[Extent, int]:
    """Returns the extents that the inputs' shapes set. Raises PlanError for a wrong shape or dtype or an index out of range."""
    active: dict[Extent, int] = {}
    for name, value in values.items():
        _check_input(plan, name, value, active)
    return active


def out_arrays(plan: ExecutionPlan, out: object, active: Mapping[Extent, int]) -> dict[str, Array]:
    """Returns `out` as arrays by output. Raises PlanError for an array that does not match its output's active shape."""
    if out is None:
        return {}
    if not isinstance(out, Mapping):
        if len(plan.outputs) != 1:
            raise PlanError(f"run: out is {_kind(out)}; wanted a dict of arrays for {_names(plan.outputs)}")
        out = dict.fromkeys(plan.outputs, out)
    for name, array in out.items():
        _check_out(plan, name, array, active)
    for (one, a), (other, b) in combinations(out.items(), 2):
        if np.may_share_memory(a, b):
            raise PlanError(f"run: out has overlapping arrays for {one!r} and {other!r}; wanted separate memory")
    return dict(out)


def _check_out(plan: ExecutionPlan, name: str, array: object, active: Mapping[Extent, int]) -> None:
    if name not in plan.outputs:
        there = f"; it is on {plan.away[name].device.name}" if name in plan.away else ""
        raise PlanError(f"run: out has {name!r}; this plan's outputs are {_names(plan.outputs)}{there}")
    made = plan.outputs[name]
    shape = active_shape(plan, name, active)
    wanted = f"wanted a writeable C-contiguous array {made.dtype} {list(shape)}"
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise PlanError(f"run: out for {name!r} is {_kind(array)}; {wanted}")
    flags = array.flags
    if array.shape != shape or array.dtype != made.dtype or not flags.c_contiguous or not flags.writeable:
        what = "" if flags.c_contiguous else ", strided"
        what += "" if flags.writeable else ", read-only"
        raise PlanError(f"run: out for {name!r} is {array.dtype} {list(array.shape)}{what}; {wanted}")
    for memory in (*plan.inputs.values(), *plan.outputs.values(), *plan.states.values()):
        if isinstance(memory, np.ndarray) and np.may_share_memory(array, memory):
            raise PlanError(
                f"run: out for {name!r} is memory of the plan; wanted other memory (view=True copies nothing)"
            )


def active_shape(plan: ExecutionPlan, name: str, active: Mapping[Extent, int]) -> tuple[int, ...]:
    """Returns an output's shape with these active sizes, and for other extents those of the last run."""
    spec: TensorSpec = plan.specs[name]
    if not spec.is_plain:
        return (plan.outputs[name].size,)
    return tuple(active.get(d, plan.bound.extent(d)) if isinstance(d, Extent) else d for d in spec.shape)


def _check_input(plan: ExecutionPlan, name: str, value: Array, active: dict[Extent, int]) -> None:
    """Adds the extents that the input's shape sets to `active`."""
    memory, spec = plan.inputs[name], plan.specs[name]
    came = f"run: input {name!r} came as {value.dtype} {list(value.shape)}"
    if value.dtype != memory.dtype or value.ndim != memory.ndim:
        raise PlanError(f"{came}; wanted {spec}")
    for size, dim in zip(value.shape, spec.shape, strict=True):
        if not isinstance(dim, Extent):
            if size != dim:
                raise PlanError(f"{came}; wanted {spec}")
        elif size > dim.bound:
            raise PlanError(f"{came}; wanted {spec}")
        elif active.setdefault(dim, size) != size:
            raise PlanError(f"{came}, but another input has {active[dim]} {dim.name}")
    if name not in plan.limits or not value.size:
        return
    limit = min(active.get(n, plan.bound.extent(n)) if isinstance(n, Extent) else n for n in plan.limits[name])
    if not 0 <= value.min() <= value.max() < limit:
        raise PlanError(f"run: input {name!r} has indexes from {value.min()} to {value.max()}; wanted 0 to {limit - 1}")


def _array(name: str, value: object) -> Array:
    try:
        array: Array = np.asarray(operand(value))
    except (CamshaftError, TypeError, ValueError, OverflowError) as error:
        raise PlanError(f"run: input {name!r}: {error}") from error
    if array.dtype.hasobject:
        raise PlanError(f"run: input {name!r} is {_kind(value)}; wanted an array")
    return array


def _in_a_dict(name: str) -> str:
    return f"an input named {name!r} is given in a dict: run({{{name!r}: array}})"


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none on the host"


def _kind(value: object) -> str:
    return f"{value!r:.40}" if isinstance(value, str | bytes | int | float | None) else f"a {type(value).__name__}"
