"""What a call is, what it costs, and whether it goes to the device: pure functions of shapes, policy and rates."""

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
from trnpy._base.records import record
from trnpy._call.cache_key import kind_of
from trnpy._call.host_table import HostRoute, Look, host_entry
from trnpy._engine.abstract_arrays import Shape, Unknown, shapes_of
from trnpy._engine.engines import Engine, Refused, cores
from trnpy._engine.launch_counts import Tally
from trnpy._engine.precision import FINGERPRINT_BYTES_PER_S, launches
from trnpy._engine.residency import Reuse
from trnpy._engine.time_parts import NOTHING, Parts
from trnpy._nki.instances import INSTANCES, hardware_of
from trnpy._report.reasons import Decision, Reason, Unsupported
from trnpy._settings.host_rates import HostRates
from trnpy._settings.policy import HYSTERESIS, Policy
from trnpy._settings.tile import SMALL_TILES

ALONE = Reuse()  # no operand of a call was one before
# No host of a Trainium has more memory: such operands are views that repeat elements, and a dry run would take hours.
LARGEST_BYTES = GIB * max(instance.memory_gib or 0 for instance in INSTANCES.values())
AGAIN = " if operands of {} earlier calls stay there for as many more"


@record()
class Cost:
    """What the reference costs on the host; flops are real operations. A dry run finds the cost on a device."""

    kind: str  # of host work: a key of HostRates.curves
    n: float  # characteristic size, where the host's rate depends on it
    flops: float  # useful ones, by the textbook count
    bytes_in: int
    bytes_out: int
    moved: float = 0.0  # bytes that the host reads and writes besides: copies in another order, intermediate results
    units: float = 0.0  # of a loop of NumPy's einsum (``_einsum/loop``), which decide its time; 0 for all other work

    def host_s(self, rates: HostRates, dtype: np.dtype) -> float:
        """Predicted seconds of the reference."""
        if self.units:
            return rates.loop_s(self.units)
        computed = rates.seconds(self.kind, self.n, self.flops, dtype, self.bytes_in + self.bytes_out)
        return computed + self.moved / rates.copy_bytes_per_s

    @property
    def intensity(self) -> float:
        """Useful flops per byte moved."""
        return self.flops / max(self.bytes_in + self.bytes_out, 1)


@record()
class Route:
    """Another way to compute the reference's result on the host, as accurate: its name, its cost and its function."""

    name: str
    seconds: Callable[[HostRates], float]  # predicted
    run: Callable[[], Any]  # the result as the reference gives it; raises Unsupported
    # ``run`` for the arguments of any call of this kind; None if each call must be prepared anew.
    again: Callable[..., Any] | None = None
    import_s: float = 0.0  # predicted seconds of importing a library that it needs and the program has not imported
    flops: float = 0.0  # real operations; 0 for as many as the reference's


@record()
class Problem:
    """One call, normalised: what to compute and what it costs.  Made in O(1), from shapes alone.

    Each kind of call is a class of its own, with its options as fields, that says how it runs and what is an error.
    """

    arrays: tuple[np.ndarray, ...]
    dtype: np.dtype  # of the products
    cost: Cost
    route: Route | None = None
    on_device: bool = True  # whether there is a device path; if not, there is only a route on the host
    refusal: tuple[Reason, str] | None = None  # why there is no device path, unless the dtype is the reason
    # Names of the device path's methods if it has several; ``run`` reads the chosen one from the field below.
    methods: tuple[str, ...] = ()
    method: str = ""
    refines: ClassVar[bool] = True  # whether each method ends in a refinement
    # What ``error`` and the proofs of products leave open, however accurate a device is.
    unproven: ClassVar[str] = "the forward error, which the condition of the operands decides"

    @classmethod
    def of(cls, problem: Problem, **options: Any) -> Self:
        """``problem``, of a base of this class, as one of it with more options."""
        return cls(**{field.name: getattr(problem, field.name) for field in fields(problem)} | options)

    @classmethod
    @functools.cache
    def option_names(cls) -> tuple[str, ...]:
        """The fields that this class adds to those of every problem."""
        return tuple([field.name for field in fields(cls)[len(fields(Problem)) :]])

    def outlined(self) -> tuple[Any, ...] | None:
        """These fields, as a dry run takes them: outlines in the place of operands. None: no dry run is needed."""
        return tuple([getattr(self, name) for name in self.option_names()])

    def run(self, engine: Engine) -> Any:
        """The algorithm; raises Unsupported."""
        raise Unsupported(*(self.refusal or (Reason.PARAM, "no device path")))

    def error(self, result: Any) -> float:
        """Backward error of a result over its norm, by random probes."""
        raise NotImplementedError

    def deliver(self, result: Any) -> Any:
        """An accepted result in the form, or the place, that the caller expects."""
        return result

    def unique(self, result: Any) -> Any:
        """What of a delivered result every accurate method gives: an array, number or tuple; () of several members."""
        return result if isinstance(result, (np.ndarray, np.number, float, complex)) else ()


Form = Callable[[Any], Any]


@record()
class Op:
    """One accelerated function: everything trnpy knows about it."""

    name: str  # dotted name of the reference: "scipy.linalg.eigh"
    original: Callable[..., Any] | None  # NumPy's or SciPy's function; None: found by the name at its first use
    prepare: Callable[..., Problem]  # raises Unsupported
    small: int = 0  # up to this many elements of all operands, a launch never pays
    # What a decision depends on, besides whether the look gave True; None if each call is decided anew.
    kind: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = kind_of
    # What gives a result of a call the form in which the installed reference returns it, where versions differ; raises
    # Unsupported where it does not take such a call.
    form: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Form | None] | None = None
    dtypes: str = "fdFD"  # characters of the dtypes with a device path, as docstrings state them; "" if they do not
    theirs: bool = False  # whether the reference is other code's in place of NumPy's, for which a look has no function
    # Whether a patch takes a call over as a whole; None if it takes all. Else the original runs, and what it calls is
    # accelerated. Calls that are taken over and stay on the host accelerate nothing inside.
    covers: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None

    @property
    def reference(self) -> Callable[..., Any]:
        """The NumPy or SciPy function that the row stands for: signature, documentation and fallback."""
        return _original(self.name) if self.original is None else self.original

    @property
    def host(self) -> HostRoute | None:
        """The row's entry in the table of host routes."""
        entry: HostRoute | None = host_entry(self.name)
        return entry

    @property
    def look(self) -> Look | None:
        host = self.host
        if host is None or not self.theirs:
            return None if host is None else host.look
        return lambda args, kwargs: host.look(args, kwargs) is True

    def direct(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """The fastest function that does what the reference does with such arguments."""
        host = self.host
        if host is None or host.direct is None or self.theirs:
            return self.reference
        return host.direct(args, kwargs) or self.reference

    @property
    def unseen(self) -> float:
        """Small calls run the reference, whatever their arguments are, if their sizes multiply to at most this."""
        return math.inf if self.host is None else self.host.unseen

    def problem(self, routed: bool, *args: Any, **kwargs: Any) -> Problem:
        """The problem of a call, with the host's route if ``routed``; raises Unsupported."""
        host = self.host if routed else None
        return self.prepare(*args, **kwargs) if host is None else host.prepare(self.prepare, *args, **kwargs)


@functools.cache
def _original(name: str) -> Callable[..., Any]:
    """The function of that dotted name, or the one that a patch has put a hook in the place of."""
    module, _, function = name.rpartition(".")
    found = getattr(importlib.import_module(module), function)
    original: Callable[..., Any] = getattr(found, "__dict__", {}).get("_original", found)
    return original


def prepared(
    op: Op, may_route: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Problem, Form | None] | Decision:
    """The problem of a call and the form of its result, or the decision against it; with a route if ``may_route``."""
    if option := unusual(op.reference, args, kwargs):
        return Decision(op.name, False, Reason.PARAM, option)
    try:
        problem = op.problem(may_route, *args, **kwargs)
        form = None if op.form is None else op.form(op.reference, args, kwargs)
    except Unsupported as why:
        return Decision(op.name, False, why.reason, str(why))
    except (TypeError, ValueError) as why:  # wrong arguments: the reference raises with the right message
        return Decision(op.name, False, Reason.PARAM, str(why))
    return problem, form


class Work(NamedTuple):
    """The device path of a call: what a Problem of it says beside its arrays' values."""

    kind: type[Problem]
    arrays: tuple[Shape, ...]
    dtype: np.dtype
    options: tuple[Any, ...]
    method: str = ""
    kept: tuple[tuple[int, bool], ...] = ()  # arrays that are on the device, as in ``Reuse``

    def by(self, method: str) -> Work:
        """The same call by another method of its algorithm."""
        return self._replace(method=method)

    def tally(self, hardware: Hardware, policy: Policy) -> Tally:
        """What the call costs on ``hardware``, from a dry run that is cached."""
        # ``force`` and ``min_flops`` decide where the steps of a contraction run.
        told = Policy(
            precision=policy.products, device_memory=policy.device_memory, force=policy.force,
            min_flops=policy.min_flops, cores=cores(policy),
        )  # fmt: skip
        return _tally(self, hardware, told)


def work_of(problem: Problem) -> Work | None:
    """What a dry run of a call needs; None if there is no device path, or if an option cannot be hashed."""
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


@functools.lru_cache(maxsize=4096)
def _tally(work: Work, hardware: Hardware, policy: Policy) -> Tally:
    """``Work.tally``, cached by all that it depends on."""
    from trnpy._engine import cost_model  # imported late: it loads the device engine, half the time of importing trnpy

    def problem(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Problem:
        named = dict(zip(work.kind.option_names(), options, strict=True))
        return work.kind(arrays, work.dtype, Cost("", 0.0, 0.0, 0, 0), method=work.method, **named)

    return cost_model.run(problem, (work.arrays, work.options), hardware, policy, work.kept)


def decide(
    op: str, problem: Problem, machine: Hardware | None, policy: Policy, rates: HostRates, compile_s: float = 0.0,
    reuse: Reuse = ALONE, work: Work | None = None,
) -> Decision:  # fmt: skip
    """Decide between device, host and another host route. A pure function.

    Without ``machine``, times are of the policy's machine; without ``work`` the device path has no modelled time.
    ``reuse``: operands that earlier calls had, too.
    """
    route, route_s = ("", math.inf) if problem.route is None else (problem.route.name, problem.route.seconds(rates))
    refusal = None if problem.on_device else problem.refusal or (Reason.DTYPE, f"{problem.dtype} has no device path")
    if problem.methods and problem.refines and refusal is None and policy.products != "matched":
        # A refinement does not converge with products below the working precision.
        refusal = Reason.POLICY, f"precision {policy.products} does not refine to {problem.dtype}"
    import_s, route_flops = (0.0, 0.0) if problem.route is None else (problem.route.import_s, problem.route.flops)
    decision = _decided(
        op, problem.cost, work, problem.methods, problem.dtype, refusal, route, route_s, machine, policy, rates,
        compile_s, reuse, import_s, route_flops or problem.cost.flops,
    )  # fmt: skip
    return replace(decision, unproven=problem.unproven) if decision.on_device else decision


@record()
class Price:
    """The modelled cost of the device path, from a dry run."""

    launches: int
    bytes: int  # that cross the link
    moved_s: float
    parts: Parts
    method: str = ""
    single_s: float | None = None  # with precision="fp32", of float64 products
    cores: int = 1
    overlapped: bool = False  # whether the runtime moves operands or results while the device computes

    @property
    def seconds(self) -> float:
        return sum(self.parts)


def priced(work: Work, methods: tuple[str, ...], hardware: Hardware, policy: Policy, rates: HostRates) -> Price:
    """The price of ``work`` by the policy's method or else by the fastest one.

    A dry run may raise Refused, Unsupported or Unknown.
    """
    found = []
    for method in [m for m in methods if m == policy.method] or methods or ("",):
        tally = (work.by(method) if method else work).tally(hardware, policy)
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
    """The mean price of a call and of as many more as its operands have had before, which then stay on the device.

    ``first`` is the price of this call. It compares these operands twice, to keep them; each later one does once.
    """
    later = priced(work._replace(kept=reuse.kept + reuse.seen), methods, hardware, policy, rates)
    shapes = [work.arrays[i] for i, same in reuse.seen if not same]
    compared = sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
    keeping = first.parts._replace(from_digits_s=first.parts.from_digits_s + 2 * compared / FINGERPRINT_BYTES_PER_S)
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
    rates: HostRates, compile_s: float, reuse: Reuse, import_s: float, route_flops: float,
) -> Decision:  # fmt: skip
    """``decide``, cached by all that it depends on."""
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
    # If the host takes no longer than the launches of one product, no dry run is needed.
    small = work is not None and not policy.force and host_s <= launches(dtype, policy.products) * hardware.launch_s
    if refusal is None and work is not None and not small:
        try:
            price, again = _price(work, methods, hardware, policy, rates, reuse, host_s)
        except (Unsupported, Refused, Unknown) as why:
            if not policy.force:  # if forced, the run itself raises what the dry run raised
                refusal = getattr(why, "reason", Reason.LAYOUT), str(why)
    on_device, reason, detail = _compare(cost, price, refusal, host_s, hardware, policy, compile_s)
    detail += again if reason is Reason.FASTER else ""
    model: tuple[Reason | None, str] = None, ""
    if refusal is not None and refusal[0] is Reason.NO_DEVICE:
        model = refusal
    if machine is None and refusal is None and not policy.force:
        if price is not None or small:
            model = reason, detail
        on_device, reason, detail = False, Reason.NO_DEVICE, "no device"
    # If the policy requires a device, report that there is none, even if a host route would be faster.
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
    """The price of ``work`` and "", or the mean price of as many more calls and the phrase for it if only these pay."""
    work = work._replace(kept=reuse.kept)
    price = priced(work, methods, hardware, policy, rates)
    if reuse.seen and not policy.force and price.seconds * HYSTERESIS > host_s:
        mean = shared_out(price, reuse, work, methods, hardware, policy, rates)
        if mean.seconds * HYSTERESIS <= host_s:
            return mean, AGAIN.format(reuse.uses)
    return price, ""


def _compare(
    cost: Cost, price: Price | None, refusal: tuple[Reason, str] | None, host_s: float, hardware: Hardware,
    policy: Policy, compile_s: float,
) -> tuple[bool, Reason, str]:  # fmt: skip
    """Whether the device beats the faster of reference and host route; the reason, and the reason as a phrase."""
    if refusal is not None:
        return False, *refusal
    if policy.force:
        return True, Reason.FORCED, "policy force"
    if price is None:
        return False, Reason.SMALL, f"one launch takes {between(hardware.launch_s)}, modelled"
    if cost.flops < policy.min_flops:
        return False, Reason.POLICY, f"{cost.flops:.2g} flops below min_flops {policy.min_flops:.2g}"
    if price.seconds * HYSTERESIS <= host_s:
        if price.seconds + compile_s > host_s:
            return False, Reason.NOT_COMPILED, f"compiling this shape takes {compile_s:.2g} s"
        least, most = interval(host_s / price.seconds)
        beside = ", with transfers beside launches" if price.overlapped else ""
        return True, Reason.FASTER, f"modelled{beside}, {least:.2g} to {most:.2g} times"
    launch_s = price.launches * hardware.launch_s
    if launch_s >= host_s:
        return False, Reason.SMALL, f"{price.launches} launches take {between(launch_s)}, modelled"
    if price.moved_s * HYSTERESIS >= host_s or price.moved_s >= price.seconds / 2:
        intensity = cost.flops / max(price.bytes, 1)
        return False, Reason.MEMORY_BOUND, f"{intensity:.2g} flop/byte, {between(price.moved_s)} of transfers, modelled"
    return False, Reason.SLOWER, f"needs to be {HYSTERESIS} times faster"
