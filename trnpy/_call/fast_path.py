"""What a call asks before anything else. Hooks need no more of ``_call`` until a call is recorded or not small."""

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

UNSEEN = area(63, least=0)  # no row has another host route for operands of at most this many elements in all
# The ufunc that ``a @ b`` calls, too. Where trnpy is compiled, a patch leaves it in place and its calls enter the hook.
ENTERED = "numpy.matmul"
# The function to call with the caller's arguments, what gives its result the caller's form, and the decision.
Verdict = tuple[Callable[..., Any], Callable[[Any], Any] | None, "Decision"]

_trace: ContextVar[list[Decision] | None] = ContextVar("trnpy_trace", default=None)


class Known:
    """The verdicts under one policy and one set of host rates; None for a kind whose calls are decided each time."""

    __slots__ = ("policy", "rates", "verdicts")

    def __init__(self, policy: Policy, rates: HostRates | None, verdicts: dict[Any, Verdict | None]) -> None:
        self.policy, self.rates, self.verdicts = policy, rates, verdicts


class Verdicts:
    """The current verdicts. They are replaced as a whole, so a thread that holds the old object sees no newer ones."""

    known: Known = Known(Policy(), None, {})  # a policy object that no call has


class Entered:
    """Functions of NumPy that stay what they are while calls of them enter a hook: what loads the row, by identity."""

    rows: ClassVar[dict[int, Callable[[], Any]]] = {}


def in_keywords(kwargs: dict[str, Any]) -> list[int]:
    """Sizes of the arrays that a call gives by keyword."""
    return [a.size for a in kwargs.values() if isinstance(a, np.ndarray)]


# Here, and not in the package: whoever computes loads this module, and `import trnpy` costs nothing.
ranks_env.notice_at_end()
