"""no_collection: the collector rests within it and is afterwards what it was before, errors included."""

import gc

import pytest

from camshaft.process import no_collection


def _fail_within() -> None:
    with no_collection():
        raise ValueError("on within" if gc.isenabled() else "off within")


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_afterwards_what_it_was(on) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(ValueError, match="off within"):
            _fail_within()
        assert gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()
