"""Durations, quantities and places as text."""

import pytest

from trnpy._report.units import duration, place, quantity


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1e-10, "0.10 ns"), (1.234e-6, "1.23 µs"), (0.0123, "12.3 ms"), (0.9996, "1.00 s"), (99.96, "100 s"),
     (119.0, "119 s"), (205.0, "3 min 25 s"), (3900.0, "1 h 05 min")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (7, "7 B"), (999.7, "1.00 kB"), (123456, "123 kB"), (4.5e9, "4.50 GB"), (1e19, "10000 PB")],
)
def test_quantities(value, text):
    assert quantity(value, "B") == text


def test_places_are_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place(str(tmp_path / "a" / "b.py"), 3) == "a/b.py:3"
    assert place("/x/lib/python3.11/site-packages/pyscf/df/df_jk.py", 4) == "pyscf/df/df_jk.py:4"
    assert place("", 0) == "(other places)"
