"""What holds for all tests of reports."""

import pytest

from trnpy._base.processors import Processor
from trnpy._report import ledger


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Hand-made runs were those of an idle machine, whatever runs beside these tests."""
    monkeypatch.setattr(ledger, "waited_s", lambda: 0.0)
    monkeypatch.setattr(Processor, "waited_s", 0.0)
