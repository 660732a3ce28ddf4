"""Sparse matrices as decisions and dry runs use them: block counts without values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.sparse import issparse

from trnpy._base.records import record
from trnpy._engine.abstract_arrays import Count, Outline, Spec, Valueless, new
from trnpy._engine.engines import current_engine
from trnpy._engine.residency import pinned, place
from trnpy._nki.instances import hardware_of
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import HYSTERESIS, current_policy
from trnpy.sparse._tiles import Blocks, Tiling, count_blocks

PATTERNED = ("csr", "csc", "bsr", "coo")  # formats whose ``data`` holds their elements
METHODS = {"tiling": ("tiles", ""), "groups": ("gathered",), "krylov": ("",)}  # keyed by the form that an engine caches
EVERY = frozenset({"tiles", "gathered", ""})


def launch_pays(host_s: float, launches: int = 1) -> bool:
    """Whether this many launches may take less time than the host's ``host_s``; otherwise blocks are not counted."""
    policy = current_policy()
    engine = current_engine(policy)
    hardware = (engine.hardware if engine is not None else None) or hardware_of(policy.machine)
    return policy.force or host_s > HYSTERESIS * launches * hardware.launch_s


def host_s(cost: Any, dtype: np.dtype) -> float:
    """Predicted seconds of the original function."""
    return float(cost.host_s(current_rates(), dtype))


def outlined(options: Iterable[Any]) -> tuple[Any, ...]:
    """The options of a problem for a dry run: sparse matrices are replaced by their patterns."""
    return tuple([Pattern.of(x) if issparse(x) else x for x in options])


def resident(a: Any) -> frozenset[str]:
    """The methods for which the elements of ``a`` are device-resident, or will be after this call."""
    engine = current_engine(current_policy())
    if engine is None:
        return frozenset()
    if pinned(place(a.data)):
        return EVERY
    forms = [form for form in engine.cache.forms(a.data) if isinstance(form, tuple)]
    # Groups of elements can multiply the matrix or its transpose only; tiles can do both.
    kept = {form[0] for form in forms if form[0] != "groups" or form[2] == (a.format == "csc")}
    return frozenset(method for name, methods in METHODS.items() if name in kept for method in methods)


@record()
class Pattern(Outline):
    """The properties of a sparse matrix that determine the cost of a call."""

    format: str
    shape: tuple[int, int]
    dtype: np.dtype
    data: Spec
    places: tuple[Spec, ...]  # the arrays that hold the positions of the elements
    blocks: Blocks

    @classmethod
    def of(cls, a: Any) -> Pattern:
        """The pattern of ``a``, with its blocks counted. Other formats are converted to CSR first."""
        csr = a if a.format in PATTERNED else a.tocsr()
        places = csr.coords if csr.format == "coo" else (csr.indices, csr.indptr)
        return cls(
            resident(a) if csr is a else frozenset(), csr.format, a.shape, a.dtype, (csr.data.shape, csr.data.dtype),
            tuple([(p.shape, p.dtype) for p in places]), count_blocks(a if csr is a else csr),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return math.prod(self.data[0]) * self.data[1].itemsize

    def stand_in(self, count: Count) -> Matrix:
        return Matrix(self, count)


class Matrix(Valueless):
    """A sparse matrix without values. Functions of ``_tiles`` accept it, and count their work."""

    ndim = 2

    def __init__(self, pattern: Pattern, count: Count, form: str = "", turned: bool = False) -> None:
        self.pattern, self.count, self.turned = pattern, count, turned
        self.format = form or pattern.format
        self.dtype, self.blocks = pattern.dtype, pattern.blocks
        self.shape = pattern.shape[::-1] if turned else pattern.shape
        self.nnz = pattern.blocks.nnz
        self.data = new(*pattern.data, count)
        self.indices, self.indptr = (new(*spec, count) for spec in (*pattern.places, *pattern.places)[:2])
        self.coords = self.indices, self.indptr

    @property
    def T(self) -> Matrix:
        form = {"csr": "csc", "csc": "csr"}.get(self.format, self.format)
        return self._as(form, not self.turned)

    def _as(self, form: str, turned: bool) -> Matrix:
        found = Matrix(self.pattern, self.count, form, turned)
        found.data = self.data
        return found

    def compressed(self) -> Matrix:
        """The matrix as CSR."""
        found = self._as("csr", self.turned)
        if self.data.ndim > 1 or len(self.data) != self.nnz:
            found.data = new((self.nnz,), self.dtype, self.count)
        return found

    def tiling(self) -> Tiling:
        """Its tiles; only the block row of each is known, or the block column of a transpose."""
        line = np.repeat(np.arange(len(self.blocks.in_row)), self.blocks.in_row)
        row, column = (np.zeros_like(line), line) if self.turned else (line, np.zeros_like(line))
        place: Any = new((self.nnz,), np.int64, self.count)
        values: Any = new((self.nnz,), self.dtype, self.count)
        return Tiling((self.shape[0], self.shape[1]), row, column, place, place, values)

    def __matmul__(self, x: Any) -> Any:
        columns = math.prod(x.shape[1:])
        real = 4 if self.dtype.kind == "c" else 1
        self.count.work["csr", columns, self.dtype.char] += 2.0 * real * self.nnz * columns
        return new((self.shape[0], *x.shape[1:]), np.result_type(self.dtype, x.dtype), self.count)
