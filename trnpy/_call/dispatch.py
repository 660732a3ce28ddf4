"""The one place where a call goes to the device or stays on the host.

prepare -> decide -> run -> check -> deliver. When a step refuses, the reference function runs with the caller's own
arguments.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, cast

import numpy as np

from trnpy._base.conventions import counted, uncounted
from trnpy._call.decision_cache import elements, prepared, quick, rest, unattended
from trnpy._call.decisions import ALONE, Cost, Form, Op, Problem, Route, decide, work_of
from trnpy._call.fast_path import Entered, Verdict, Verdicts, _trace
from trnpy._call.known_answer import fault, retry, sound
from trnpy._call.verify import Verified
from trnpy._engine import lapack, tuning
from trnpy._engine.engines import HOST, Engine, Refused, _override, at_rest, current_engine
from trnpy._engine.precision import eps, underflow
from trnpy._engine.proof.checksums import Wrong
from trnpy._engine.proof.engine import Proving
from trnpy._engine.residency import Cache
from trnpy._nki.runtime import DeviceMemoryError
from trnpy._report import ledger as _ledger
from trnpy._report.reasons import CONTENT, Decision, FallbackError, NkiFallbackWarning, Reason, Unsupported
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Attention, Policy, _own, current_policy
from trnpy._settings.policy import ProcessPolicy as _Process

__all__ = [
    "ALLOWED_ERROR", "CONTENT", "Cost", "Decision", "FallbackError", "NkiFallbackWarning", "Op", "Problem", "Reason",
    "Route", "Unsupported", "accelerated", "decide", "dispatch", "explain", "routed", "trace", "unattended",
]  # fmt: skip

ALLOWED_ERROR = 10.0  # times n times eps; the error of a backward stable algorithm is far smaller
# Of calls on the host that may pay with operands that stay on a device. FASTER is the model's reason without a device.
REUSABLE = frozenset({Reason.MEMORY_BOUND, Reason.SLOWER, Reason.FASTER})
EXCUSE = "the check is to blame"
SEARCHED = frozenset({"numpy.einsum", "numpy.linalg.multi_dot"})  # rows that search a path by opt_einsum

_fallen: ContextVar[bool] = ContextVar("trnpy_fallen", default=False)  # whether the host is repeating a failed call


@contextlib.contextmanager
def trace() -> Iterator[list[Decision]]:
    """Collect the decisions of all calls in a block, in this thread or task.

    Yields
    ------
    list of Decision
        One for each call of an accelerated function, in order; filled while the block runs.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a = np.ones((4, 4))
    >>> with trnpy.trace() as decisions:
    ...     b = trnpy.matmul(a, a)
    >>> [(decision.op, str(decision.reason)) for decision in decisions]
    [('numpy.matmul', 'small')]
    """
    decisions: list[Decision] = []
    Attention.asked = Attention.apart = True
    token = _trace.set(decisions)
    try:
        yield decisions
    finally:
        _trace.reset(token)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Decision:
    """Decide where a call would run, without running it.

    Parameters
    ----------
    function : callable
        An accelerated function: one of trnpy's, or a patched NumPy or SciPy function. Or a function of their linear
        algebra or transforms that has no path on a device: the decision says why.
    *args, **kwargs
        Its arguments. Only shapes, dtypes and options are read, and single elements if a faster method on the host
        depends on them. Nothing of the size of the operands is allocated.

    Returns
    -------
    Decision
        Where the call would run, and why.

    Raises
    ------
    TypeError
        If `function` is neither.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> print(trnpy.explain(np.linalg.eigvals, np.eye(3)).reason)
    no_path
    >>> a = np.ones((1000, 1000))
    >>> with trnpy.policy(device="none"):
    ...     decision = trnpy.explain(trnpy.matmul, a, a)
    >>> decision.on_device, str(decision.reason)
    (False, 'no_device')
    """
    load = Entered.rows.get(id(function))
    op = getattr(function, "__trnpy_op__", None) if load is None else load()
    if not isinstance(op, Op):
        pathless = importlib.import_module("trnpy._report.no_path")  # loaded late: calls do not need it
        if name := pathless.pathless(function):
            return Decision(name, False, Reason.NO_PATH, pathless.why(name))
        if ours := pathless.counterpart(function):
            raise TypeError(f"explain({function!r}): not patched here; give {ours}, or explain it in trnpy.patched()")
        raise TypeError(f"explain({function!r}): expected an accelerated function, such as trnpy.einsum")
    may_route = op.look is not None and op.look(args, kwargs) is True
    return _plan(op, may_route, args, kwargs, current_policy())[2]


def _plan(
    op: Op, may_route: bool, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy, recorded: bool = True
) -> tuple[Problem | None, Form | None, Decision, Engine | None]:
    """The problem, the form of its result, the decision and the engine."""
    engine = current_engine(policy)
    ready = prepared(op, may_route, args, kwargs)
    if isinstance(ready, Decision):
        return None, None, ready, engine
    problem, form = ready
    # Without an engine the modelled seconds matter only to ``explain``, traces and reports.
    work = work_of(problem) if recorded or engine is not None else None
    machine = engine.hardware if engine is not None else None
    if engine is not None and (engine.health.open or _fallen.get()):
        detail = "part of a call that met a device error"
        if not _fallen.get():
            detail = f"resting after repeated device errors: {engine.health}"
        return problem, form, Decision(op.name, False, Reason.ERROR, detail), engine
    if engine is not None and (barred := engine.health.barred(lambda: _kind(op, problem, policy))):
        detail = f"calls of this kind stay on the host after a fault: {barred}"
        return problem, form, Decision(op.name, False, Reason.ERROR, detail), engine
    operands = _operands(engine, recorded)
    reuse = ALONE if operands is None else operands.reuse(problem.arrays)
    compile_s = 0.0 if engine is None else engine.compiles.seconds(*_compiled_for(op, problem, policy))
    decision = decide(op.name, problem, machine, policy, current_rates(), compile_s, reuse, work)
    return problem, form, decision, engine


def _operands(engine: Engine | None, recorded: bool) -> Cache | None:
    """What counts the uses of operands: the engine's cache, or for the what-if of a run without engine the ledger's."""
    if engine is not None:
        return engine.cache
    ledger = _ledger.ProcessLedger.ledger if recorded else None
    if ledger is not None and ledger.operands is None:
        ledger.operands = Cache()
    return None if ledger is None else cast("Cache", ledger.operands)


def _compiled_for(op: Op, problem: Problem, policy: Policy) -> tuple[str, tuple[np.ndarray, ...], np.dtype, str]:
    """What the compiled kernels of a call depend on: the arguments of ``Compiles``."""
    return op.name, problem.arrays, problem.dtype, policy.products


def _kind(op: Op, problem: Problem, policy: Policy) -> str:
    return tuning.kind(*_compiled_for(op, problem, policy))


def accelerated(op: Op) -> Callable[..., Any]:
    """The public function for ``op``, with the reference's name, signature and doc."""
    call = routed(op)
    # As attributes of a class, Python functions become methods; ufuncs and f2py's functions do not.
    if hasattr(type(op.reference), "__get__"):
        return call
    # Each gets a type of its own with ``call`` as a static method: a __call__ method would double the overhead.
    kind = type(_Unbound.__name__, (_Unbound,), {"__call__": staticmethod(call)})
    return cast(Callable[..., Any], kind(call, op.reference))


def routed(op: Op) -> Callable[..., Any]:
    """The function that routes calls of ``op``, whatever the reference is."""
    reference, look = op.reference, op.look
    attention, process, memory, report = Attention, _Process, Verdicts, _ledger.ProcessLedger
    own, chosen, log_of = _own.get, _override.get, _trace.get
    numpys = op.name.startswith("numpy.")  # they ask Arrays themselves

    @uncounted
    @functools.wraps(reference)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = look is not None and look(args, kwargs)
        if found is not True and not attention.asked and process.policy is memory.known.policy:  # ``unattended``
            return (found or reference)(*args, **kwargs)
        if not numpys and attention.arrays and (answer := attention.arrays(call, args, kwargs)) is not NotImplemented:
            return answer
        policy, ledger, log = own() or current_policy(), report.ledger, log_of()
        recorded = ledger is not None or log is not None
        if found is not True and not recorded:
            # at_rest, inlined: after LAPACK has emptied the caches each call of a Python function takes a microsecond.
            if policy is memory.known.policy and chosen() is None:
                return (found or reference)(*args, **kwargs)
            if at_rest(policy):
                rest(policy)
                return (found or reference)(*args, **kwargs)
            if not policy.force and elements(args, kwargs) <= op.small:
                return (found or reference)(*args, **kwargs)
        verdict = quick(op, found, args, kwargs, policy, recorded)
        if not recorded:
            return dispatch(op, verdict, found is True, args, kwargs, policy, recorded=False)[0]
        if verdict is None:
            _ready(op.name in SEARCHED)
        ran_from = 0.0 if ledger is None else time.thread_time()
        started = time.perf_counter()
        try:
            result, decision = dispatch(op, verdict, found is True, args, kwargs, policy)
        except FallbackError as refused:
            _record(refused.decision, started, ledger, log)
            raise
        if ledger is not None:
            seconds = time.perf_counter() - started
            ledger.add(decision, started, seconds, sys._getframe(1), time.thread_time() - ran_from)
            if decision.route and ledger.comparisons.wanted:
                ledger.comparisons.compare(decision, seconds, reference, args, kwargs)
        if log is not None:
            log.append(decision)
        return result

    call.__trnpy_op__ = op  # type: ignore[attr-defined]
    return call


@functools.cache
def _ready(searches: bool) -> None:
    """Load libraries before the clock starts: else the first call would be timed with them and the host look slow."""
    current_rates()
    current_engine(current_policy())
    if searches:
        importlib.import_module("opt_einsum")


def _record(decision: Decision, started: float, ledger: _ledger.Ledger | None, log: list[Decision] | None) -> None:
    """Record a call that raises, from inside ``routed``."""
    if ledger is not None:
        ledger.add(decision, started, time.perf_counter() - started, sys._getframe(2))
    if log is not None:
        log.append(decision)


class _Unbound:
    """An accelerated function whose reference is a ufunc or from f2py: it never binds, and has their attributes."""

    def __init__(self, call: Callable[..., Any], original: Callable[..., Any]) -> None:
        functools.update_wrapper(cast(Any, self), call)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # ``copy`` looks up attributes before __init__ has run
            raise AttributeError(name)
        return getattr(self._original, name)

    def __reduce__(self) -> str:
        return str(self.__name__)  # pickled by name, as a global of its module

    def __repr__(self) -> str:
        return f"<accelerated {self._original!r}>"


@uncounted
def dispatch(
    op: Op, verdict: Verdict | None, may_route: bool, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy,
    recorded: bool = True,
) -> tuple[Any, Decision]:  # fmt: skip
    """The result of a call, and its decision: the ``verdict`` on calls of its kind, or one for this call."""
    if verdict is None:
        return _decided(op, may_route, args, kwargs, policy, recorded)
    run, decision = verdict
    try:
        return run(*args, **kwargs), decision
    except Unsupported as why:
        decision = replace(decision, reason=why.reason, detail=str(why), route="")
    return op.reference(*args, **kwargs), decision


@uncounted
def _decided(
    op: Op, may_route: bool, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy, recorded: bool
) -> tuple[Any, Decision]:
    """``dispatch`` of a call that has no verdict: its arguments decide."""
    if (engine := current_engine(policy)) is not None:
        if engine.health.due:
            retry(engine)
        if recorded and (ledger := _ledger.ProcessLedger.ledger) is not None:
            ledger.engines[engine.name] = engine.health
    problem, form, decision, engine = _plan(op, may_route, args, kwargs, policy, recorded)
    if decision.on_device and problem is not None and engine is not None and (engine.executes or policy.force):
        problem = replace(problem, method=decision.method) if decision.method else problem
        before, fallen = Counter(engine.counters.launches), False
        try:
            with np.errstate(all="ignore"):  # for a device's result; the reference warns if the operands overflow
                result = _accepted(problem, engine, policy, before)
        except Unsupported as why:
            decision = replace(decision, on_device=False, reason=why.reason, detail=str(why))
        except Refused as why:
            reason = Reason.ACCURACY if why.accuracy else Reason.DTYPE
            decision = replace(decision, on_device=False, reason=reason, detail=str(why))
        # A driver may raise anything, and the user must still get a result: count the fault, warn and report it.
        except Exception as why:
            fault(engine, why, problem, _kind(op, problem, policy))
            decision = replace(decision, on_device=False, **_fault(why))
            if policy.fallback == "raise":
                raise FallbackError(decision) from why
            if policy.fallback == "warn":
                _warn(decision, engine)
            fallen = True
        else:
            engine.compiles.ran(*_compiled_for(op, problem, policy))
            decision = _proved(decision, engine, before)
            return _delivered(op, problem, form, result, args, kwargs, decision, policy, engine)
        decision = replace(decision, launches=_launched(engine, before))
        if fallen:
            return _after_fault(op, args, kwargs), decision
    elif decision.reason is Reason.NOT_COMPILED and problem is not None and engine is not None:
        engine.compiles.lose(*_compiled_for(op, problem, policy), decision.gain_s)
    if not decision.on_device and (decision.model_reason or decision.reason) in REUSABLE:
        operands = _operands(engine, recorded)
        if operands is not None and problem is not None:
            operands.computed_by_host(problem.arrays)
    if not decision.on_device and decision.reason not in CONTENT:
        if engine is not None:
            engine.health.refusals[str(decision.reason)] += 1
        if policy.fallback == "raise":
            raise FallbackError(decision)
    if decision.route and problem is not None and problem.route is not None:
        try:
            return _formed(form, problem.route.run()), decision
        except Unsupported as why:
            decision = replace(decision, reason=why.reason, detail=str(why), route="")
    lapack.Scipy.lost_s += decision.waiting_s
    return op.reference(*args, **kwargs), decision


@uncounted
def _run(problem: Problem, engine: Engine) -> Any:
    try:
        return problem.run(engine)
    except (np.linalg.LinAlgError, Warning) as why:  # from the host's part; a warning, if filters make it an error
        raise Unsupported(Reason.VALUE, f"{type(why).__name__}: {why}") from why


@uncounted
def _accepted(problem: Problem, engine: Engine, policy: Policy, before: Counter[str]) -> Any:
    """The checked result on ``engine``, whose launches so far are ``before``; Wrong if the engine is wrong."""
    try:
        try:
            return _checked(problem, engine, policy)
        except Wrong as why:
            if not (excuse := _excuse(problem, policy)):
                raise
            raise Unsupported(Reason.ACCURACY, f"{why}; {excuse}") from why
    except (Unsupported, Refused) as why:
        doubted = why.accuracy if isinstance(why, Refused) else why.reason in (Reason.ACCURACY, Reason.VALUE)
        unit = eps(problem.dtype, policy.products)
        if doubted and _launched(engine, before) and not sound(engine, problem.dtype, unit):
            raise Wrong(f"{why}; {engine.name} gets a product of known answer wrong") from why
        raise


@uncounted
def _checked(problem: Problem, engine: Engine, policy: Policy) -> Any:
    """The result on ``engine``, whose products are proved; Wrong if it fails its check, Unsupported if not finite."""
    result = _run(problem, cast(Engine, Proving(engine)))
    error = problem.error(result) / eps(problem.dtype, policy.products)
    allowed = ALLOWED_ERROR * max(max(a.shape, default=1) for a in problem.arrays)
    if error <= allowed:
        return result
    detail = f"backward error {error:.0f} eps > {allowed:.0f} eps"
    if not math.isfinite(error) or underflow(problem.arrays):  # or the engine is wrong
        raise Unsupported(Reason.ACCURACY, detail)
    raise Wrong(detail)


@uncounted
def _excuse(problem: Problem, policy: Policy) -> str:
    """Why a failed check says nothing of the device; "" if the host's own result passes it."""
    try:
        _checked(problem, HOST, policy)
    except Wrong as why:
        return f"the host's own result fails the check too ({why}): {EXCUSE}"
    except (Unsupported, Refused) as why:
        return f"the algorithm refuses these values on the host too: {why}"
    return ""


@uncounted
def _delivered(
    op: Op, problem: Problem, form: Form | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    decision: Decision, policy: Policy, engine: Engine,
) -> tuple[Any, Decision]:  # fmt: skip
    """An accepted result for the caller; in the policy's fraction of calls the reference's, if the two disagree."""
    if policy.verify and _chance()() < policy.verify:

        def deliver(problem: Problem, result: Any) -> Any:
            return _formed(form, problem.deliver(copy.deepcopy(result)))

        verified = Verified(op, problem, deliver, args, kwargs, eps(problem.dtype, policy.products))
        apart = verified.apart(result)
        if found := verified.wrong(apart):
            decision = replace(decision, on_device=False, reason=Reason.ACCURACY, detail=f"verified: {found}")
            try:
                excused = verified.apart(_run(problem, HOST)) >= apart / 2
            except (Unsupported, Refused):
                excused = False
            if excused:
                decision = replace(decision, detail=f"{decision.detail}; so does the algorithm's on the host")
                engine.health.refusals[str(decision.reason)] += 1
            else:
                fault(engine, Wrong(found), problem, _kind(op, problem, policy))
            if policy.fallback == "raise":
                raise FallbackError(decision)
            if policy.fallback == "warn":
                _warn(decision, engine)
            return op.reference(*args, **kwargs), decision
    engine.health.worked()
    return _formed(form, problem.deliver(result)), decision


def _formed(form: Form | None, result: Any) -> Any:
    return result if form is None else form(result)


@uncounted
def _after_fault(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The reference's result after a fault; calls of trnpy inside the reference do not use the engine."""
    token = _fallen.set(True)
    try:
        return op.reference(*args, **kwargs)
    finally:
        _fallen.reset(token)


def _proved(decision: Decision, engine: Engine, before: Counter[str]) -> Decision:
    """The ``decision`` on an accepted result: of the device only if there were launches."""
    if launches := _launched(engine, before):
        return replace(decision, engine=engine.name, launches=launches)
    detail = f"{decision.reason}: the device path had nothing to launch"
    return replace(decision, on_device=False, reason=Reason.NO_LAUNCH, detail=detail)


def _launched(engine: Engine, before: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Launches of each kernel since ``before``, including those of other threads meanwhile."""
    now = Counter(engine.counters.launches)  # copied at once: other threads launch while a difference is taken
    return tuple(sorted((now - before).items()))


def _warn(decision: Decision, engine: Engine) -> None:
    rest = f"; {engine.name} rests from now on, after {engine.health}" if engine.health.open else ""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _ledger.LIBRARIES:
        level, frame = level + counted(frame), frame.f_back
    message = f"{decision.op} ran on the host: {decision.detail}{rest}"
    warnings.warn(message, NkiFallbackWarning, stacklevel=level)


def _fault(why: Exception) -> dict[str, Any]:
    """The reason and the detail of a decision after the exception ``why``."""
    if isinstance(why, Wrong):
        return {"reason": Reason.ACCURACY, "detail": str(why)}
    reason = Reason.OOM if isinstance(why, (DeviceMemoryError, MemoryError)) else Reason.ERROR
    return {"reason": reason, "detail": f"{type(why).__name__}: {why}"}


@functools.cache
def _chance() -> Callable[[], float]:
    """A generator of random numbers from 0 to 1 that does not change the state of the program's generators."""
    import random  # imported late: it takes 3 ms, and only a policy that verifies needs it

    return random.Random().random
