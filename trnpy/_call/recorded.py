"""Recording of calls that need no row: small calls, and calls from excluded modules.

It is imported at the first such call, so that a program starts without the modules that a decision needs.
"""

from __future__ import annotations

import functools
import time
from types import FrameType
from typing import Any, Protocol

from trnpy._base.conventions import OWN
from trnpy._call.fast_path import ENTERED
from trnpy._call.gate import Way, is_excluded
from trnpy._report import ledger as _ledger
from trnpy._report.reasons import Decision, Reason, small_decision
from trnpy._report.small_calls import SmallCalls
from trnpy._settings.policy import Policy


class Excluding(Protocol):
    """An object that decides which callers a patch excludes: ``hook.Activation``."""

    verdicts: dict[str, bool]

    def excludes(self, caller: str) -> bool:
        """Whether calls from module ``caller`` stay original."""
        ...


def small_calls(
    limit: tuple[str, int, str], decision: Decision | None, ledger: _ledger.Ledger, frame: FrameType,
    here: Excluding | None, policy: Policy,
) -> SmallCalls | None:  # fmt: skip
    """The counter of the calls from ``frame`` with this decision; None if they are part of another call.

    If ``decision`` is None, the calls are small, and ``limit`` has the arguments of ``small_decision``. ``here`` is the
    activation of a patch, or None for a direct call.
    """
    caller = frame.f_globals.get("__name__", "")
    if here is not None and is_excluded(here, frame):
        if inner(limit[0], frame):
            return None
        decision = _from_excluded(limit[0], caller)
    return ledger.small_calls(small_decision(*limit) if decision is None else decision, frame, here, policy)


def excluded(
    name: str, original: Any, args: Any, kwargs: Any, frame: FrameType, ledger: _ledger.Ledger | None,
    log: list[Decision] | None,
) -> Way:  # fmt: skip
    """How to run a call from an excluded module: by the original, and recorded unless it is part of another call."""
    if (ledger is None and log is None) or inner(name, frame):
        return Way(original, args, kwargs, alone=False)
    decision, cpu_s = _from_excluded(name, frame.f_globals.get("__name__", "")), time.process_time()

    def record(way: Way, seconds: float, ran_s: float) -> None:
        if ledger is not None:
            ledger.add(decision, way.started, seconds, frame, ran_s, time.process_time() - cpu_s)
        if log is not None:
            log.append(decision)

    return Way(original, args, kwargs, alone=False, record=record)


def inner(name: str, frame: FrameType) -> bool:
    """Whether ``frame`` is trnpy's code, or NumPy's code that calls the ufunc with an entry, which keeps its name."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in OWN or (name == ENTERED and package == "numpy")


@functools.cache
def _from_excluded(name: str, caller: str) -> Decision:
    return Decision(name, False, Reason.EXCLUDED_CALLER, f"called from {caller}")
