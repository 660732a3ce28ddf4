"""The description of a call, its cost, and the decision about it: pure functions of shapes, policy and rates."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from nkisim.hardware import GIB, Hardware, between, interval
from trnpy._base.conventions import unusual
from trnpy._base.garbage import not_collected
from trnpy._base.records import record
from trnpy._call.cache_key import kind_of
from trnpy._call.fast_path import LIMITS, Limits
from trnpy._call.host_table import HostRoute, Look, host_entry
from trnpy._engine.abstract_arrays import Shape, Unknown, shapes_of
from trnpy._engine.engines import Engine, Refused, cores
from trnpy._engine.launch_counts import Tally
from trnpy._engine.precision import launches
from trnpy._engine.residency import Reuse
from trnpy._engine.time_parts import NOTHING, Parts
from trnpy._nki.instances import INSTANCES, hardware_of
from trnpy._report.reasons import Decision, Reason, Unsupported
from trnpy._settings.host_rates import HostRates
from trnpy._settings.host_steps import order_of
from trnpy._settings.policy import HYSTERESIS, Policy
from trnpy._settings.tile import SMALL_TILES

ALONE = Reuse()  # no earlier call had an operand of this one
# No Trainium instance has more memory. Larger operands are views that repeat elements; a dry run would take hours.
LARGEST_BYTES = GIB * max(instance.memory_gib or 0 for instance in INSTANCES.values())
AGAIN = " if operands of {} earlier calls stay there for as many more"


@record()
class Cost:
    """The cost of the original function on the host; flops are real operations. Device costs come from a dry run."""

    kind: str  # of host work: a key of HostRates.curves
    n: float  # characteristic size, if the host's rate depends on it
    flops: float  # useful operations, as textbooks count them
    bytes_in: int
    bytes_out: int
    moved: float = 0.0  # other bytes that the host reads and writes: copies in another order, intermediate results
    units: float = 0.0  # size of a loop of NumPy's einsum (``_einsum/loop``), which sets its time; 0 for other work

    def host_s(self, rates: HostRates, dtype: np.dtype) -> float:
        """Predicted seconds of the original function."""
        if self.units:
            return rates.loop_s(self.units)
        computed = rates.seconds(self.kind, self.n, self.flops, dtype, self.bytes_in + self.bytes_out)
        return computed + self.moved / rates.copy_bytes_per_s


@record()
class Route:
    """A CPU fast path, as accurate as the original function: its name, predicted time and function."""

    name: str
    seconds: Callable[[HostRates], float]  # predicted
    run: Callable[[], Any]  # the original function's result; raises Unsupported
    # ``run`` with arguments, for any call with the same cache key; None if each call must be prepared anew.
    again: Callable[..., Any] | None = None
    import_s: float = 0.0  # predicted seconds of importing a library that it needs and the program has not imported
    flops: float = 0.0  # real operations; 0 if the original function has as many


@record()
class Problem:
    """One normalised call and its cost, made in O(1) from shapes alone.

    Each function has its own subclass, with options as fields and with the methods ``run`` and ``error``.
    """

    arrays: tuple[np.ndarray, ...]
    dtype: np.dtype  # of the products
    cost: Cost
    route: Route | None = None
    on_device: bool = True  # whether there is a device path; if not, there is only a CPU fast path
    refusal: tuple[Reason, str] | None = None  # why there is no device path, unless the dtype is the reason
    # Names of the device path's methods if it has several; ``run`` reads the chosen one from the field below.
    methods: tuple[str, ...] = ()
    method: str = ""
    refines: ClassVar[bool] = True  # whether each method ends in a refinement
    # The property that neither ``error`` nor the checksum tests of products can check.
    unproven: ClassVar[str] = "the forward error, which the condition of the operands decides"

    @classmethod
    def of(cls, problem: Problem, **options: Any) -> Self:
        """``problem``, an instance of a base class, converted to this class with more options."""
        return cls(**{field.name: getattr(problem, field.name) for field in fields(problem)} | options)

    @classmethod
    @functools.cache
    def option_names(cls) -> tuple[str, ...]:
        """The names of the fields that this class adds to ``Problem``."""
        return tuple([field.name for field in fields(cls)[len(fields(Problem)) :]])

    def outlined(self) -> tuple[Any, ...] | None:
        """These fields with outlines in place of operands, for a dry run; None if no dry run is needed."""
        return tuple([getattr(self, name) for name in self.option_names()])

    def run(self, engine: Engine) -> Any:
        """The algorithm; raises Unsupported."""
        raise Unsupported(*(self.refusal or (Reason.PARAM, "no device path")))

    def error(self, result: Any) -> float:
        """Backward error of a result over its norm, estimated with random test vectors."""
        raise NotImplementedError

    def deliver(self, result: Any) -> Any:
        """An accepted result in the form, or the place, that the caller expects."""
        return result

    def unique(self, result: Any) -> Any:
        """The part of a delivered result that is unique: an array, number or tuple; () if no part is."""
        return result if isinstance(result, (np.ndarray, np.number, float, complex)) else ()


Form = Callable[[Any], Any]


@record()
class Op:
    """The table entry of one accelerated function."""

    name: str  # dotted name of the original function: "scipy.linalg.eigh"
    original: Callable[..., Any] | None  # NumPy's or SciPy's function; None: found through the name at its first use
    prepare: Callable[..., Problem]  # raises Unsupported
    small: int = 0  # up to this many elements of all operands, the device is never faster
    # The cache key of a call, except for the result of the applicability check; None if each call is decided anew.
    kind: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = kind_of
    # Converts a result to the form that the installed original function returns, if versions differ; raises Unsupported
    # if that version does not accept such a call.
    form: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Form | None] | None = None
    dtypes: str = "fdFD"  # characters of the dtypes with a device path, for docstrings; "" if docstrings omit them
    theirs: bool = False  # whether other code has replaced NumPy's function; faster substitutes are then not called
    # Whether a patch accelerates a call as a whole; None: it does so for all calls. Otherwise the original runs, and
    # the functions that it calls are accelerated. A call accelerated as a whole accelerates nothing inside.
    covers: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None

    @property
    def reference(self) -> Callable[..., Any]:
        """The original NumPy or SciPy function: signature, documentation and fallback."""
        return _original(self.name) if self.original is None else self.original

    @property
    def host(self) -> HostRoute | None:
        """The row's entry in the table of CPU fast paths."""
        entry: HostRoute | None = host_entry(self.name)
        return entry

    @property
    def look(self) -> Look | None:
        host = self.host
        if host is None or not self.theirs:
            return None if host is None else host.look
        return lambda args, kwargs: host.look(args, kwargs) is True

    def direct(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """The fastest function with the original's result for such arguments."""
        host = self.host
        if host is None or host.direct is None or self.theirs:
            return self.reference
        return host.direct(args, kwargs) or self.reference

    @property
    def limits(self) -> Limits:
        """The limits of small calls."""
        return LIMITS.get(self.name) or Limits(self.small, math.inf if self.host is None else self.host.unseen)

    def problem(self, routed: bool, *args: Any, **kwargs: Any) -> Problem:
        """The problem of a call, with a CPU fast path if ``routed``; raises Unsupported."""
        host = self.host if routed else None
        return self.prepare(*args, **kwargs) if host is None else host.prepare(self.prepare, *args, **kwargs)


@functools.cache
def _original(name: str) -> Callable[..., Any]:
    """The function with the dotted ``name``; if a patch has replaced it with a hook, the original."""
    module, _, function = name.rpartition(".")
    found = getattr(importlib.import_module(module), function)
    original: Callable[..., Any] = getattr(found, "__dict__", {}).get("_original", found)
    return original


def prepared(
    op: Op, may_route: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Problem, Form | None] | Decision:
    """The problem of a call and the form of its result, or the decision not to accelerate it.

    ``may_route``: whether the problem may have a CPU fast path.
    """
    if option := unusual(op.reference, args, kwargs):
        return Decision(op.name, False, Reason.PARAM, option)
    try:
        problem = op.problem(may_route, *args, **kwargs)
        form = None if op.form is None else op.form(op.reference, args, kwargs)
    except Unsupported as why:
        return Decision(op.name, False, why.reason, str(why))
    except (TypeError, ValueError) as why:  # wrong arguments: the original function raises the right message
        return Decision(op.name, False, Reason.PARAM, str(why))
    return problem, form


class Work(NamedTuple):
    """The device path of a call: its Problem without the values of its arrays."""

    kind: type[Problem]
    arrays: tuple[Shape, ...]
    dtype: np.dtype
    options: tuple[Any, ...]
    method: str = ""
    kept: tuple[tuple[int, bool], ...] = ()  # arrays that are on the device, as in ``Reuse``

    def tally(self, hardware: Hardware, policy: Policy) -> Tally:
        """The cost of the call on ``hardware``, from a cached dry run."""
        # ``force`` and ``min_flops`` decide where the steps of a contraction run.
        told = Policy(
            precision=policy.products, device_memory=policy.device_memory, force=policy.force,
            min_flops=policy.min_flops, cores=cores(policy),
        )  # fmt: skip
        return _tally(self, hardware, told)


def work_of(problem: Problem) -> Work | None:
    """The input of a call's dry run; None if there is no device path, or if an option cannot be hashed."""
    if not problem.on_device:
        return None
    outlined = problem.outlined()
    if outlined is None:
        return None
    seen: dict[Any, int] = {}
    arrays, options = shapes_of(problem.arrays, seen), shapes_of(outlined, seen)
    try:
        hash(options)
    except TypeError:
        return None
    return Work(type(problem), arrays, problem.dtype, options)


@functools.cache
def _cost_model() -> Any:
    """The module of dry runs, loaded late: it loads the device engine, half the time of importing trnpy."""
    with not_collected():
        return importlib.import_module("trnpy._engine.cost_model")


@functools.lru_cache(maxsize=4096)
def _tally(work: Work, hardware: Hardware, policy: Policy) -> Tally:
    """``Work.tally``, cached with everything that it depends on as the key."""

    def problem(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Problem:
        named = dict(zip(work.kind.option_names(), options, strict=True))
        return work.kind(arrays, work.dtype, Cost("", 0.0, 0.0, 0, 0), method=work.method, **named)

    tally: Tally = _cost_model().run(problem, (work.arrays, work.options), hardware, policy, work.kept)
    return tally


def decide(
    op: str, problem: Problem, machine: Hardware | None, policy: Policy, rates: HostRates, compile_s: float = 0.0,
    reuse: Reuse = ALONE, work: Work | None = None, products: int = 1, least: Price | None = None,
) -> Decision:  # fmt: skip
    """Decide between the device, the original function and a CPU fast path. A pure function.

    If ``machine`` is None, times are for the policy's machine; if ``work`` is None, the device path has no modelled
    time. ``reuse``: operands that earlier calls also had. ``products``: the least number on the device; if their
    launches take longer than the host, the device path is not priced. ``least``: the cost of a smaller problem on the
    device, which is used if it is already above the host's.
    """
    route, route_s = ("", math.inf) if problem.route is None else (problem.route.name, problem.route.seconds(rates))
    refusal = None if problem.on_device else problem.refusal or (Reason.DTYPE, f"{problem.dtype} has no device path")
    if problem.methods and problem.refines and refusal is None and policy.products != "matched":
        # A refinement does not converge with products below the working precision.
        refusal = Reason.POLICY, f"precision {policy.products} does not refine to {problem.dtype}"
    import_s, route_flops = (0.0, 0.0) if problem.route is None else (problem.route.import_s, problem.route.flops)
    launched = products * launches(problem.dtype, policy.products)
    decision = _decided(
        op, problem.cost, work, problem.methods, problem.dtype, refusal, route, route_s, machine, policy, rates,
        compile_s, reuse, import_s, route_flops or problem.cost.flops, launched, least,
    )  # fmt: skip
    return replace(decision, unproven=problem.unproven) if decision.on_device else decision


@record()
class Price:
    """The modelled cost of the device path, from a dry run."""

    launches: int
    bytes: int  # transferred between host and device
    moved_s: float
    parts: Parts
    method: str = ""
    single_s: float | None = None  # seconds of float64 products with precision="fp32"
    cores: int = 1
    overlapped: bool = False  # whether the runtime moves operands or results while the device computes

    @property
    def seconds(self) -> float:
        return sum(self.parts)


def priced(work: Work, methods: tuple[str, ...], hardware: Hardware, policy: Policy, rates: HostRates) -> Price:
    """The modelled cost of ``work`` with the policy's method if it applies, otherwise with the fastest one.

    A dry run may raise Refused, Unsupported or Unknown.
    """
    found = []
    for method in [m for m in methods if m == policy.method] or methods or ("",):
        tally = (work._replace(method=method) if method else work).tally(hardware, policy)
        parts, moved_s = tally.parts(hardware, rates), tally.moved_s(hardware)
        moved, overlapped = tally.bytes_in + tally.bytes_out, any(tally.hidden[:2])
        found.append(Price(tally.launched, moved, moved_s, parts, method, cores=tally.cores, overlapped=overlapped))
    best = min(found, key=lambda price: price.seconds)
    if methods or work.dtype.char not in "dD" or policy.products != "matched":
        return best
    single = work.tally(hardware, replace(policy, precision="fp32"))
    return replace(best, single_s=single.seconds(hardware, rates))


def shared_out(
    first: Price, reuse: Reuse, work: Work, methods: tuple[str, ...], hardware: Hardware, policy: Policy,
    rates: HostRates,
) -> Price:  # fmt: skip
    """The mean cost of this call and of as many later calls as earlier ones had the same operands.

    The operands then stay on the device. ``first`` is the cost of this call, which compares these operands twice in
    order to keep them; each later call compares them once.
    """
    later = priced(work._replace(kept=reuse.kept + reuse.seen), methods, hardware, policy, rates)
    shapes = [work.arrays[i] for i, same in reuse.seen if not same]
    compared = sum(
        rates.step_s("fingerprint", order_of(s.shape), math.prod(s.shape) * s.dtype.itemsize) for s in shapes
    )
    keeping = first.parts._replace(from_digits_s=first.parts.from_digits_s + 2 * compared)
    n = reuse.uses + 1

    def mean(once: float, again: float) -> float:
        return (once + reuse.uses * again) / n

    return replace(
        later, launches=round(mean(first.launches, later.launches)), bytes=round(mean(first.bytes, later.bytes)),
        moved_s=mean(first.moved_s, later.moved_s), parts=Parts(*map(mean, keeping, later.parts)),
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)  # calls repeat, and a decision takes as long as a small call
def _decided(
    op: str, cost: Cost, work: Work | None, methods: tuple[str, ...], dtype: np.dtype,
    refusal: tuple[Reason, str] | None, route: str, route_s: float, machine: Hardware | None, policy: Policy,
    rates: HostRates, compile_s: float, reuse: Reuse, import_s: float, route_flops: float, launched: int,
    least: Price | None,
) -> Decision:  # fmt: skip
    """``decide``, cached with everything that it depends on as the key."""
    hardware = machine or hardware_of(policy.machine)
    reference_s = cost.host_s(rates, dtype)
    always = SMALL_TILES and route_s < math.inf
    faster = always or route_s * HYSTERESIS <= reference_s
    routed = always or (faster and route_s + import_s <= reference_s)
    host_s = route_s if routed else reference_s
    price: Price | None = None
    again = ""
    if refusal is None and cost.bytes_in + cost.bytes_out > LARGEST_BYTES:
        needed = (cost.bytes_in + cost.bytes_out) / GIB
        refusal = Reason.LAYOUT, f"operands and results of {needed:,.0f} GiB exceed the memory of any instance"
    # If the host takes no longer than the least number of launches, no dry run is needed.
    small = work is not None and not policy.force and host_s <= launched * hardware.launch_s
    if refusal is None and least is not None and not policy.force and not small and host_s < least.seconds * HYSTERESIS:
        price = least
    elif refusal is None and work is not None and not small:
        try:
            price, again = _price(work, methods, hardware, policy, rates, reuse, host_s)
        except (Unsupported, Refused, Unknown) as why:
            if not policy.force:  # if forced, the run itself raises what the dry run raised
                refusal = getattr(why, "reason", Reason.LAYOUT), str(why)
    on_device, reason, detail = _compare(cost, price, refusal, host_s, hardware, policy, compile_s, launched)
    detail += again if reason is Reason.FASTER else ""
    model: tuple[Reason | None, str] = None, ""
    if refusal is not None and refusal[0] is Reason.NO_DEVICE:
        model = refusal
    if machine is None and refusal is None and not policy.force:
        if price is not None or small:
            model = reason, detail
        on_device, reason, detail = False, Reason.NO_DEVICE, "no device"
    # If the policy requires a device, report that there is none, even if a CPU fast path would be faster.
    required = policy.fallback == "raise" and reason is Reason.NO_DEVICE
    if routed and not on_device and not required:
        reason, detail = Reason.ROUTE, f"predicted {reference_s / route_s:.1f} times faster than the reference"
    waits = faster and not routed and not on_device
    if waits:
        waiting = f"; {route} needs SciPy, whose import, {import_s:.2g} s, would not pay yet"
        detail, model = detail + waiting, (model[0], model[1] and model[1] + waiting)
    return Decision(
        op,
        on_device,
        reason,
        detail,
        dtype=dtype.name,
        flops=route_flops if reason is Reason.ROUTE else cost.flops,
        moved_bytes=cost.bytes_in + cost.bytes_out if price is None else price.bytes,
        host_s=host_s,
        device_s=None if price is None else price.seconds,
        machine=hardware.name if refusal is None else "",
        calibrated=rates.calibrated,
        route=route if reason is Reason.ROUTE else "",
        method=price.method if price is not None and on_device else "",
        waiting_s=reference_s - route_s if waits else 0.0,
        parts=NOTHING if price is None else price.parts,
        single_s=None if price is None else price.single_s,
        cores=1 if price is None else price.cores,
        model_reason=model[0],
        model_detail=model[1],
    )


def _price(
    work: Work, methods: tuple[str, ...], hardware: Hardware, policy: Policy, rates: HostRates, reuse: Reuse,
    host_s: float,
) -> tuple[Price, str]:  # fmt: skip
    """The cost of ``work`` and "". If only repeated calls pay: their mean cost, and the phrase that states it."""
    work = work._replace(kept=reuse.kept)
    price = priced(work, methods, hardware, policy, rates)
    if reuse.seen and not policy.force and price.seconds * HYSTERESIS > host_s:
        mean = shared_out(price, reuse, work, methods, hardware, policy, rates)
        if mean.seconds * HYSTERESIS <= host_s:
            return mean, AGAIN.format(reuse.uses)
    return price, ""


def _compare(
    cost: Cost, price: Price | None, refusal: tuple[Reason, str] | None, host_s: float, hardware: Hardware,
    policy: Policy, compile_s: float, launched: int,
) -> tuple[bool, Reason, str]:  # fmt: skip
    """Whether the device is faster than the original function and the CPU fast path; the reason, also as a phrase."""
    if refusal is not None:
        return False, *refusal
    if policy.force:
        return True, Reason.FORCED, "policy force"
    if price is None:
        taken = "one launch takes" if launched == 1 else f"{launched} launches take"
        return False, Reason.SMALL, f"{taken} {between(launched * hardware.launch_s)}, modelled"
    if cost.flops < policy.min_flops:
        return False, Reason.POLICY, f"{cost.flops:.2g} flops below min_flops {policy.min_flops:.2g}"
    if price.seconds * HYSTERESIS <= host_s:
        if price.seconds + compile_s > host_s:
            return False, Reason.NOT_COMPILED, f"compiling this shape takes {compile_s:.2g} s"
        least, most = interval(host_s / price.seconds)
        beside = ", with transfers beside launches" if price.overlapped else ""
        return True, Reason.FASTER, f"modelled{beside}, {least:.2g} to {most:.2g} times"
    launch_s = price.launches * hardware.launch_s
    if launch_s >= max(host_s, price.moved_s):
        return False, Reason.SMALL, f"{price.launches} launches take {between(launch_s)}, modelled"
    if price.moved_s * HYSTERESIS >= host_s or price.moved_s >= price.seconds / 2:
        intensity = cost.flops / max(price.bytes, 1)
        return False, Reason.MEMORY_BOUND, f"{intensity:.2g} flop/byte, {between(price.moved_s)} of transfers, modelled"
    return False, Reason.SLOWER, f"needs to be {HYSTERESIS} times faster"
