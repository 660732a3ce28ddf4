"""Every test starts from the same host: no stored calibration, one policy, no recording."""

import pytest

from trnpy._calibration import current_rates


@pytest.fixture(autouse=True)
def uncalibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    current_rates.cache_clear()
    yield
    current_rates.cache_clear()
