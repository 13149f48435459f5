"""Extent, where plan/ first looked for it."""

from camshaft.extent import Extent

__all__ = ["Extent"]
