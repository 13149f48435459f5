"""The cache folder and override fixtures that tests of validation, selection and eager calls share."""

from tests.support.dispatch_fixtures import cache, no_children, no_override

__all__ = ["cache", "no_children", "no_override"]
