"""The decision about a call and its reason, as users read them."""

from __future__ import annotations

import functools
from enum import StrEnum

from nkisim.hardware import between
from trnpy._base.records import record
from trnpy._engine.time_parts import NOTHING, Parts
from trnpy._report.html_table import table


class Reason(StrEnum):
    """Why a call ran where it ran. ``meaning`` explains it in a sentence.

    Attributes
    ----------
    meaning : str
        Where the call ran and why.
    {members}
    Examples
    --------
    >>> import trnpy
    >>> str(trnpy.Reason.NO_DEVICE), trnpy.Reason.OOM.meaning
    ('no_device', 'Host: the device ran out of memory.')
    """

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Reason:
        made = str.__new__(cls, value)
        made._value_, made.meaning = value, meaning
        return made

    FASTER = "faster", "Device: the model predicts fewer seconds than for the host, transfers included."
    FORCED = "forced", "Device: ``policy(force=True)`` sends every supported call to it."
    ROUTE = "route", "Host: another method gives the same result faster than the original function."
    SMALL = "small", "Host: launching a kernel takes longer than the whole call."
    MEMORY_BOUND = "memory_bound", "Host: moving the operands to the device and back takes longer than the call."
    SLOWER = "slower", "Host: the device would compute longer."
    DTYPE = "dtype", "Host: no device path covers this dtype."
    LAYOUT = "layout", "Host: no device path covers this shape or memory layout."
    PARAM = "param", "Host: no device path covers this option."
    VALUE = "value", "Host: the values need it: not finite, singular, or not positive definite."
    SUBCLASS = "subclass", "Host: an operand is of a subclass of numpy.ndarray that may change the result."
    NO_PATH = "no_path", "Host: this function has no path on a device."
    EXCLUDED_CALLER = "excluded_caller", "Host: NumPy, SciPy or an excluded package made the call."
    NO_DEVICE = "no_device", "Host: there is no device; the what-if models one."
    NO_LAUNCH = "no_launch", "Host: the device path left everything to it, such as the only panel of a small matrix."
    NOT_COMPILED = "not_compiled", "Host: compiling the kernel takes longer than the call would save."
    OOM = "oom", "Host: the device ran out of memory."
    POLICY = "policy", "Host: a setting of `Policy` says so."
    ACCURACY = "accuracy", "Host: the device's result was not accurate enough."
    ERROR = "error", "Host: the device failed."


# Each reason is explained only above; help() and the docs list the explanations from there.
if Reason.__doc__:  # python -OO drops docstrings
    _indent = Reason.__doc__.partition("{members}")[0].rpartition("\n")[2]  # empty from Python 3.13 on
    _listed = f"\n{_indent}".join(f"{reason.name}\n{_indent}    {reason.meaning}" for reason in Reason)
    Reason.__doc__ = Reason.__doc__.replace("{members}", _listed)


def meaning(code: str) -> str:
    """The sentence that explains a reason, given its code such as "no_device"."""
    return next(reason.meaning for reason in Reason if reason == code)


# Reasons for which fallback="raise" does not raise: the host is the right place and there is no error.
CONTENT = frozenset(
    {
        Reason.ROUTE,
        Reason.SMALL,
        Reason.MEMORY_BOUND,
        Reason.SLOWER,
        Reason.EXCLUDED_CALLER,
        Reason.NOT_COMPILED,
        Reason.NO_LAUNCH,
        Reason.POLICY,
    }
)


class Unsupported(Exception):
    """The device path does not cover this call: ``reason``, and a phrase in lower case that explains it."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@record(frozen=True)
class Decision:
    """Where a call runs or ran, and why.

    Attributes
    ----------
    op : str
        Dotted name of the original function, such as "scipy.linalg.eigh".
    on_device : bool
        Whether the device computes the result. After a call: whether it launched any kernel.
    reason : Reason
        Why the call runs there.
    detail : str
        The reason as a phrase with figures.
    dtype : str
        Dtype of the products.
    flops : float
        Real operations, as textbooks count them.
    moved_bytes : int
        Bytes of operands and results.
    host_s : float or None
        Predicted seconds of the host.
    device_s : float or None
        Modelled seconds of the device: never measured.
    machine : str
        The device that `device_s` is modelled on: trn1, trn2 or trn3.
    calibrated : bool
        Whether `host_s` is based on measurements of this host (`calibrate`).
    engine : str
        Name of the engine that computed the result.
    route : str
        Name of the CPU fast path; empty for the original function.
    method : str
        The method of the device path, if it has several.
    launches : tuple of (str, int)
        Kernels and the number of launches of each; for the host engine, products and reference versions of kernels.
    waiting_s : float
        Predicted seconds that a CPU fast path would save, if it is not used yet because its import takes longer.
    unproven : str
        The property of a device result that its check cannot prove (docs/faults.md#what-is-not-certified).
    parts : Parts
        The parts of `device_s`: launches, transfers, conversions, engine, other work of the host.
    single_s : float or None
        Modelled seconds of the device for a float64 product with ``precision="fp32"``.
    cores : int
        Physical NeuronCores (LNC 1) that `device_s` is modelled on: several if the policy allows that and it is faster.
    model_reason, model_detail : Reason or None, str
        If there is no device: the reason that the model gives for one; NO_DEVICE if modelling needs an engine.
    by_device_path : bool
        Whether the device path computed the result, even if it left all of it to the host.
    gain_s : float
        Predicted seconds that the device would save.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a = np.ones((1000, 1000))
    >>> with trnpy.policy(device="none"):
    ...     decision = trnpy.explain(trnpy.matmul, a, a)
    >>> decision.op, decision.on_device, decision.detail
    ('numpy.matmul', False, 'no device')
    """

    op: str
    on_device: bool
    reason: Reason
    detail: str
    dtype: str = ""
    flops: float = 0.0
    moved_bytes: int = 0
    host_s: float | None = None
    device_s: float | None = None
    machine: str = ""
    calibrated: bool = False
    engine: str = "host"
    route: str = ""
    method: str = ""
    launches: tuple[tuple[str, int], ...] = ()
    waiting_s: float = 0.0
    unproven: str = ""
    parts: Parts = NOTHING
    single_s: float | None = None
    cores: int = 1
    model_reason: Reason | None = None
    model_detail: str = ""

    @property
    def by_device_path(self) -> bool:
        """Whether the device path computed the result, even if it left all of it to the host."""
        return self.on_device or self.reason is Reason.NO_LAUNCH

    @property
    def gain_s(self) -> float:
        """Predicted seconds that the device would save; 0 if either time is unknown."""
        return 0.0 if self.host_s is None or self.device_s is None else self.host_s - self.device_s

    def __str__(self) -> str:
        times = ""
        if self.host_s is not None and self.device_s is not None:
            mark = "" if self.calibrated else ", uncalibrated"
            times = f"; host {self.host_s:.2g} s predicted{mark}, {self._device} {between(self.device_s)} modelled"
        return f"{self.op}: {self.where}: {self.reason} ({self.detail}{times})"

    __repr__ = __str__

    @property
    def where(self) -> str:
        """ "host" or "device", and the name of the fast path or method if there is one."""
        way = self.method if self.on_device else self.route
        return ("device" if self.on_device else "host") + (f" by {way}" if way else "")

    @property
    def _device(self) -> str:
        return self.machine if self.cores == 1 else f"{self.cores} physical cores of {self.machine}"

    def _repr_html_(self) -> str:
        rows = [("where", self.where), ("why", f"{self.reason}: {self.detail}")]
        if self.host_s is not None:
            rows.append(("host", f"{self.host_s:.2g} s predicted{'' if self.calibrated else ', uncalibrated'}"))
        if self.device_s is not None:
            rows.append((self._device, f"{between(self.device_s)} modelled"))
        if self.unproven:
            rows.append(("not proven", self.unproven))
        return table(self.op, rows)


@functools.cache
def small_decision(name: str, most: int, of: str = "elements") -> Decision:
    """The decision about calls of ``name`` whose operands have at most ``most`` elements in total, or other units."""
    return Decision(name, False, Reason.SMALL, f"at most {most:,} {of}")


@functools.cache
def excluded_decision(name: str, caller: str) -> Decision:
    """The decision about calls of ``name`` from the module ``caller``, which a patch excludes."""
    return Decision(name, False, Reason.EXCLUDED_CALLER, f"called from {caller}")


class NkiFallbackWarning(RuntimeWarning):
    """The device failed and the host computed the result.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np, trnpy
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", trnpy.NkiFallbackWarning)
    ...     c = trnpy.matmul(np.eye(2), np.eye(2))
    """


class FallbackError(RuntimeError):
    """A call could not run on the device under ``policy(fallback="raise")``.

    Attributes
    ----------
    decision : Decision
        The call, and the reason.

    Examples
    --------
    >>> import numpy as np, trnpy
    >>> a = np.ones((2, 2), dtype=object)
    >>> with trnpy.policy(device="simulator", force=True, fallback="raise"):
    ...     try:
    ...         trnpy.matmul(a, a)
    ...     except trnpy.FallbackError as error:
    ...         print(error.decision.detail)
    dtype object has no device path
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(str(decision))
        self.decision = decision
