"""`camshaft devices`: list the devices with their limits, or the reason why one is unavailable."""

from __future__ import annotations

from camshaft.cli import options
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json


@command
def devices(json: options.Json = False) -> None:
    """List the devices that plans can run on.

    Shows limits and features, and why a device is unavailable."""
    from camshaft.backends.registry import devices as every_device

    rows = every_device()
    if json:
        print_json({"devices": rows})
        return
    table: list[tuple[object, ...]] = [("device", "backend", "available", "what")]
    for row in rows:
        limits = ", ".join(f"{name} {value}" for name, value in row.limits.items())
        what = row.absent or "; ".join(text for text in (row.description, limits) if text)
        table.append((row.name, row.backend, "no" if row.absent else "yes", what))
    print_columns(table)
