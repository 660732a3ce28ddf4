"""Figures, places and tables of reports as text."""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple

from nkisim.hardware import interval
from trnpy._base.records import record
from trnpy._report.tally import Tally
from trnpy._settings.host_rates import current_rates

LINES = 12  # lines of the program that the text shows; JSON has all
NONE = "-"  # stands for an unknown figure
NOTICEABLE = 0.05  # share of the run time: repeated runs of one program on one machine differ by as much
PREFIXES = {15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "µ", -9: "n"}  # by power of ten


def quantity(value: float, unit: str) -> str:
    """Three digits with an SI prefix: 1.23 GB, 45.6 Gflop, 789 µs."""
    powers = [p for p in PREFIXES if (p <= 0 if unit == "s" else p >= 0)]
    # 999.6 rounds to 1000, which is written as 1.00 with the next prefix.
    power = next((p for p in powers if abs(value) >= 0.9995 * 10.0**p), powers[-1])
    scaled = value / 10.0**power
    decimals = 0 if scaled >= 99.95 or (power == 0 and unit != "s") or not value else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{decimals}f} {PREFIXES[power] if value else ''}{unit}"


def duration(seconds: float) -> str:
    """Seconds as text: 789 µs, 4.56 ms, 12.3 s, 3 min 20 s, 1 h 05 min."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return quantity(seconds, "s")


def modelled(seconds: float) -> str:
    """The interval of a modelled time: 0.69-1.45 ms; 1 min 40 s to 3 min 30 s."""
    return span(*interval(seconds))


def span(low: float, high: float) -> str:
    """Two times in one unit: 0.69-1.45 ms."""
    if high >= 120 or not high:
        return f"{duration(low)} to {duration(high)}" if high else duration(high)
    number, unit = duration(high).split()
    return f"{low * float(number) / high:.3g}-{number} {unit}"


def price(dollars: float) -> str:
    """Dollars with two digits, or whole ones: $0.40, $1.2, $1,240."""
    decimals = max(0, 1 - math.floor(math.log10(dollars))) if dollars > 0 else 0
    return f"${dollars:,.{decimals}f}"


def took(t: Tally) -> str:
    """The time of all calls, with ~ if some were not timed."""
    return ("~" if t.timed < t.calls else "") + duration(t.seconds)


def several(count: int, noun: str) -> str:
    """A count and its noun: 1 call, 1,234 calls."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def place(file: str, line: int) -> str:
    """A short ``file:line``, relative to the working directory, a directory of sys.path or site-packages."""
    if not file:
        return "(other places)"
    roots = [os.path.join(os.path.abspath(p), "") for p in (os.getcwd(), *sys.path)]
    root = max((r for r in roots if file.startswith(r)), key=len, default="")
    return f"{file.removeprefix(root).rpartition('/site-packages/')[2]}:{line}"


def place_parts(where: str) -> tuple[str, int]:
    """File and line of ``file:line``."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (where, 0)


@record()
class Table:
    """Cells as text. The first ``left`` columns are aligned left; the others hold numbers, aligned right."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    left: int


def uncalibrated(tallies: list[Tally]) -> str:
    """The mark for predictions from default rates; empty if there are none."""
    return ", uncalibrated" if any(t.uncalibrated for t in tallies) else ""


def basis(tallies: list[Tally]) -> str:
    """A sentence about problems with the rates of the predictions; empty if there are none."""
    if any(t.uncalibrated for t in tallies):
        return "host rates are uncalibrated, predictions rough: python -m trnpy calibrate measures them once"
    if any(t.modelled for t in tallies) and (remark := current_rates().remark):
        return f"the calibration of this host was disturbed, predictions rough ({remark}): repeat it on an idle host"
    return ""


class Larger(NamedTuple):
    """The report's text about several ranks and an instance."""

    ranks: list[str]  # sentences
    beyond: list[str]  # sentences about an instance and more chips
    tables: list[Table]
