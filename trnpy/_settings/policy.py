"""Settings: read once from TRNPY_* environment variables, changed for a block with ``policy(...)``."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, get_args

from nkisim.hardware import GIB, MACHINES
from trnpy._base.context_settings import Blocks
from trnpy._base.records import record
from trnpy._nki.instances import INSTANCES
from trnpy._settings import tile

REQUIRE = "TRNPY_REQUIRE_NKI"  # a switch for fallback="raise", named as in other libraries for Trainium
HYSTERESIS = 1.2  # how many times faster than the host the device must be, to allow for errors of predictions

Device = Literal["auto", "neuron", "simulator", "null", "none"]
Precision = Literal["matched", "mixed", "fp32", "bf16"]
Fallback = Literal["warn", "raise", "log"]
Method = Literal["auto", "divide", "jacobi", "start"]
CHOICES: Mapping[str, tuple[str, ...]] = {
    "device": get_args(Device),
    "machine": (*MACHINES, *INSTANCES),
    "precision": get_args(Precision),
    "fallback": get_args(Fallback),
    "method": get_args(Method),
}
SWITCHES = ("force", "reproducible")


@record(frozen=True)
class Policy:
    """Settings: where calls may run and what results must satisfy.

    Each field is also an environment variable, ``TRNPY_<FIELD>``, read at the first use of trnpy.

    Parameters
    ----------
    device : {"auto", "neuron", "simulator", "null", "none"}
        Engine of accelerated calls: a Neuron device if there is one; a Neuron device or an error; the NKI simulator;
        the host, with the decisions and modelled times of `machine`; or the host alone.
    machine : {"trn1", "trn2", "trn3"} or the name of an instance
        Device that "null" and the report model: one physical core of a generation. If an instance is named, such as
        "trn2.48xlarge", the report also compares all its NeuronCores with its vCPUs and with this machine.
    force : bool
        Whether to send every supported call to the device, however small.
    precision : {"matched", "mixed", "fp32", "bf16"}
        Accuracy of products: LAPACK's accuracy in the dtype of the input, or that of a shorter format. "mixed" is
        "matched", except that density-fitted J and K in the first cycles of PySCF's SCF use float32
        (docs/precision.md).
    method : {"auto", "divide", "jacobi", "start"}
        Float32 eigensolver whose result is refined to float64, in `eigh` and functions that use it: divide and conquer,
        block Jacobi (real matrices) or LAPACK. "auto" picks the one with the lowest predicted time.
    fallback : {"warn", "raise", "log"}
        What happens when the device fails: the host's result with one NkiFallbackWarning per calling line, a
        FallbackError, or the host's result and a line in the report.
    min_flops : float
        Calls with fewer operations stay on the host.
    verify : float
        Fraction (0 to 1) of device calls that are repeated on the host and compared.
    device_memory : float
        Memory of the device that trnpy may use: a fraction up to 1, or bytes above 1.
    time_limit : float
        Seconds after which a device call counts as hung.
    cores : int
        Number of NeuronCores that one large product, batch of products or set of MP2 pairs may use; 0 for all that this
        process sees, which is one on the simulator and in the model.
    reproducible : bool
        Whether J and K of PySCF's density-fitted mean fields have the same bits on any number of ranks
        (docs/ranks.md#mp2-over-ranks). Products of distributed arrays have an argument of this name (`dist.einsum`).

    Raises
    ------
    ValueError
        If a value is outside its choices or range.
    TypeError
        If a value is of the wrong type.

    Examples
    --------
    >>> import trnpy
    >>> trnpy.Policy(machine="trn3").precision
    'matched'
    >>> trnpy.Policy(machine="trn9")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: machine='trn9': expected one of trn1, trn2, trn3, trn1.2xlarge, ...
    """

    device: Device = "auto"
    machine: str = "trn2"
    force: bool = False
    precision: Precision = "matched"
    method: Method = "auto"
    fallback: Fallback = "warn"
    min_flops: float = 0.0
    verify: float = 0.0
    device_memory: float = 0.8
    time_limit: float = 60.0
    cores: int = 0
    reproducible: bool = False

    @property
    def products(self) -> Precision:
        """The precision of products: "matched" under "mixed", whose early cycles set "fp32" themselves."""
        return "matched" if self.precision == "mixed" else self.precision

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: expected True or False")
        if isinstance(self.cores, bool) or not isinstance(self.cores, int):
            raise TypeError(f"cores={self.cores!r}: expected an integer")
        for name, low, high in (
            ("min_flops", 0, None),
            ("verify", 0, 1),
            ("device_memory", 0, None),
            ("time_limit", 0, None),
            ("cores", 0, None),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name}={value!r}: expected a number")
            if not value >= low or (high is not None and value > high):
                raise ValueError(
                    f"{name}={value!r}: expected a number from {low}{f' to {high}' if high else ' upward'}"
                )


class Settings(TypedDict, total=False):
    """The fields of `Policy` as keyword arguments that may be left out, for type checkers."""

    device: Device
    machine: str
    force: bool
    precision: Precision
    method: Method
    fallback: Fallback
    min_flops: float
    verify: float
    device_memory: float
    time_limit: float
    cores: int
    reproducible: bool


def _parse(name: str, text: str) -> Any:
    """The value of field ``name`` from the text of an environment variable; ValueError or TypeError if it is wrong."""
    value = _value(name, text)
    Policy(**{name: value})
    return value


def _value(name: str, text: str) -> Any:
    if name in SWITCHES:
        return _switch(text)
    if name == "device_memory":
        for suffix, factor in (("%", 0.01), ("GiB", GIB), ("MiB", GIB / 1024), ("", 1)):
            if text.endswith(suffix):
                return _number(text.removesuffix(suffix), "a fraction, a percentage, MiB, GiB or bytes") * factor
    if name == "cores":
        return int(text) if text.isdigit() else _number("", "an integer from 0 upward")
    return text if name in CHOICES else _number(text, "a number")


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("expected 1 or 0")


def _number(text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None


def _variable(environ: Mapping[str, str], key: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(environ[key].strip())
    except (ValueError, TypeError) as why:
        raise ValueError(f"environment variable {key}={environ[key]!r}: {why}") from None


def from_environment(environ: Mapping[str, str]) -> Policy:
    """The policy that TRNPY_* variables describe; fields without a variable keep their defaults."""
    values: dict[str, Any] = {}
    for name in Policy.__annotations__:
        key = f"TRNPY_{name.upper()}"
        if key in environ:
            values[name] = _variable(environ, key, functools.partial(_parse, name))
    if REQUIRE in environ and _variable(environ, REQUIRE, _switch):
        values["fallback"] = "raise"
    return Policy(**values)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each TRNPY_* variable that trnpy does not read, with the nearest name that it does read."""
    known = [REQUIRE, *(f"TRNPY_{name.upper()}" for name in Policy.__annotations__)]
    complaints = []
    for name in sorted(environ):
        if name.startswith("TRNPY_") and name not in (*known, tile.VARIABLE):
            import difflib  # imported late: few programs have such a variable

            endings = [other.removeprefix("TRNPY_") for other in known]
            near = difflib.get_close_matches(name.removeprefix("TRNPY_"), endings, 1)
            hint = f"did you mean TRNPY_{near[0]}?" if near else f"{', '.join(sorted(known))} are"
            complaints.append(f"{name} is not a variable of trnpy's: {hint}")
    return complaints


class ProcessPolicy:
    """The policy of threads that have not set their own; None until it is first needed."""

    policy: Policy | None = None


class Rates:
    """``turn`` is another object after each calibration in this process."""

    turn: object = None


class Attention:
    """Whether this process has ever used trnpy's settings, records or engines; every call tests it first.

    It stays set, because tasks that were started inside a block keep the block's context after its end.
    """

    asked = False
    # Whether any thread or task ever had a policy, an engine or a trace of its own. It also stays set.
    apart = False
    # Calls a function if Arrays are among its arguments, or returns NotImplemented. None: no Array was ever made.
    arrays: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
    array: type | None = None  # the type of Arrays, with ``arrays``


_override: ContextVar[Any] = ContextVar("trnpy_engine", default=None)  # an engine in place of the policy's
_blocks: Blocks[Policy] = Blocks("trnpy_policy")
_own = _blocks.value


def current_policy() -> Policy:
    """Policy in force here: set by the innermost `policy` block, otherwise by the process.

    Returns
    -------
    Policy
        The settings.

    Raises
    ------
    ValueError
        If a ``TRNPY_*`` environment variable has a wrong value; it is read at the first call.

    Examples
    --------
    >>> import trnpy
    >>> with trnpy.policy(verify=0.5):
    ...     trnpy.current_policy().verify
    0.5
    """
    return _own.get() or ProcessPolicy.policy or _read()


def _read() -> Policy:
    # Read at first use, so that a wrong variable is an error of the first call and not of ``import trnpy``.
    ProcessPolicy.policy = from_environment(os.environ)
    return ProcessPolicy.policy


def process_policy() -> Policy:
    """The policy of threads and tasks that are in no ``policy`` block."""
    return ProcessPolicy.policy or _read()


def set_process_policy(policy: Policy) -> Policy:
    """Replace the policy of threads and tasks that are in no ``policy`` block; returns the former one."""
    previous, ProcessPolicy.policy = process_policy(), policy
    return previous


def changed(base: Policy, changes: Mapping[str, Any], function: str = "policy") -> Policy:
    """``base`` with some settings replaced; TypeError or ValueError for an unknown setting or a wrong value."""
    names = list(Policy.__annotations__)
    for name in changes:
        if name not in names:
            raise TypeError(f"{function}() has no setting {name!r}: expected one of {', '.join(names)}")
    return replace(base, **changes)


@contextlib.contextmanager
def policy(**changes: Unpack[Settings]) -> Iterator[Policy]:
    """Change settings for a block, in this thread or task.

    Parameters
    ----------
    **changes
        Fields of `Policy` and their new values.

    Yields
    ------
    Policy
        The policy inside the block.

    Raises
    ------
    TypeError
        If there is no such field, or a value is of the wrong type.
    ValueError
        If a value is outside its choices or range.

    Examples
    --------
    >>> import trnpy
    >>> with trnpy.policy(device="null", machine="trn3") as settings:
    ...     settings.machine
    'trn3'
    """
    changed(current_policy(), changes)  # raises before any state changes
    Attention.asked = Attention.apart = True
    with _blocks.block(process_policy(), lambda outer: changed(outer, changes)) as new:
        yield new
