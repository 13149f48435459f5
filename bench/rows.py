"""What every script in bench/ shares; it is the package's own. Imported by its neighbours."""

from bench.compare.figures import Spread, facts_line, machine, seconds_per_call, table, write

__all__ = ["Spread", "facts_line", "machine", "seconds_per_call", "table", "write"]
