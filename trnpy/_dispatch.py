"""The one place where a call goes to the device or stays on the host.

prepare -> decide -> run -> check; the reference function with the caller's own arguments whenever
one of them says no.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from trnpy import _report
from trnpy._calibration import HostRates, current_rates
from trnpy._engine import Engine, Refused, at_rest, current_engine
from trnpy._nki.hardware import MACHINES, Hardware
from trnpy._nki.runtime import DeviceMemoryError
from trnpy._policy import HYSTERESIS, Attention, Policy, current_policy, settled_policy
from trnpy._policy import Process as _Process
from trnpy._precision import eps, product_s, transfer_s

ALLOWED_ERROR = 10.0  # times n times eps: what a backward stable algorithm stays far below


class Reason(StrEnum):
    """Why a call ran where it ran."""

    FASTER = "faster"  # device: the model says so
    FORCED = "forced"  # device: policy force
    ROUTE = "route"  # host: by another exact route than the reference's own
    SMALL = "small"  # host: a launch alone takes longer
    MEMORY_BOUND = "memory_bound"  # host: moving the operands takes longer
    SLOWER = "slower"  # host: the engines take longer
    DTYPE = "dtype"  # host: no device path for this dtype
    LAYOUT = "layout"  # host: no device path for this shape or memory layout
    PARAM = "param"  # host: no device path for this option
    VALUE = "value"  # host: non-finite, singular, not positive definite
    SUBCLASS = "subclass"  # host: not exactly a numpy.ndarray
    EXCLUDED_CALLER = "excluded_caller"  # host: called from inside NumPy or SciPy
    NO_DEVICE = "no_device"
    NOT_COMPILED = "not_compiled"  # host: compiling the kernel takes longer
    OOM = "oom"  # host: the device ran out of memory
    POLICY = "policy"  # host: a setting says so
    ACCURACY = "accuracy"  # host: the device's result was not good enough
    ERROR = "error"  # host: the device failed


# What fallback="raise" leaves alone: the host is the right place, nothing went wrong.
CONTENT = frozenset(
    {
        Reason.ROUTE,
        Reason.SMALL,
        Reason.MEMORY_BOUND,
        Reason.SLOWER,
        Reason.EXCLUDED_CALLER,
        Reason.NOT_COMPILED,
        Reason.POLICY,
    }
)


class NkiFallbackWarning(RuntimeWarning):
    """The device failed and the host computed the result."""


class FallbackError(RuntimeError):
    """A call would have fallen back to the host under fallback="raise"; ``decision`` says why."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(str(decision))
        self.decision = decision


class Unsupported(Exception):
    """The device path does not cover this call: ``reason`` and a lower-case phrase that says why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call costs, on the host and on a device; flops are real operations."""

    kind: str  # of host work: a key of HostRates.curves
    n: float  # characteristic size, where the host's rate depends on it
    flops: float  # useful ones, by the textbook count
    bytes_in: int
    bytes_out: int
    products: float = 0.0  # flops of the engine's products on the device path
    host_flops: float = 0.0  # what the device path leaves to the host, at the rate of ``kind``
    launches: int = 1
    host_bytes: float = 0.0  # that the device path has the host read and write between products

    @property
    def intensity(self) -> float:
        """Useful flops per byte moved."""
        return self.flops / max(self.bytes_in + self.bytes_out, 1)


@dataclass(frozen=True, slots=True)
class Route:
    """Another way to the reference's result on the host, as accurate: what it is, what it costs, how it runs."""

    name: str
    seconds: Callable[[HostRates], float]  # predicted
    run: Callable[[], Any]  # the result as the reference gives it; raises Unsupported


@dataclass(frozen=True, slots=True)
class Problem:
    """One call, normalised: what to compute and what it costs.  Made in O(1), from shapes alone."""

    arrays: tuple[np.ndarray, ...]
    dtype: np.dtype  # of the products
    cost: Cost
    params: tuple[Any, ...] = ()  # the options that matter, in the order ``run`` takes them
    route: Route | None = None
    on_device: bool = True  # whether there is a device path at all, or a route on the host only
    refusal: tuple[Reason, str] | None = None  # why there is no device path, where it is not for the dtype
    # Names of the device path's methods, where it has several, and what each costs; ``run`` finds the chosen one below.
    methods: tuple[tuple[str, Cost], ...] = ()
    method: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One accelerated function: everything trnpy knows about it."""

    name: str  # dotted name of the reference: "scipy.linalg.eigh"
    reference: Callable[..., Any]  # NumPy or SciPy: signature, doc, fallback
    prepare: Callable[..., Problem]  # raises Unsupported
    run: Callable[[Problem, Engine], Any]  # the algorithm; raises Unsupported
    error: Callable[[Problem, Any], float]  # backward error of a result over its norm, by random probes
    small: int  # operands of at most this many elements in all never pay for a launch
    deliver: Callable[[Problem, Any], Any] = lambda problem, result: result  # an accepted result into ``out``
    # A look at a call's arguments, cheap beside the call: may there be another host route?
    routed: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a call goes, or went, and the sentence that says why."""

    op: str
    on_device: bool
    reason: Reason
    detail: str
    dtype: str = ""
    flops: float = 0.0
    moved_bytes: int = 0
    host_s: float | None = None  # predicted
    device_s: float | None = None  # modelled, never measured
    machine: str = ""  # what device_s is modelled on
    calibrated: bool = False  # whether host_s rests on a measurement of this host
    engine: str = "host"
    route: str = ""  # the host route that is not the reference's own
    method: str = ""  # of the device path, where it has several
    launches: tuple[tuple[str, int], ...] = ()  # of each kernel, on the device path

    @property
    def gain_s(self) -> float:
        """Predicted seconds that the device would save; 0 where there is no prediction of it."""
        return 0.0 if self.host_s is None or self.device_s is None else self.host_s - self.device_s

    def __str__(self) -> str:
        times = ""
        if self.host_s is not None and self.device_s is not None:
            mark = "" if self.calibrated else ", uncalibrated"
            times = f"; host {self.host_s:.2g} s predicted{mark}, {self.machine} {self.device_s:.2g} s modelled"
        way = self.method if self.on_device else self.route
        where = ("device" if self.on_device else "host") + (f" by {way}" if way else "")
        return f"{self.op}: {where}: {self.reason} ({self.detail}{times})"


def predict(
    cost: Cost, dtype: np.dtype, hardware: Hardware, policy: Policy, rates: HostRates, resident_bytes: int = 0
) -> tuple[float, float]:
    """Modelled seconds of the device path, and how many of them move operands.

    launches + bytes over the link, but for those of operands that are there + max(engine, HBM) + what stays on
    the host.
    """
    moved = transfer_s(max(cost.bytes_in - resident_bytes, 0), cost.bytes_out, dtype, policy.precision, hardware)
    engine = product_s(cost.products, dtype, policy.precision, hardware)
    hbm = (cost.bytes_in + cost.bytes_out) / hardware.hbm_bytes_per_s
    host = rates.seconds(cost.kind, cost.n, cost.host_flops, dtype) if cost.host_flops else 0.0
    host += cost.host_bytes / rates.copy_bytes_per_s
    return cost.launches * hardware.launch_s + moved + max(engine, hbm) + host, moved


def decide(
    op: str, problem: Problem, machine: Hardware | None, policy: Policy, rates: HostRates, compile_s: float = 0.0,
    resident_bytes: int = 0,
) -> Decision:  # fmt: skip
    """Device or host, and by which route?  A pure function; without a ``machine`` times are of the policy's."""
    route, route_s = ("", math.inf) if problem.route is None else (problem.route.name, problem.route.seconds(rates))
    refusal = None if problem.on_device else problem.refusal or (Reason.DTYPE, f"{problem.dtype} has no device path")
    method, cost = "", problem.cost
    if problem.methods:
        method, cost = _cheapest(problem, machine or MACHINES[policy.machine], policy, rates, resident_bytes)
    decision = _decided(
        op, cost, problem.dtype, refusal, route, route_s, machine, policy, rates, compile_s, resident_bytes
    )
    return replace(decision, method=method) if method and decision.on_device else decision


def _cheapest(
    problem: Problem, hardware: Hardware, policy: Policy, rates: HostRates, resident_bytes: int
) -> tuple[str, Cost]:
    """The method of the device path that the policy names or the model finds fastest, and its cost."""
    named = [m for m in problem.methods if m[0] == policy.method]
    return min(
        named or problem.methods,
        key=lambda m: predict(m[1], problem.dtype, hardware, policy, rates, resident_bytes)[0],
    )


@functools.lru_cache(maxsize=4096)  # calls repeat, and a decision takes as long as a small call
def _decided(
    op: str,
    cost: Cost,
    dtype: np.dtype,
    refusal: tuple[Reason, str] | None,
    route: str,
    route_s: float,
    machine: Hardware | None,
    policy: Policy,
    rates: HostRates,
    compile_s: float,
    resident_bytes: int,
) -> Decision:
    """``decide`` on what it depends on."""
    hardware = machine or MACHINES[policy.machine]
    reference_s = rates.seconds(cost.kind, cost.n, cost.flops, dtype, cost.bytes_in + cost.bytes_out)
    routed = route_s * HYSTERESIS <= reference_s
    host_s = route_s if routed else reference_s
    device_s: float | None = None
    if refusal is None:
        device_s, moved_s = predict(cost, dtype, hardware, policy, rates, resident_bytes)
        on_device, reason, detail = _compare(cost, device_s, moved_s, host_s, hardware, machine, policy, compile_s)
    else:
        on_device, (reason, detail) = False, refusal
    # Where a device is required its absence is what matters, not how well the host does without.
    required = policy.fallback == "raise" and reason is Reason.NO_DEVICE
    if routed and not on_device and not required:
        reason, detail = Reason.ROUTE, f"predicted {reference_s / route_s:.1f} times faster than the reference"
    return Decision(
        op,
        on_device,
        reason,
        detail,
        dtype=dtype.name,
        flops=cost.flops,
        moved_bytes=cost.bytes_in + cost.bytes_out,
        host_s=host_s,
        device_s=device_s,
        machine=hardware.name if refusal is None else "",
        calibrated=rates.calibrated,
        route=route if reason is Reason.ROUTE else "",
    )


def _compare(
    cost: Cost,
    device_s: float,
    moved_s: float,
    host_s: float,
    hardware: Hardware,
    machine: Hardware | None,
    policy: Policy,
    compile_s: float,
) -> tuple[bool, Reason, str]:
    """Whether the device beats the host's better route, and why or why not."""
    if policy.force:
        return True, Reason.FORCED, "policy force"
    if machine is None:
        return False, Reason.NO_DEVICE, "no device"
    if cost.flops < policy.min_flops:
        return False, Reason.POLICY, f"{cost.flops:.2g} flops below min_flops {policy.min_flops:.2g}"
    if device_s * HYSTERESIS <= host_s:
        if device_s + compile_s > host_s:
            return False, Reason.NOT_COMPILED, f"compiling this shape takes {compile_s:.2g} s"
        return True, Reason.FASTER, f"{host_s / device_s:.1f} times"
    launch_s = cost.launches * hardware.launch_s
    if launch_s >= host_s:
        return False, Reason.SMALL, f"{cost.launches} launches take {launch_s:.2g} s"
    if moved_s * HYSTERESIS >= host_s or moved_s >= device_s / 2:
        return False, Reason.MEMORY_BOUND, f"{cost.intensity:.2g} flop/byte, {moved_s:.2g} s of transfers"
    return False, Reason.SLOWER, f"needs to be {HYSTERESIS} times faster"


_trace: ContextVar[list[Decision] | None] = ContextVar("trnpy_trace", default=None)


@contextlib.contextmanager
def trace() -> Iterator[list[Decision]]:
    """Collect the Decision of every call made inside the block, in this thread or task."""
    decisions: list[Decision] = []
    Attention.asked = True
    token = _trace.set(decisions)
    try:
        yield decisions
    finally:
        _trace.reset(token)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Decision:
    """What ``function(*args, **kwargs)`` would do, without doing it.

    ``function`` is one of trnpy's, or a patched NumPy or SciPy function.
    """
    op = getattr(function, "__trnpy_op__", None)
    if not isinstance(op, Op):
        raise TypeError(f"explain({function!r}): expected an accelerated function, such as trnpy.einsum")
    return _plan(op, args, kwargs, current_policy())[1]


def _elements(args: tuple[Any, ...]) -> float:
    """Elements of the array arguments; infinite when there is anything to look at more closely."""
    n = 0.0
    for a in args:
        if type(a) is np.ndarray:
            n += a.size
        elif a is not None and not isinstance(a, (str, int, float)):
            return math.inf
    return n


def _plan(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy
) -> tuple[Problem | None, Decision, Engine | None]:
    engine = current_engine(policy)
    try:
        problem = op.prepare(*args, **kwargs)
    except Unsupported as why:
        return None, Decision(op.name, False, why.reason, str(why)), engine
    except (TypeError, ValueError) as why:  # of the call's form: the reference has the right message
        return None, Decision(op.name, False, Reason.PARAM, str(why)), engine
    machine = engine.hardware if engine is not None else None
    if engine is not None and engine.health.open:
        return problem, Decision(op.name, False, Reason.ERROR, "resting after repeated device errors"), engine
    resident_bytes = 0 if engine is None else engine.cache.resident_bytes(problem.arrays)
    compile_s = 0.0 if engine is None else engine.compiles.seconds(*_compiled_for(op, problem, policy))
    return problem, decide(op.name, problem, machine, policy, current_rates(), compile_s, resident_bytes), engine


def _compiled_for(op: Op, problem: Problem, policy: Policy) -> tuple[str, tuple[np.ndarray, ...], np.dtype, str]:
    """What the kernels of a call depend on."""
    return op.name, problem.arrays, problem.dtype, policy.precision


class _Rest:
    """The policy of the process under which there was no engine at hand."""

    policy: Policy | None = None


def unattended() -> bool:
    """Whether there is no engine, nothing is recorded and nobody asked for either: the reference is all there is."""
    return not Attention.asked and _Process.policy is _Rest.policy is not None


def accelerated(op: Op) -> Callable[..., Any]:
    """The public function for ``op``, with the reference's name, signature and doc."""
    call = routed(op)
    return _UfuncLike(call, op.reference) if isinstance(op.reference, np.ufunc) else call


def routed(op: Op) -> Callable[..., Any]:
    """The function that routes calls of ``op``, whatever the reference is."""
    reference = op.reference
    may_route = op.routed
    small = Decision(op.name, False, Reason.SMALL, f"at most {op.small} elements")

    @functools.wraps(reference)
    def call(*args: Any, **kwargs: Any) -> Any:
        plain = may_route is None or not may_route(args, kwargs)
        if plain and unattended():
            return reference(*args, **kwargs)
        policy = current_policy()
        ledger, log = _report.Process.ledger, _trace.get()
        if ledger is None and log is None:
            if plain and at_rest(policy):
                _Rest.policy = settled_policy()
                return reference(*args, **kwargs)
            if plain and not policy.force and _elements(args) <= op.small:
                return reference(*args, **kwargs)
            return dispatch(op, args, kwargs, policy)[0]
        started = time.perf_counter()
        try:
            if plain and not policy.force and _elements(args) <= op.small:
                result, decision = reference(*args, **kwargs), small
            else:
                result, decision = dispatch(op, args, kwargs, policy)
        except FallbackError as refused:
            _record(refused.decision, started, ledger, log)
            raise
        if ledger is not None:
            ledger.add(decision, started, time.perf_counter() - started, sys._getframe(1))
        if log is not None:
            log.append(decision)
        return result

    call.__trnpy_op__ = op  # type: ignore[attr-defined]
    return call


def _record(decision: Decision, started: float, ledger: _report.Ledger | None, log: list[Decision] | None) -> None:
    """Note a call that raises, from inside ``routed``."""
    if ledger is not None:
        ledger.add(decision, started, time.perf_counter() - started, sys._getframe(2))
    if log is not None:
        log.append(decision)


class _UfuncLike:
    """An accelerated function that stands for a ufunc: it does not bind as a method and has a ufunc's attributes."""

    def __init__(self, call: Callable[..., Any], ufunc: np.ufunc) -> None:
        functools.update_wrapper(self, call)
        self._call = call
        self._ufunc = ufunc

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_ufunc":  # not built yet: copy looks before __init__ has run
            raise AttributeError(name)
        return getattr(self._ufunc, name)

    def __reduce__(self) -> str:
        return str(self.__name__)  # a global of its module

    def __repr__(self) -> str:
        return f"<accelerated {self._ufunc!r}>"


def dispatch(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy) -> tuple[Any, Decision]:
    """The result of a call, and the decision that was carried out."""
    problem, decision, engine = _plan(op, args, kwargs, policy)
    if decision.on_device and problem is not None and engine is not None and (engine.executes or policy.force):
        problem = replace(problem, method=decision.method) if decision.method else problem
        before = Counter(engine.counters.launches)
        try:
            result = _run_checked(op, problem, engine, policy)
        except Unsupported as why:
            decision = replace(decision, on_device=False, reason=why.reason, detail=str(why))
        except Refused as why:
            reason = Reason.ACCURACY if why.accuracy else Reason.DTYPE
            decision = replace(decision, on_device=False, reason=reason, detail=str(why))
        # Whatever a driver raises must not take the user's result with it: it is counted, warned of and reported.
        except Exception as why:
            engine.health.faults += 1
            reason = Reason.OOM if isinstance(why, (DeviceMemoryError, MemoryError)) else Reason.ERROR
            decision = replace(decision, on_device=False, reason=reason, detail=f"{type(why).__name__}: {why}")
            if policy.fallback == "raise":
                raise FallbackError(decision) from why
            if policy.fallback == "warn":
                _warn(decision, engine)
        else:
            engine.health.faults = 0
            engine.compiles.ran(*_compiled_for(op, problem, policy))
            decision = replace(decision, engine=engine.name, launches=_launched(engine, before))
            result, decision = _verified(op, problem, result, args, kwargs, decision, policy)
            return op.deliver(problem, result) if decision.on_device else result, decision
        decision = replace(decision, launches=_launched(engine, before))
    elif decision.reason is Reason.NOT_COMPILED and problem is not None and engine is not None:
        engine.compiles.lose(*_compiled_for(op, problem, policy), decision.gain_s)
    if policy.fallback == "raise" and not decision.on_device and decision.reason not in CONTENT:
        raise FallbackError(decision)
    if decision.route and problem is not None and problem.route is not None:
        try:
            return problem.route.run(), decision
        except Unsupported as why:
            decision = replace(decision, reason=why.reason, detail=str(why), route="")
    return op.reference(*args, **kwargs), decision


def _launched(engine: Engine, before: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Launches of each kernel since ``before``; calls of other threads count with those they ran beside."""
    return tuple(sorted((engine.counters.launches - before).items()))


def _warn(decision: Decision, engine: Engine) -> None:
    rest = (
        f"; {engine.name} failed {engine.health.faults} times in a row and rests from now on"
        if engine.health.open
        else ""
    )
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _report.LIBRARIES:
        level, frame = level + 1, frame.f_back
    message = f"{decision.op} ran on the host: {decision.detail}{rest}"
    warnings.warn(message, NkiFallbackWarning, stacklevel=level)


def _run_checked(op: Op, problem: Problem, engine: Engine, policy: Policy) -> Any:
    result = op.run(problem, engine)
    unit = eps(problem.dtype, policy.precision)
    allowed = ALLOWED_ERROR * max(max(a.shape, default=1) for a in problem.arrays)
    error = op.error(problem, result) / unit
    if not error <= allowed:  # also catches NaN
        raise Unsupported(Reason.ACCURACY, f"backward error {error:.0f} eps > {allowed:.0f} eps")
    return result


def _verified(
    op: Op,
    problem: Problem,
    result: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decision: Decision,
    policy: Policy,
) -> tuple[Any, Decision]:
    """``result``, or for the policy's fraction of calls the reference's own where the two disagree."""
    if not policy.verify or random.random() >= policy.verify:
        return result, decision
    reference = op.reference(*args, **kwargs)
    unit = eps(problem.dtype, policy.precision)
    ours, theirs = op.error(problem, result) / unit, op.error(problem, reference) / unit
    if ours <= max(ALLOWED_ERROR, 10 * theirs):
        return result, decision
    detail = f"verified: backward error {ours:.1f} eps, the host's {theirs:.1f} eps"
    decision = replace(decision, on_device=False, reason=Reason.ACCURACY, detail=detail)
    if policy.fallback == "raise":
        raise FallbackError(decision)
    return reference, decision
