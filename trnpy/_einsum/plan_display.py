"""The plan of an einsum call as a table: its products, where each one runs, and their predicted times."""

from __future__ import annotations

import functools
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nkisim.hardware import Hardware, between
from trnpy._base.records import record
from trnpy._call.dispatch import Decision, Reason, explain
from trnpy._einsum.plan import Plan, placed
from trnpy._einsum.product import Step
from trnpy._einsum.rows import einsum, prepare_einsum
from trnpy._engine.engines import current_engine
from trnpy._nki.instances import hardware_of
from trnpy._report.html_table import table
from trnpy._settings.host_rates import HostRates, current_rates
from trnpy._settings.policy import Policy, current_policy

BLAS, LOOP, DEVICE = "BLAS", "loop", "device"  # matrix products with BLAS, NumPy's loop over all labels, the engine

INTERVAL = 20  # largest number of characters of one interval


@record(frozen=True)
class EinsumStep:
    """One product of two operands.

    ``operands`` are positions in the list of operands, from which both are removed and to which the result is
    appended, as in `numpy.einsum_path`.
    """

    operands: tuple[int, int]
    subscripts: str
    route: str  # BLAS, LOOP or DEVICE
    why: str
    flops: float  # real operations; a multiply-add counts as two
    moved_bytes: int  # of both operands and the result
    host_s: float  # predicted
    device_s: float  # modelled


@record(frozen=True)
class EinsumPlan:
    """The steps of a call in order; there are none if NumPy runs the call unchanged, for the reason in ``decision``."""

    subscripts: str
    decision: Decision  # of the whole call
    steps: tuple[EinsumStep, ...]
    loop_flops: float  # operations of NumPy's loop over all labels

    @property
    def flops(self) -> float:
        return sum(step.flops for step in self.steps)

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.subscripts}: as NumPy does it; {self.decision}"
        machine = self.decision.machine or "device"
        wide = max(len(step.subscripts) for step in self.steps)
        lines = [
            f"{self.subscripts}: {self.flops:.3g} flops, {self.loop_flops:.3g} in one loop; {self.decision}",
            f"{'':4}{'operands':10}{'product':{wide}}{'flops':>10}{'bytes':>10}  {'route':8}"
            f"{'host s predicted':>17}  {f'{machine}, modelled':{INTERVAL}}  why",
        ]
        for n, step in enumerate(self.steps, 1):
            pair = f"{step.operands[0]}, {step.operands[1]}"
            lines.append(
                f"{n:<4}{pair:10}{step.subscripts:{wide}}{step.flops:10.2g}{step.moved_bytes:10.2g}  {step.route:8}"
                f"{step.host_s:17.2g}  {between(step.device_s):{INTERVAL}}  {step.why}"
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first = str(self).partition("\n")[0]
        machine = self.decision.machine or "device"
        header = ("operands", "product", "flops", "bytes", "route", "host predicted", f"{machine} modelled", "why")
        rows = [
            (f"{s.operands[0]}, {s.operands[1]}", s.subscripts, f"{s.flops:.2g}", f"{s.moved_bytes:.2g}", s.route,
             f"{s.host_s:.2g} s", between(s.device_s), s.why)
            for s in self.steps
        ]  # fmt: skip
        return table(first, rows, header if rows else ())


@runtime_checkable
class Planner(Protocol):
    """An operand that plans contractions itself, as sharded arrays do (`trnpy.dist.Sharded`)."""

    def einsum_plan(self, *operands: Any, **options: Any) -> Any: ...


def einsum_plan(*operands: Any, **options: Any) -> EinsumPlan | Any:
    """Plan of an einsum call: its products, where each would run, and for how long.

    Parameters
    ----------
    *operands, **options
        Arguments of `trnpy.einsum`.

    Returns
    -------
    EinsumPlan
        ``steps``, ``flops`` and ``decision``; it prints as a table. There are no steps if NumPy runs the call unchanged
        or would raise an error for it. For a sharded array, the plan of `trnpy.dist.einsum_plan`.

    Notes
    -----
    Plans are cached: equal shapes, dtypes, options, policy and host throughput return the same object. On the device
    path, a step stays on the host if moving its operands takes longer than computing.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a = np.ones((64, 64))
    >>> plan = trnpy.einsum_plan("ij,jk,kl->il", a, a, a[:, :9])
    >>> [step.subscripts for step in plan.steps]
    ['jk,kl->lj', 'ij,lj->il']
    """
    planner = next((a for a in operands if isinstance(a, Planner)), None)
    if planner is not None:
        return planner.einsum_plan(*operands, **options)
    decision = explain(einsum, *operands, **options)
    policy = current_policy()
    if not decision.on_device and not decision.route:
        words = operands[0] if operands and isinstance(operands[0], str) else "operands and sublists"
        return EinsumPlan(words, decision, (), 0.0)
    problem = prepare_einsum(*operands, **options)
    engine = current_engine(policy)
    machine = engine.hardware if engine is not None else None
    return _planned(problem.plan, problem.dtype, decision, machine, policy, current_rates())


@functools.lru_cache(maxsize=1024)
def _planned(
    p: Plan, dtype: np.dtype, decision: Decision, machine: Hardware | None, policy: Policy, rates: HostRates
) -> EinsumPlan:
    if dtype.kind not in "fc" or len(p.steps) == 1:  # the decision of the call is that of its only step
        decisions = [decision] * len(p.steps)
    else:
        # Without a device, the table shows the modelled times of the policy's machine.
        asked = placed(p, dtype, machine or hardware_of(policy.machine), policy, rates)
        decisions = list(placed(p, dtype, machine, policy, rates) if decision.on_device else asked)
    steps = tuple(_step(step, d, decision, p, dtype, rates) for step, d in zip(p.steps, decisions, strict=True))
    return EinsumPlan(p.subscripts, decision, steps, p.loop_flops)


def _step(step: Step, own: Decision, whole: Decision, p: Plan, dtype: np.dtype, rates: HostRates) -> EinsumStep:
    cost = step.cost(p.sizes, dtype)
    on_device = whole.on_device and own.on_device
    route = DEVICE if on_device else LOOP if step.loops else BLAS
    if on_device or (whole.on_device and own.reason is not Reason.NO_DEVICE):
        why = f"{own.reason}: {own.detail}"
    else:
        why = "thin: NumPy's loop is as fast" if step.loops else whole.route
    return EinsumStep(
        step.operands,
        step.subscripts,
        route,
        why,
        cost.flops,
        cost.bytes_in + cost.bytes_out,
        step.host_s(rates, dtype),
        own.device_s or 0.0,
    )
