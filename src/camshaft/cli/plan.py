"""`camshaft plan`: show the compiled plan of a model: thunks, waits, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.cli import options
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json, size

if TYPE_CHECKING:
    from camshaft.generate.language_model import PlanDescription


@command
def plan(
    model: options.Model = options.DEFAULT_MODEL,
    backend: options.Backend = None,
    threads: options.Threads = None,
    context: options.Context = options.DEFAULT_CONTEXT,
    activations: options.Activations = None,
    kv_cache: options.KVCache = None,
    json: options.Json = False,
) -> None:
    """Show the compiled plan of a model.

    Lists each thunk with the chosen kernel variant, the reason, and whether it waits for earlier thunks; then memory use."""
    given = {"backend": backend, "threads": threads, "activations": activations, "kv_cache": kv_cache}
    with options.open_model(model, context=context, **given) as lm:
        description = lm.describe_plan()
        if json:
            identity = {"model": lm.name, "backend": lm.backend, "threads": lm.threads, "kv_cache": lm.kv_cache}
            print_json(identity | _report(description))
        else:
            _print(description, lm.kv_cache)


def _report(plan: PlanDescription) -> dict[str, object]:
    thunks = [
        {"name": t.name, "op": t.op, "variant": t.variant, "reason": t.reason, "wait": wait}
        for t, wait in zip(plan.thunks, plan.waits, strict=True)
    ]
    return {
        "thunks": thunks,
        "waits": sum(plan.waits),
        "arena_nbytes": plan.arena_nbytes,
        "temp_nbytes_sum": plan.temp_nbytes_sum,
        "weights_nbytes": plan.weights_nbytes,
        "kv_cache_nbytes": plan.kv_cache_nbytes,
    }


def _print(plan: PlanDescription, kv_cache: str) -> None:
    rows: list[tuple[object, ...]] = [("", "wait", "name", "op", "variant", "why")]
    for number, (t, wait) in enumerate(zip(plan.thunks, plan.waits, strict=True)):
        rows.append((number, "wait" if wait else "", t.name, t.op, t.variant, t.reason))
    print_columns(rows, right=frozenset({0}))
    print()
    facts = [
        ("thunks", f"{len(plan.thunks)}, {sum(plan.waits)} of them waiting for earlier ones"),
        ("arena", f"{size(plan.arena_nbytes)}, for temporaries of {size(plan.temp_nbytes_sum)} in sum"),
        ("weights", size(plan.weights_nbytes)),
        ("KV cache", f"{size(plan.kv_cache_nbytes)} a session, in {kv_cache}"),
    ]
    print_columns(facts)
