"""What was decided of a kind of call is remembered, and asked for by every call: direct or patched, recorded or not.

Decisions are pure functions of shapes, dtypes, options, policy and rates, so a remembered one is exact. They are kept
while there is no engine at hand: an engine also has a health, operands it holds and kernels it compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnpy._base.conventions import uncounted
from trnpy._call.decisions import Decision, Form, Op, Problem, Reason, Unsupported, decide, work_of
from trnpy._engine.engines import at_rest
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import Attention, Policy
from trnpy._settings.policy import Process as _Process

KINDS = 4096  # of calls that are remembered, of which a program has few; then all are forgotten

Verdict = tuple[Callable[..., Any], Decision]  # what to call with the call's own arguments, and why
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Known:
    """What was decided under one policy and one set of host rates; None: calls of this kind are decided each time."""

    __slots__ = ("policy", "rates", "verdicts")

    def __init__(self, policy: Policy, rates: HostRates | None, verdicts: dict[Any, Verdict | None]) -> None:
        self.policy, self.rates, self.verdicts = policy, rates, verdicts


class Memory:
    """What is known now, replaced as a whole: a thread that holds the old object reads nothing newer in it."""

    known: Known = Known(Policy(), None, {})  # under a policy that no call has


def unattended() -> bool:
    """Whether there is no engine, nothing is recorded and nobody asked for either: the reference is all there is."""
    return not Attention.asked and _Process.policy is Memory.known.policy


def rest(policy: Policy, rates: HostRates | None = None) -> Known:
    """What is known under ``policy``, under which there is no engine at hand, and under ``rates`` if given."""
    known = Memory.known
    if known.policy is not policy or (rates is not None and known.rates is not rates):
        valid = known.policy == policy and (known.rates is rates or None in (known.rates, rates))
        Memory.known = known = Known(policy, rates or known.rates, known.verdicts if valid else {})
    return known


def quick(op: Op, found: Any, args: Args, kwargs: Kwargs, policy: Policy, recorded: bool) -> Verdict | None:
    """How to run a call whose look gave ``found``; None: it is decided by its arguments, each time."""
    if found is not True and not policy.force and elements(args) <= op.small:
        return found or op.reference, small_decision(op.name, op.small)
    if not at_rest(policy) or policy.fallback == "raise":
        return None
    kind = None if op.kind is None else op.kind(args, kwargs)
    if kind is None:
        return None
    # What is recorded has the device's modelled seconds, for which the others do not wait.
    modelled = recorded and op.dry
    key, verdicts = (op.name, found is True, kind, modelled), rest(policy, current_rates()).verdicts
    try:
        return verdicts[key]
    except KeyError:
        if len(verdicts) >= KINDS:
            verdicts.clear()
        verdict = verdicts[key] = _verdict(op, found, args, kwargs, policy, modelled)
        return verdict


def _verdict(op: Op, found: Any, args: Args, kwargs: Kwargs, policy: Policy, modelled: bool) -> Verdict | None:
    """What every call of this kind does while there is no engine at hand."""
    reference = found if callable(found) else op.reference
    ready = prepared(op, found is True, args, kwargs)
    if isinstance(ready, Decision):
        return reference, ready
    problem, form = ready
    work = work_of(op, problem) if modelled else None
    decision = decide(op.name, problem, None, policy, current_rates(), work=work)
    if decision.waiting_s:  # a route that waits until the seconds lost pay for an import
        return None
    if not decision.route or problem.route is None:
        return reference, decision
    again = problem.route.again
    if again is None:
        return None
    return (again if form is None else _formed(form, again)), decision


def _formed(form: Form, again: Callable[..., Any]) -> Callable[..., Any]:
    return uncounted(lambda *args, **kwargs: form(again(*args, **kwargs)))


def prepared(op: Op, may_route: bool, args: Args, kwargs: Kwargs) -> tuple[Problem, Form | None] | Decision:
    """The problem of a call and the form of its result, or why there is none; a route only where the look saw one."""
    try:
        problem = op.prepare(*args, **kwargs)
        form = None if op.form is None else op.form(op.reference, args, kwargs)
    except Unsupported as why:
        return Decision(op.name, False, why.reason, str(why))
    except (TypeError, ValueError) as why:  # of the arguments: the reference has the right message
        return Decision(op.name, False, Reason.PARAM, str(why))
    return (problem if may_route else replace(problem, route=None)), form


def elements(args: Args) -> float:
    """Elements of the array arguments; infinite when there is anything to look at more closely."""
    n = 0.0
    for a in args:
        if type(a) is np.ndarray:
            n += a.size
        elif a is not None and not isinstance(a, (str, int, float)):
            return math.inf
    return n


@functools.cache
def small_decision(name: str, elements: int) -> Decision:
    """That of calls of ``name`` with operands of at most so many elements in all."""
    return Decision(name, False, Reason.SMALL, f"at most {elements} elements")
