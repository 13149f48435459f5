"""Tests of ops compare results with references, so they need no validation of the variants that plans choose."""

from tests.support.same_process import variants_are_believed

__all__ = ["variants_are_believed"]
