"""Fixtures for tests of validation, selection and eager calls: a cache folder and a reset override."""

from tests.support.dispatch_fixtures import cache, no_children, no_override

__all__ = ["cache", "no_children", "no_override"]
