"""Hooks for observe/ and tune/ while a plan is built, used only where a setting asks for them."""

from __future__ import annotations

from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.hooks import hook
from camshaft.plan.lowering.lower import Lowered
from camshaft.settings import settings


def watch_lowered(made: Lowered) -> None:
    """Lets thunks be replaced (CAMSHAFT_OVERRIDE, CAMSHAFT_INTERPRET). Called before memory is planned."""
    if settings().instrumented:
        hook("lowered")(made)


def watch_built(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan, or one that is watched while it runs."""
    if not settings().instrumented:
        return plan
    instrumented: ExecutionPlan = hook("built")(plan)
    return instrumented
