"""What a hook does with calls that are recorded and need no row: small ones, and those of excluded callers.

Hooks import this at their first such call. Until then a program starts without what a decision takes.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from typing import Any, Protocol

from trnpy._base.conventions import OWN, uncounted
from trnpy._call.fast_path import ENTERED, _trace
from trnpy._report import ledger as _ledger
from trnpy._report.reasons import Decision, Reason, small_decision
from trnpy._report.small_calls import SmallCalls
from trnpy._settings.policy import Policy


class Excluding(Protocol):
    """What tells which callers a patch excludes: ``hook.Activation``."""

    verdicts: dict[str, bool]

    def excludes(self, caller: str) -> bool:
        """Whether calls from module ``caller`` stay original."""
        ...


def small_calls(
    limit: tuple[str, int, str],
    ledger: _ledger.Ledger,
    frame: types.FrameType,
    here: Excluding,
    policy: Policy | None,
    lines: dict[int, SmallCalls],
) -> SmallCalls | None:
    """The counter of the calls from ``frame`` within ``limit``; None if they need more, or are trnpy's own.

    ``limit``: arguments of ``small_decision``. ``policy``: the current one; None if calls are being traced.
    """
    caller = frame.f_globals.get("__name__", "")
    excludes = here.verdicts.get(caller, here.excludes(caller))
    if policy is None or policy.force or (excludes and _inner(limit[0], caller)):
        return None
    decision = _from_excluded(limit[0], caller) if excludes else small_decision(*limit)
    calls = ledger.small_calls(decision, frame, here, policy)
    if calls is not None:
        if len(lines) >= _ledger.SITES:
            lines.clear()
        lines[id(frame.f_code) + frame.f_lasti] = calls
    return calls


@uncounted
def excluded(name: str, original: Any, caller: str, args: Any, kwargs: Any) -> Any:
    """The original's result for a call from the excluded module ``caller``, recorded unless it is trnpy's."""
    ledger, log = _ledger.ProcessLedger.ledger, _trace.get()
    if (ledger is None and log is None) or _inner(name, caller):
        return original(*args, **kwargs)
    started = time.perf_counter()
    result = original(*args, **kwargs)
    decision = _from_excluded(name, caller)
    if ledger is not None:
        ledger.add(decision, started, time.perf_counter() - started, sys._getframe(2))
    if log is not None:
        log.append(decision)
    return result


def unrecorded(name: str, frame: types.FrameType, policy: Policy) -> bool:
    """Whether calls of ``name`` from ``frame`` run the original and are part of another call, which is recorded."""
    return not policy.force and _inner(name, frame.f_globals.get("__name__", ""))


def _inner(name: str, caller: str) -> bool:
    """Whether ``caller`` is trnpy's code, or NumPy's own for the function that enters: no name of it is replaced."""
    package = str(caller).partition(".")[0]
    return package in OWN or (name == ENTERED and package == "numpy")


@functools.cache
def _from_excluded(name: str, caller: str) -> Decision:
    return Decision(name, False, Reason.EXCLUDED_CALLER, f"called from {caller}")
