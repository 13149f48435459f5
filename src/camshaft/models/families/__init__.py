"""The supported model families: `table.py` has a row of each, with the options of `family.py`.

A family whose layers are its own has a file of its own here, which builds its graph from `models/blocks`.
"""

from camshaft.models.families.family import Family
from camshaft.models.families.table import FAMILIES, OTHERS, family_name

__all__ = ["FAMILIES", "OTHERS", "Family", "family_name"]
