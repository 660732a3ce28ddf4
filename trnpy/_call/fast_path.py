"""State that every call reads first. Hooks import no other part of ``_call`` until a call is recorded or not small."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trnpy._base import ranks_env
from trnpy._settings.policy import Policy
from trnpy._settings.tile import area

if TYPE_CHECKING:
    from trnpy._report.reasons import Decision
    from trnpy._settings.host_rates import HostRates

UNSEEN = area(63, least=0)  # no row has a CPU fast path for operands of at most this many elements in total
# ``a @ b`` also calls this ufunc. If trnpy is compiled, a patch leaves it in place and its calls enter the hook.
ENTERED = "numpy.matmul"
# The function to call with the caller's arguments, the conversion of its result to the caller's form, the decision.
Verdict = tuple[Callable[..., Any], Callable[[Any], Any] | None, "Decision"]

_trace: ContextVar[list[Decision] | None] = ContextVar("trnpy_trace", default=None)


class Known:
    """Cached decisions under one policy and one set of host rates; None if calls with a key are decided each time."""

    __slots__ = ("policy", "rates", "verdicts")

    def __init__(self, policy: Policy, rates: HostRates | None, verdicts: dict[Any, Verdict | None]) -> None:
        self.policy, self.rates, self.verdicts = policy, rates, verdicts


class Verdicts:
    """The current cached decisions, replaced as a whole: a thread that holds the old object sees no newer ones."""

    known: Known = Known(Policy(), None, {})  # a policy object that no call has


class Entered:
    """The loaders of rows by the ``id`` of a NumPy function that stays in place while its calls enter a hook."""

    rows: ClassVar[dict[int, Callable[[], Any]]] = {}


def in_keywords(kwargs: dict[str, Any]) -> list[int]:
    """Sizes of the arrays that a call passes by keyword."""
    return [a.size for a in kwargs.values() if isinstance(a, np.ndarray)]


# Called here, because every program that computes loads this module; `import trnpy` alone should cost nothing.
ranks_env.notice_at_end()
