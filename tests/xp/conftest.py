"""Sizes up to which operations of an Array are computed at once."""

import pytest

from trnpy.xp._nodes import Small


@pytest.fixture(params=[Small.elements, -1], ids=["at once", "recorded"])
def computed_at_once_and_recorded(request, monkeypatch):
    """Operations of small arrays are computed at once; without small arrays, all are recorded."""
    monkeypatch.setattr(Small, "elements", request.param)
