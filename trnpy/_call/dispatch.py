"""The only place where a call goes to the device or stays on the host.

prepare -> decide -> run -> check -> deliver. If a step refuses, the original function runs with the caller's own
arguments.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import importlib
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from types import FrameType
from typing import Any, cast

import numpy as np

from trnpy._base.conventions import counted
from trnpy._call.decision_cache import Verdicts, quick, recorded_decision
from trnpy._call.decisions import ALONE, Cost, Form, Op, Problem, Route, decide, prepared, work_of
from trnpy._call.fast_path import Entered, _trace
from trnpy._call.floating_errors import refuse_underflow
from trnpy._call.gate import Face, Way, gated, stand_in
from trnpy._call.verify import Verified
from trnpy._engine import lapack, tuning
from trnpy._engine.engines import HOST, Engine, Refused, current_engine
from trnpy._engine.known_answer import fault, retry, sound
from trnpy._engine.precision import eps, underflow
from trnpy._engine.proof.checksums import Wrong
from trnpy._engine.proof.engine import Proving
from trnpy._engine.residency import Cache
from trnpy._nki.runtime import DeviceMemoryError
from trnpy._report import ledger as _ledger
from trnpy._report.reasons import CONTENT, Decision, FallbackError, NkiFallbackWarning, Reason, Unsupported
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Attention, Policy, ProcessPolicy, current_policy

__all__ = [
    "ALLOWED_ERROR", "CONTENT", "Cost", "Decision", "FallbackError", "NkiFallbackWarning", "Op", "Problem", "Reason",
    "Route", "Unsupported", "accelerated", "decide", "decides", "explain", "trace", "unattended",
]  # fmt: skip

ALLOWED_ERROR = 10.0  # times n times eps; the error of a backward stable algorithm is far smaller
# Reasons of host calls that may pay once operands are device-resident. FASTER is the model's reason without a device.
REUSABLE = frozenset({Reason.MEMORY_BOUND, Reason.SLOWER, Reason.FASTER})
EXCUSE = "the check is to blame"
LONG_S = 1e-3  # predicted seconds; a call that takes longer is recorded by itself
SEARCHED = frozenset({"numpy.einsum", "numpy.linalg.multi_dot"})  # rows that search a path with opt_einsum

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
        An accelerated function: one of trnpy's, or a patched NumPy or SciPy function. It may also be a linear algebra
        or transform function of NumPy or SciPy without a device path; the decision then states the reason.
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
        If `function` is none of these.

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
    found = op.look is not None and op.look(args, kwargs)
    may_route = found is True or (found is False and _is_routed_subclass(op, args, kwargs))
    return _plan(op, may_route, args, kwargs, current_policy())[2]


def _plan(
    op: Op, may_route: bool, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy, recorded: bool | None = None
) -> tuple[Problem | None, Form | None, Decision, Engine | None]:
    """The problem, the form of its result, the decision and the engine; ``recorded`` is None for ``explain``."""
    engine = current_engine(policy)
    ready = prepared(op, may_route, args, kwargs)
    if isinstance(ready, Decision) and ready.reason is Reason.SUBCLASS:
        ready = importlib.import_module("trnpy._call.array_subclasses").prepared_as_plain(op, args, kwargs) or ready
    if isinstance(ready, Decision):
        return None, None, ready, engine
    problem, form = ready
    machine = engine.hardware if engine is not None else None
    if engine is not None and (engine.health.open or _fallen.get()):
        detail = "part of a call that met a device error"
        if not _fallen.get():
            detail = f"resting after repeated device errors: {engine.health}"
        return problem, form, Decision(op.name, False, Reason.ERROR, detail), engine
    if engine is not None and (barred := engine.health.barred(lambda: _kind(op, problem, policy))):
        detail = f"calls of this kind stay on the host after a fault: {barred}"
        return problem, form, Decision(op.name, False, Reason.ERROR, detail), engine
    operands = _operands(engine, recorded is not False)
    reuse = ALONE if operands is None else operands.reuse(problem.arrays)
    if engine is None and recorded:
        return problem, form, recorded_decision(op, problem, policy, reuse), engine
    # If there is no engine, only ``explain``, traces and reports need the modelled seconds.
    work = None if engine is None and recorded is False else work_of(problem)
    compile_s = 0.0 if engine is None else engine.compiles.seconds(*_compiled_for(op, problem, policy))
    decision = decide(op.name, problem, machine, policy, current_rates(), compile_s, reuse, work)
    return problem, form, decision, engine


def _operands(engine: Engine | None, recorded: bool) -> Cache | None:
    """The cache that counts uses of operands: the engine's; without an engine, the ledger's, for its predictions."""
    if engine is not None:
        return engine.cache
    ledger = _ledger.ProcessLedger.ledger if recorded else None
    if ledger is not None and ledger.operands is None:
        ledger.operands = Cache()
    return None if ledger is None else cast("Cache", ledger.operands)


def _compiled_for(op: Op, problem: Problem, policy: Policy) -> tuple[str, tuple[np.ndarray, ...], np.dtype, str]:
    """The properties of a call that determine its compiled kernels: the arguments of ``Compiles``."""
    return op.name, problem.arrays, problem.dtype, policy.products


def _kind(op: Op, problem: Problem, policy: Policy) -> str:
    return tuning.kind(*_compiled_for(op, problem, policy))


def accelerated(op: Op) -> Callable[..., Any]:
    """The public function for ``op``, with the original's name, signature and doc."""
    return cast(Callable[..., Any], stand_in(Direct, DIRECT, op.reference, lambda: op, op.name))


class Direct(Face):
    """An accelerated function under trnpy's own name."""

    def __reduce__(self) -> str:
        return str(self.__name__)  # pickled by name, as a global of its module

    def __repr__(self) -> str:
        return f"<accelerated {self._original!r}>"


DIRECT = gated(Direct)


def unattended() -> bool:
    """Whether no engine, record or setting has been requested; then the original function runs at once."""
    return not Attention.asked and ProcessPolicy.policy is Verdicts.known.policy


def decides(op: Op, function: Callable[..., Any], way: Way, args: Any, kwargs: Any, frame: FrameType) -> None:
    """Decide a call of ``function``, and put its result or the function to run into ``way``."""
    found = op.look is not None and op.look(args, kwargs)
    if not op.name.startswith("numpy.") and Attention.arrays:  # NumPy's functions dispatch to Arrays themselves
        answer = Attention.arrays(function, args, kwargs)
        if answer is not NotImplemented:
            way.result = answer
            return
    policy, ledger, log = current_policy(), _ledger.ProcessLedger.ledger, _trace.get()
    recorded = ledger is not None or log is not None
    if found is False and _is_routed_subclass(op, args, kwargs):
        found = True
    verdict = None if policy.force else quick(op, found, args, kwargs, policy, recorded)
    if recorded:
        way.record = functools.partial(_recorded, op, args, kwargs, frame, ledger, log)
    if verdict is not None:
        function, way.form, decision = verdict
        way.decision, way.routed = decision, decision is not None and bool(decision.route)
        way.run(function, args, kwargs)
        if way.routed:
            _or_reference(op, way, args, kwargs)
        # Long calls are recorded one by one, each with its own gain and the processor time of all threads.
        long = decision is not None and (decision.host_s or 0.0) > LONG_S
        each = log is not None or (ledger is not None and (long or ledger.comparisons.wanted))
        if way.form is None and not each:
            way.settled = function
        return
    if recorded:
        _ready(op.name in SEARCHED)
        way.start()  # again, because the time of loading is not counted
    try:
        _decided(op, found, way, args, kwargs, policy, recorded)
    except FallbackError as refused:
        if recorded:
            way.stop()
            way.note(refused.decision, ledger, log, frame)
        raise


def _is_routed_subclass(op: Op, args: Any, kwargs: Any) -> bool:
    """Whether a call with instances of a subclass of numpy.ndarray may have a CPU fast path."""
    if op.look is None or all(type(a) is np.ndarray or not isinstance(a, np.ndarray) for a in args):
        return False
    plain = importlib.import_module("trnpy._call.array_subclasses").as_plain(op.reference, args, kwargs)
    return plain is not None and op.look(plain.args, plain.kwargs) is True


def _recorded(
    op: Op,
    args: Any,
    kwargs: Any,
    frame: FrameType,
    ledger: _ledger.Ledger | None,
    log: list[Decision] | None,
    way: Way,
) -> None:
    """Record a call that ``way`` has run."""
    decision = cast(Decision, way.decision)
    way.note(decision, ledger, log, frame)
    if ledger is not None and decision.route and ledger.comparisons.wanted:
        ledger.comparisons.compare(decision, way.seconds, op.reference, args, kwargs)


@functools.cache
def _ready(searches: bool) -> None:
    """Load libraries before the clock starts, so that the time of the first call does not include loading."""
    current_rates()
    current_engine(current_policy())
    if searches:
        importlib.import_module("opt_einsum")


def _or_reference(op: Op, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the original function if the function of ``way`` refuses the values."""

    def instead(why: Any) -> None:
        way.decision = replace(cast(Decision, way.decision), reason=why.reason, detail=str(why), route="")
        way.form, way.settled, way.refusals = None, None, ()
        way.run(op.reference, args, kwargs)

    way.refusals, way.instead = (Unsupported,), instead


def _decided(
    op: Op, found: Any, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy, recorded: bool
) -> None:
    """Decide a call that has no cached decision, and put its result or the function to run into ``way``.

    ``found`` is what the applicability check returned.
    """
    reference = found if callable(found) else op.reference
    if (engine := current_engine(policy)) is not None:
        if engine.health.due:
            retry(engine)
        if recorded and (ledger := _ledger.ProcessLedger.ledger) is not None:
            ledger.engines[engine.name] = engine.health
    problem, form, decision, engine = _plan(op, found is True, args, kwargs, policy, recorded)
    if decision.on_device and problem is not None and engine is not None and (engine.executes or policy.force):
        problem = replace(problem, method=decision.method) if decision.method else problem
        before, fallen = Counter(engine.counters.launches), False
        try:
            refuse_underflow(op.name, problem.arrays)
            with np.errstate(all="ignore"):  # for a device's result; the original warns if the operands overflow
                result = _accepted(problem, engine, policy, before)
        except Unsupported as why:
            decision = replace(decision, on_device=False, reason=why.reason, detail=str(why))
        except Refused as why:
            reason = Reason.ACCURACY if why.accuracy else Reason.DTYPE
            decision = replace(decision, on_device=False, reason=reason, detail=str(why))
        # A driver may raise anything, and the user must still get a result: count the fault, warn and report it.
        except Exception as why:
            fault(engine, why, problem.arrays, _kind(op, problem, policy))
            decision = replace(decision, on_device=False, **_fault(why))
            if policy.fallback == "raise":
                raise FallbackError(decision) from why
            if policy.fallback == "warn":
                _warn(decision, engine)
            fallen = True
        else:
            engine.compiles.ran(*_compiled_for(op, problem, policy))
            way.decision = _proved(decision, engine, before)
            _delivered(op, problem, form, result, way, args, kwargs, policy, engine)
            return
        decision = replace(decision, launches=_launched(engine, before))
        if fallen:
            way.decision = decision
            context = contextvars.copy_context()
            context.run(_fallen.set, True)  # functions that the original calls do not use the engine
            way.run(context.run, (reference, *args), kwargs)  # C code, without a frame between caller and SciPy
            return
    elif decision.reason is Reason.NOT_COMPILED and problem is not None and engine is not None:
        engine.compiles.lose(*_compiled_for(op, problem, policy), decision.gain_s)
    if not decision.on_device and (decision.model_reason or decision.reason) in REUSABLE:
        operands = _operands(engine, recorded)
        if operands is not None and problem is not None:
            operands.computed_by_host(problem.arrays)
    if not decision.on_device and decision.reason not in CONTENT:
        if engine is not None:
            engine.health.refusals[decision.reason] += 1
        if policy.fallback == "raise":
            raise FallbackError(decision)
    way.decision = decision
    if decision.route and problem is not None and problem.route is not None:
        way.form = form
        way.run(problem.route.run, (), {})
        _or_reference(op, way, args, kwargs)
        return
    lapack.Scipy.lost_s += decision.waiting_s
    way.run(reference, args, kwargs)


def _run(problem: Problem, engine: Engine) -> Any:
    try:
        return problem.run(engine)
    except (np.linalg.LinAlgError, Warning) as why:  # raised by the host's steps; a Warning if filters raise it
        raise Unsupported(Reason.VALUE, f"{type(why).__name__}: {why}") from why


def _accepted(problem: Problem, engine: Engine, policy: Policy, before: Counter[str]) -> Any:
    """The checked result of ``engine``, whose launches so far are ``before``; Wrong if the engine is wrong."""
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


def _checked(problem: Problem, engine: Engine, policy: Policy) -> Any:
    """The result of ``engine``, with checksum tests of its products; Wrong if it fails a check.

    Unsupported if the error is not finite.
    """
    result = _run(problem, cast(Engine, Proving(engine)))
    error = problem.error(result) / eps(problem.dtype, policy.products)
    allowed = ALLOWED_ERROR * max(max(a.shape, default=1) for a in problem.arrays)
    if error <= allowed:
        return result
    detail = f"backward error {error:.0f} eps > {allowed:.0f} eps"
    if not math.isfinite(error) or underflow(problem.arrays):  # the cause may be the values, not the engine
        raise Unsupported(Reason.ACCURACY, detail)
    raise Wrong(detail)


def _excuse(problem: Problem, policy: Policy) -> str:
    """Why a failed check does not show a fault of the device; "" if the host's own result passes it."""
    try:
        _checked(problem, HOST, policy)
    except Wrong as why:
        return f"the host's own result fails the check too ({why}): {EXCUSE}"
    except (Unsupported, Refused) as why:
        return f"the algorithm refuses these values on the host too: {why}"
    return ""


def _delivered(
    op: Op, problem: Problem, form: Form | None, result: Any, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any],
    policy: Policy, engine: Engine,
) -> None:  # fmt: skip
    """Put an accepted result into ``way``; if a repetition on the host disagrees, the original function runs."""
    if policy.verify and np.random.default_rng().random() < policy.verify:

        def deliver(problem: Problem, result: Any) -> Any:
            return _formed(form, problem.deliver(copy.deepcopy(result)))

        verified = Verified(op, problem, deliver, args, kwargs, eps(problem.dtype, policy.products))
        apart = verified.apart(result)
        if found := verified.wrong(apart):
            decision = replace(
                cast(Decision, way.decision), on_device=False, reason=Reason.ACCURACY, detail=f"verified: {found}"
            )
            try:
                excused = verified.apart(_run(problem, HOST)) >= apart / 2
            except (Unsupported, Refused):
                excused = False
            if excused:
                decision = replace(decision, detail=f"{decision.detail}; so does the algorithm's on the host")
                engine.health.refusals[decision.reason] += 1
            else:
                fault(engine, Wrong(found), problem.arrays, _kind(op, problem, policy))
            if policy.fallback == "raise":
                raise FallbackError(decision)
            if policy.fallback == "warn":
                _warn(decision, engine)
            way.decision = decision
            way.run(op.reference, args, kwargs)
            return
    engine.health.worked()
    way.result = _formed(form, problem.deliver(result))


def _formed(form: Form | None, result: Any) -> Any:
    return result if form is None else form(result)


def _proved(decision: Decision, engine: Engine, before: Counter[str]) -> Decision:
    """The ``decision`` for an accepted result; it names the device only if there were launches."""
    if launches := _launched(engine, before):
        return replace(decision, engine=engine.name, launches=launches)
    detail = f"{decision.reason}: the device path had nothing to launch"
    return replace(decision, on_device=False, reason=Reason.NO_LAUNCH, detail=detail)


def _launched(engine: Engine, before: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Launches of each kernel since ``before``, including those of other threads meanwhile."""
    now = Counter(engine.counters.launches)  # copied first, because other threads may launch during the subtraction
    return tuple(sorted((now - before).items()))


def _warn(decision: Decision, engine: Engine) -> None:
    rest = f"; {engine.name} rests from now on, after {engine.health}" if engine.health.open else ""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _ledger.LIBRARIES:
        level, frame = level + counted(frame), frame.f_back
    message = f"{decision.op} ran on the host: {decision.detail}{rest}"
    warnings.warn(message, NkiFallbackWarning, stacklevel=level)


def _fault(why: Exception) -> dict[str, Any]:
    """The reason and the detail of the decision after the exception ``why``."""
    if isinstance(why, Wrong):
        return {"reason": Reason.ACCURACY, "detail": str(why)}
    reason = Reason.OOM if isinstance(why, (DeviceMemoryError, MemoryError)) else Reason.ERROR
    return {"reason": reason, "detail": f"{type(why).__name__}: {why}"}
