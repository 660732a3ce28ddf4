"""The launches of one product of a dtype, the unit of its errors, and the results of the self-tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._base import store
from trnpy._base.records import record
from trnpy._engine.abstract_arrays import priced, real_dtype
from trnpy._nki.device import identity

NAMED: Mapping[str, str] = MappingProxyType({"fp32": "float32", "bf16": "bfloat16"})
EPS: Mapping[str, float] = MappingProxyType({"fp32": 2.0**-23, "bf16": 2.0**-7})


# Launches of one matrix product, at least: for float64 two make digits, one bounds the error and one multiplies; a
# large result needs one more to round it. A complex product is four real ones.
LAUNCHES: Mapping[str, int] = MappingProxyType({"float64": 4, "complex64": 4, "complex128": 12})


def launches(dtype: np.dtype, precision: str) -> int:
    """Kernel launches of one product of matrices of ``dtype``."""
    if dtype.kind in "iu":
        return 3
    if precision != "matched":
        return 4 if dtype.kind == "c" else 1
    return LAUNCHES.get(dtype.name, 1)


def eps(dtype: np.dtype, precision: str) -> float:
    """The unit in which errors of a result are measured: the eps of ``dtype``, or of the precision of a policy."""
    if dtype.kind in "iub":
        return 1.0
    own = float(np.finfo(dtype).eps)
    return own if precision == "matched" else max(own, EPS[precision])


def least(single: bool) -> float:
    """The allowed error of a result that underflows: a device may flush numbers below float32's normal ones."""
    return float(np.finfo(np.float32).tiny if single else np.finfo(np.float64).smallest_subnormal)


SQUARABLE = 2.0**20  # times the root of the smallest normal number: for larger norms, underflowed squares do not count


@priced("", lambda a: (a.nbytes, (((), real_dtype(a.dtype)),)))
def norms(a: np.ndarray, axis: tuple[int, int] | None = None) -> Any:
    """Frobenius norms over ``axis``, by default over all, correct even if squares of elements underflow or overflow."""
    with np.errstate(over="ignore", under="ignore"):
        found = np.linalg.norm(a, axis=axis)
        least = SQUARABLE * float(np.finfo(a.dtype).tiny) ** 0.5
        if np.all((least < found) & (found < np.inf)):
            return found
        size = np.abs(a)
        exponent = np.frexp(size.max(axis=axis, keepdims=True, initial=0))[1]
        found = np.linalg.norm(np.ldexp(size, -exponent), axis=axis).astype(np.float64)
        return np.ldexp(found, exponent.reshape(np.shape(found)))


def underflow(arrays: tuple[np.ndarray, ...]) -> bool:
    """Whether an eps of the largest element of one of ``arrays`` is below the normal numbers of its dtype."""
    for a in arrays:
        if a.dtype.kind in "fc":
            info = np.finfo(a.dtype)
            if 0 < np.abs(a).max(initial=0) < float(info.tiny) / float(info.eps):
                return True
    return False


FORMS: Mapping[str, tuple[str, ...]] = MappingProxyType(  # of kernels with another form, by fact
    {
        "mp2_energy": ("repeats", "biases", "offsets", "loops"), "schwarz_screened_spmm": ("repeats",),
        **dict.fromkeys(("ao_to_mo", "digits_split", "float64_digits", "words_matmul", "words_sum"), ("biases",)),
    }
)  # fmt: skip


@record()
class Facts:
    """The results of a device's self-tests (trnpy doctor --probe), or documented properties before these have run."""

    exact_sums: bool = True  # PSUM sums integers exactly below 2^24: required by digits of eight bits
    short_sums: bool = True  # PSUM sums integers exactly below 2^22: required by digits of seven bits
    integer_sums: bool = True  # GpSimd adds 32-bit integers exactly: required by all digits and by block offsets
    float32_products: bool = True  # TensorE's float32 product is accurate; if not, bf16 slices are multiplied
    splits: bool = True  # float64_digits matches its reference implementation; if not, the host splits float64
    denormals: bool = True  # float32 keeps numbers below 2^-126: nothing depends on it
    transposes: bool = True  # TensorE transposes bfloat16: by nc_transpose, on trn1 by a product with the identity
    offsets: bool = True  # a loop's register is the offset of a transfer; if not, only programs without loops run
    loops: bool = True  # two device loops use PSUM one after the other; if not, programs have at most one loop
    repeats: bool = True  # a transfer repeats a row on all partitions from a run-time address; if not, two transfers do
    biases: bool = True  # ScalarE adds a number exactly, or rounds to nearest even; if not, VectorE does

    @property
    def blocks(self) -> bool:
        """Whether kernels can find and transpose their blocks; if not, nothing is launched."""
        return self.integer_sums and self.transposes

    @property
    def most_loops(self) -> int | None:
        """Device loops that a program may have; None if any number."""
        if not self.offsets:
            return 0
        return None if self.loops else 1

    @property
    def usual(self) -> bool:
        """Whether all kernels are launched in their default form."""
        return self.most_loops is None and self.repeats and self.biases

    def form(self, kernel: str) -> dict[str, bool]:
        """Parameters of a launch of ``kernel`` that select its form for this device; empty for the default form."""
        return {name: False for name in FORMS.get(kernel, ()) if not getattr(self, name)}

    @property
    def bits(self) -> int:
        """Bits of the widest digits whose products are exact: 8, or 7 (float64 only), or 0 if none are."""
        if not self.blocks:
            return 0
        return 8 if self.exact_sums else 7 if self.short_sums else 0

    @property
    def digits(self) -> bool:
        """Whether products of digits of eight bits are exact."""
        return self.bits == 8


def facts_path(runtime: str, machine: str) -> Path:
    """The file with the results of the self-tests, beside the calibration."""
    return store.folder() / f"probes-{runtime}-{machine}.json"


def probed(runtime: str, machine: str) -> store.Stored[Facts]:
    """Self-test results for this runtime, this machine and the software that is installed now."""
    return store.read(facts_path(runtime, machine), identity(runtime), _facts)


def _facts(content: Any) -> Facts:
    for name, value in content.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}, neither true nor false")
    return Facts(**content)


def save_facts(found: Facts, runtime: str, machine: str) -> Path:
    """Write the results of the self-tests to their file."""
    return store.write(facts_path(runtime, machine), asdict(found), identity(runtime))
