"""Functions without a device path in trnpy's namespaces: they call NumPy or SciPy, or raise if the policy says so."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trnpy._base.conventions import uncounted
from trnpy._call.fast_path import _trace, sizes
from trnpy._call.gate import Way
from trnpy._call.namespace import settled
from trnpy._report import ledger as _ledger
from trnpy._report.no_path import BAND, NAMES, why
from trnpy._report.reasons import Decision, FallbackError, Reason
from trnpy._settings.policy import current_policy
from trnpy._settings.tile import area

SMALL = area(64 * 64)  # elements of all operands; smaller calls are fastest on the host, as for accelerated functions


def strict(names: Mapping[str, Any], home: str, others: Iterable[str] = ()) -> dict[str, Callable[..., Any]]:
    """The functions among ``names``, those of ``home``, that raise FallbackError if ``fallback="raise"``.

    They are the functions without a device path, except memory-bound ones, and the ``others``.
    """
    listed = [name for name, reason in NAMES.items() if reason != BAND]
    chosen = [name for name in (*listed, *others) if name in names]
    return settled([_strict(names[name], home) for name in chosen], home)


def _strict(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    theirs = "numpy.linalg" if function.__module__.startswith("numpy.") else home.replace("trnpy", "scipy")
    name = f"{theirs}.{function.__name__}"

    @uncounted
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        policy = current_policy()
        if policy.fallback == "raise" and (policy.force or sizes(args, kwargs)[0] > SMALL):
            decision = Decision(name, False, Reason.NO_PATH, why(name))
            way = Way(function, args, kwargs)
            way.start()
            way.stop()
            way.note(decision, _ledger.ProcessLedger.ledger, _trace.get(), sys._getframe(1))
            raise FallbackError(decision)
        return function(*args, **kwargs)

    call.__trnpy_pathless__ = name  # type: ignore[attr-defined]
    return call
