"""Fixtures for tests of validation, selection and eager calls: a cache folder, a reset override, proofs in child processes."""

from tests.support.dispatch_fixtures import cache, no_children, no_override
from tests.support.how_to_validate import child_processes

__all__ = ["cache", "child_processes", "no_children", "no_override"]
