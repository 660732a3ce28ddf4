"""The cache of decisions by cache key. Direct, patched and recorded calls all use it before anything else.

Decisions are pure functions of shapes, dtypes, options, policy and rates, so a cached one is exact. It is used only
without an engine, because a decision about an engine also depends on its health, its operands and compiled kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from trnpy._call.decisions import ALONE, Op, Price, Problem, decide, prepared, priced, work_of
from trnpy._call.fast_path import sizes
from trnpy._call.gate import KINDS, Args, Kwargs
from trnpy._engine.engines import at_rest
from trnpy._engine.residency import Reuse
from trnpy._nki.instances import hardware_of
from trnpy._report.reasons import Decision, small_decision
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import Policy

REFINED = 6  # products on the device at least, if a problem has methods: all of these refine eigenvectors
FEW = 16  # numbers up to this one distinguish families of problems; larger ones are lengths

# The function to call with the caller's arguments, the conversion of its result to the caller's form, and the decision,
# None if it was not asked for.
Verdict = tuple[Callable[..., Any], Callable[[Any], Any] | None, Decision | None]


class Known(NamedTuple):
    """Cached decisions under one policy and one set of host rates; None if calls with a key are decided each time."""

    policy: Policy
    rates: HostRates | None
    verdicts: dict[Any, Verdict | None]
    prices: dict[Any, dict[tuple[float, ...], Price]]  # of dry runs, by family and lengths


class Verdicts:
    """The current cached decisions, replaced as a whole: a thread that holds the old object sees no newer ones."""

    known: Known = Known(Policy(), None, {}, {})  # a policy object that no call has


def rest(policy: Policy, rates: HostRates | None = None) -> Known:
    """The cached decisions under ``policy``, which has no engine, and under ``rates`` if given."""
    known = Verdicts.known
    if known.policy is not policy or (rates is not None and known.rates is not rates):
        valid = known.policy == policy and (known.rates is rates or None in (known.rates, rates))
        kept = (known.verdicts, known.prices) if valid else ({}, {})
        Verdicts.known = known = Known(policy, rates or known.rates, *kept)
    return known


def quick(op: Op, found: Any, args: Args, kwargs: Kwargs, policy: Policy, recorded: bool) -> Verdict | None:
    """How to run a call whose applicability check returned ``found``; None if such calls are decided each time."""
    if found is not True and not recorded and at_rest(policy):
        rest(policy)
        return found or op.direct(args, kwargs), None, None
    if found is not True and sizes(args, kwargs)[0] <= op.small:
        return found or op.reference, None, small_decision(op.name, op.small)
    if not at_rest(policy) or policy.fallback == "raise":
        return None
    kind = None if op.kind is None else op.kind(args, kwargs)
    if kind is None:
        return None
    # Only a recorded decision has the modelled device time, because that needs a dry run.
    key, verdicts = (op.name, found, kind, recorded), rest(policy, current_rates()).verdicts
    try:
        return verdicts[key]
    except KeyError:
        if len(verdicts) >= KINDS:
            verdicts.clear()
        verdict = verdicts[key] = _verdict(op, found, args, kwargs, policy, recorded)
        return verdict


def _verdict(op: Op, found: Any, args: Args, kwargs: Kwargs, policy: Policy, recorded: bool) -> Verdict | None:
    """How to run all calls with this cache key while there is no engine; None if each needs its own decision."""
    reference = found if callable(found) else op.direct(args, kwargs)
    ready = prepared(op, found is True, args, kwargs)
    if isinstance(ready, Decision):
        return reference, None, ready
    problem, form = ready
    if recorded:
        decision = recorded_decision(op, problem, policy)
    else:
        decision = decide(op.name, problem, None, policy, current_rates())
    if decision.waiting_s:  # the fast path starts once the seconds lost exceed the import time of its library
        return None
    if not decision.route or problem.route is None:
        return reference, None, decision
    again = problem.route.again
    if again is None:
        return None
    return again, form, decision


def recorded_decision(op: Op, problem: Problem, policy: Policy, reuse: Reuse = ALONE) -> Decision:
    """The decision about a recorded call without an engine, whose device path is priced only for the report.

    A dry run takes 1 to 20 ms, so a program with other shapes in each call would take several times as long. If a
    problem of the same family that is smaller in all lengths already takes too long on the device, its cost is used.
    """
    rates, work = current_rates(), work_of(problem)
    if work is None or reuse != ALONE:
        return decide(op.name, problem, None, policy, rates, reuse=reuse, work=work)
    lengths: list[float] = []
    prices = rest(policy, rates).prices.setdefault(_family(tuple(work), lengths), {})
    smaller = [price for other, price in prices.items() if all(map(operator.le, other, lengths))]
    least = max(smaller, key=lambda price: price.seconds, default=None)
    products = REFINED if problem.methods else 1
    decision = decide(op.name, problem, None, policy, rates, work=work, products=products, least=least)
    if decision.device_s is not None and (least is None or decision.device_s != least.seconds) and len(prices) < KINDS:
        # The dry run has just been made, so this takes its cost from a cache.
        prices[tuple(lengths)] = priced(work, problem.methods, hardware_of(policy.machine), policy, rates)
    return decision


def _family(value: Any, lengths: list[float]) -> Any:
    """``value`` without its numbers above FEW, which are appended to ``lengths``."""
    if isinstance(value, (int, float)) and value > FEW:
        lengths.append(value)
        return None
    if isinstance(value, slice):  # not hashable before Python 3.12
        value = value.start, value.stop, value.step
    if isinstance(value, tuple):
        return tuple([_family(item, lengths) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _family(item, lengths)) for name, item in value.items()])
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple([_family(getattr(value, field.name), lengths) for field in fields(value)])
    return value
