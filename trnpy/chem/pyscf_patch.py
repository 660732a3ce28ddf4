"""Rows for the functions with which PySCF multiplies and diagonalises, and the patch that installs them.

PySCF calls BLAS through ctypes (``lib.dot``, ``lib.ddot``, ...), so a patch of NumPy and SciPy alone does not reach
most of its work.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyscf
import pyscf.lib.numpy_helper as numpy_helper
import pyscf.scf.hf as hf

from trnpy._base.records import record
from trnpy._call.cache_key import kind_of
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._call.fast_path import PRODUCTS
from trnpy._einsum import grammar
from trnpy._einsum import rows as _rows
from trnpy._einsum.plan import Contraction, Plan
from trnpy._engine.engines import Engine
from trnpy._patch import patch
from trnpy._patch.hook import LIBRARIES, active
from trnpy._settings.policy import current_policy
from trnpy.chem import pyscf_fitted, pyscf_ladder
from trnpy.linalg import _eigh
from trnpy.linalg._matrices import SMALL

TESTED = ((2, 13), (2, 14))  # first and last release of PySCF that tests/chem passes with; 2.12 fixes phases otherwise
REAL, COMPLEX = np.dtype(np.float64), np.dtype(np.complex128)
GEMM = ("mk", "kn"), "mn"  # labels of a product of two matrices


@record(kw_only=True)
class Update(Problem):
    """``target := alpha product + beta target``, like BLAS's gemm; without a target, a new array."""

    plan: Plan
    alpha: Any
    beta: Any = 0
    target: np.ndarray | None = None
    returned: Any = None  # the call's return value: ``target``, or the array of which ``target`` is a block

    @property
    def product(self) -> Contraction:
        return Contraction(self.arrays, self.dtype, self.cost, plan=self.plan)

    def run(self, engine: Engine) -> Any:
        """alpha times the product, computed by the engine."""
        return self.scaled(self.product.run(engine))

    def scaled(self, result: Any) -> Any:
        return result if self.alpha == 1 else result * self.alpha

    def error(self, result: Any) -> float:
        return self.product.error(result)

    def deliver(self, result: Any) -> Any:
        """The accepted result, written or added to the target if there is one."""
        if self.target is None:
            return result
        if self.beta == 0:  # the target is not read: it may be uninitialised memory
            np.copyto(self.target, result)
        else:
            np.multiply(self.target, self.beta, out=self.target)
            np.add(self.target, result, out=self.target)
        return self.returned


def _updated(
    product: Contraction, shape: tuple[int, ...], alpha: Any, beta: Any, target: Any, returned: Any = None
) -> Problem:
    """``product`` of ``shape`` with its `Update`; Unsupported if a factor would change the dtype."""
    for factor in (alpha, beta):
        known = isinstance(factor, (int, float, complex, np.number))
        if not known or np.result_type(product.dtype, factor) != product.dtype:
            raise Unsupported(Reason.PARAM, f"factor {factor!r} for a product in {product.dtype}")
    if not (np.isfinite(alpha) and np.isfinite(beta)) or alpha == 0:
        raise Unsupported(Reason.VALUE, f"factors {alpha!r} and {beta!r}")
    if target is not None:
        _require_output(target, shape, product)
        if beta != 0 and current_policy().verify:
            raise Unsupported(Reason.POLICY, "a call that adds to its output cannot be repeated to verify it")
    return Update(
        product.arrays, product.dtype, product.cost, plan=product.plan, alpha=alpha, beta=beta, target=target,
        returned=target if returned is None else returned,
    )  # fmt: skip


def _require_output(target: Any, shape: tuple[int, ...], product: Problem) -> None:
    if type(target) is not np.ndarray or not target.flags.writeable:
        raise Unsupported(Reason.SUBCLASS, "output is not a writeable numpy.ndarray")
    if target.shape != shape or target.dtype != product.dtype:
        raise Unsupported(Reason.LAYOUT, f"output {target.dtype} {target.shape} for {product.dtype} {shape}")
    if any(np.may_share_memory(target, a) for a in product.arrays):
        raise Unsupported(Reason.LAYOUT, "output may overlap an operand")


# --- Products of matrices ---------------------------------------------------------------------------------------------


def _plain(a: Any) -> Any:
    """``a`` as a plain array. PySCF's density matrices are a subclass that carries their orbitals."""
    return np.asarray(a) if isinstance(a, np.ndarray) else a


def _product(a: np.ndarray, b: np.ndarray, alpha: Any, beta: Any, c: Any) -> Problem:
    if c is not None and not (type(c) is np.ndarray and c.flags.c_contiguous):
        raise Unsupported(Reason.LAYOUT, "output is not a C-contiguous numpy.ndarray")
    return _updated(_rows._problem(*GEMM, (a, b)), (len(a), b.shape[1]), alpha, beta, c)


def _matrices(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = _plain(a), _plain(b)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        raise Unsupported(Reason.SUBCLASS, f"{type(a).__name__} and {type(b).__name__} are not both numpy.ndarray")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise Unsupported(Reason.LAYOUT, f"shapes {a.shape} and {b.shape}")
    return a, b


def _require(dtype: np.dtype, *arrays: Any) -> None:
    for a in arrays:
        if not isinstance(a, np.ndarray) or a.dtype != dtype:
            raise Unsupported(Reason.DTYPE, f"{getattr(a, 'dtype', type(a).__name__)} is not {dtype}")


def prepare_ddot(a: Any, b: Any, alpha: Any = 1, c: Any = None, beta: Any = 0) -> Problem:
    a, b = _matrices(a, b)
    _require(REAL, a, b)
    return _product(a, b, alpha, beta, c)


def prepare_zdot(a: Any, b: Any, alpha: Any = 1, c: Any = None, beta: Any = 0) -> Problem:
    a, b = _matrices(a, b)
    _require(COMPLEX, a, b)
    if not all(m.flags.c_contiguous or m.flags.f_contiguous for m in (a, b)):
        raise Unsupported(Reason.LAYOUT, "a complex operand is neither C- nor Fortran-contiguous")
    return _product(a, b, alpha, beta, c)


def prepare_dot(a: Any, b: Any, alpha: Any = 1, c: Any = None, beta: Any = 0) -> Problem:
    a, b = _matrices(a, b)
    if a.dtype == b.dtype == COMPLEX:
        return prepare_zdot(a, b, alpha, c, beta)
    if {a.dtype, b.dtype} == {REAL, COMPLEX} and (c is not None or np.iscomplexobj(alpha)):
        raise Unsupported(Reason.PARAM, "a real and a complex matrix with an output or a complex factor")
    return _product(a, b, alpha, beta, c)


def prepare_dgemm(
    trans_a: Any, trans_b: Any, m: Any, n: Any, k: Any, a: Any, b: Any, c: Any, alpha: Any = 1, beta: Any = 0,
    offseta: Any = 0, offsetb: Any = 0, offsetc: Any = 0,
) -> Problem:  # fmt: skip
    """A product of blocks of C-contiguous matrices, each block given by the offset of its first element."""
    _require(REAL, a, b, c)
    left = _block(_plain(a), (m, k), trans_a, offseta)
    right = _block(_plain(b), (k, n), trans_b, offsetb)
    target = _block(c, (m, n), "N", offsetc)
    return _updated(_rows._problem(*GEMM, (left, right)), (m, n), alpha, beta, target, c)


def _block(whole: np.ndarray, shape: tuple[int, int], trans: str, offset: int) -> np.ndarray:
    """The block of ``whole`` that starts at element ``offset``; ``shape`` is its shape after transposing for "T"."""
    stored = shape if trans == "N" else shape[::-1]
    if trans not in ("N", "T") or whole.ndim != 2 or not whole.flags.c_contiguous:
        raise Unsupported(Reason.LAYOUT, f"operand of shape {whole.shape}, transposition {trans!r}")
    if min(stored) <= 0 or stored[1] > whole.shape[1] or offset < 0:
        raise Unsupported(Reason.LAYOUT, f"block {stored} at {offset} of a matrix {whole.shape}")
    size = whole.itemsize
    # NumPy raises ValueError if the block ends outside; dispatch then calls PySCF, as for Unsupported.
    view: np.ndarray = np.ndarray(stored, whole.dtype, whole, offset * size, (whole.shape[1] * size, size))
    return view if trans == "N" else view.T


# --- Contractions -----------------------------------------------------------------------------------------------------


def _contraction(
    scripts: Any, tensors: Sequence[Any], alpha: Any = 1, beta: Any = 0, out: Any = None, optimize: Any = None
) -> Problem:
    """A contraction of PySCF. With ``optimize=None`` it has two operands and PySCF calls gemm if it can."""
    if not isinstance(scripts, str):
        raise Unsupported(Reason.PARAM, f"subscripts {scripts!r}")
    inputs, output, arrays = grammar.parse((scripts, *map(_plain, tensors)))
    sizes: dict[str, int] = {}
    for labels, a in zip(inputs, arrays, strict=True):
        if any(sizes.setdefault(label, n) != n for label, n in zip(labels, np.shape(a), strict=True)):
            raise Unsupported(Reason.LAYOUT, f"an operand {np.shape(a)} stretches: PySCF allows it for small ones only")
    if optimize is None:
        gemm = "->" in scripts and _by_gemm(inputs, output, arrays)
        problem = _rows._problem(inputs, output, arrays, loops=not gemm)
    else:
        problem = _rows._problem(inputs, output, arrays, None, *_rows._search(optimize, len(arrays)))
    return _updated(problem, tuple(sizes[label] for label in output), alpha, beta, out)


def _by_gemm(inputs: Sequence[str], output: str, arrays: Sequence[Any]) -> bool:
    """Whether ``lib.contract`` computes a contraction as one matrix product.

    It does so if the operands are large, every label occurs twice, and each operand has summed labels and others.
    """
    a, b = map(set, inputs)
    labels = "".join(inputs) + output
    big = min(np.size(x) for x in arrays) >= numpy_helper.EINSUM_MAX_SIZE
    return big and all(labels.count(c) == 2 for c in labels) and a & b not in (set(), a, b) and not a & b & set(output)


def prepare_contract(
    subscripts: Any, A: Any, B: Any, alpha: Any = 1, beta: Any = 0, out: Any = None, **ignored: Any
) -> Problem:
    if ignored.get("DEBUG"):
        raise Unsupported(Reason.PARAM, "DEBUG prints")
    return _contraction(subscripts, (A, B), alpha, beta, out)


def prepare_einsum(scripts: Any, *tensors: Any, **kwargs: Any) -> Problem:
    stretched = "..." in scripts  # PySCF passes these on to NumPy, with all options
    if len(tensors) == 2 and not stretched and "_contract" not in kwargs:
        return prepare_contract(scripts, *tensors, **kwargs)
    # With three or more operands PySCF ignores alpha, beta and out; PySCF then computes the call.
    if refused := kwargs.keys() - ({"optimize", "alpha", "beta", "out"} if stretched else {"optimize"}):
        raise Unsupported(Reason.PARAM, f"options {', '.join(sorted(refused))}")
    return _contraction(scripts, tensors, **{"optimize": not stretched, **kwargs})


# --- Eigenproblems ----------------------------------------------------------------------------------------------------


class OrbitalEnergies(_eigh.Eigenpairs):
    """Eigenvectors with PySCF's choice of phases."""

    __slots__ = ()

    def deliver(self, result: Any) -> tuple[np.ndarray, np.ndarray]:
        w, x = result
        return w, hf._adjust_phase_(np.require(x, requirements="W"))


def prepare_eig(h: Any, s: Any, overwrite: Any = False) -> Problem:
    return OrbitalEnergies.of(_eigh.prepare_eigh(_plain(h), _plain(s)))


# --- The patch --------------------------------------------------------------------------------------------------------


def _row(name: str, prepare: Callable[..., Problem]) -> Op:
    contracts = name in ("contract", "einsum")  # PySCF and NumPy compute some of these in loops
    return Op(
        f"pyscf.lib.{name}", getattr(numpy_helper, name), prepare, small=PRODUCTS,
        kind=kind_of if contracts else None,
    )  # fmt: skip


@functools.cache
def rows() -> Mapping[str, Op]:
    """The rows, by each function's dotted name in the module that defines it. Patching finds imports from there."""
    helper = "pyscf.lib.numpy_helper"
    return {
        f"{helper}.einsum": _row("einsum", prepare_einsum),
        f"{helper}.contract": _row("contract", prepare_contract),
        f"{helper}.dot": _row("dot", prepare_dot),
        f"{helper}.ddot": _row("ddot", prepare_ddot),
        f"{helper}.zdot": _row("zdot", prepare_zdot),
        f"{helper}._dgemm": _row("_dgemm", prepare_dgemm),
        "pyscf.scf.hf.eig": Op("pyscf.scf.hf.eig", hf.eig, prepare_eig, small=SMALL, kind=None),
        **pyscf_fitted.rows(),
        **pyscf_ladder.rows(),
    }


@record(frozen=True, eq=False)
class PyscfPatch:
    """One ``patch_pyscf()``; leaving its ``with`` block, or ``undo()``, removes it."""

    patches: tuple[patch.Patch, ...]

    def __enter__(self) -> PyscfPatch:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Remove this patch; RuntimeError if it has been removed already."""
        with patch._here.lock:
            for p in reversed(self.patches):
                p.undo()
            pyscf_fitted.integrals_inside()
            _patches.remove(self)
            _release()


_patches: list[PyscfPatch] = []  # in force, oldest first; changed only under the lock of trnpy._patch.patch


def patch_pyscf() -> PyscfPatch:
    """Accelerate PySCF, and the NumPy and SciPy that it calls, in the whole process.

    Returns
    -------
    PyscfPatch
        A context manager: leaving its block, or ``undo()``, removes the patch. So does `unpatch_pyscf`.

    Notes
    -----
    Patches can be nested; removing the last one restores the original functions. Names that modules imported before
    the patch, or while it was in force, are patched and restored as well. If the installed PySCF is not a tested
    release, only its calls of NumPy and SciPy are accelerated, with a RuntimeWarning.

    Examples
    --------
    >>> import pyscf, trnpy.chem
    >>> einsum = pyscf.lib.einsum
    >>> with trnpy.chem.patch_pyscf():
    ...     pyscf.lib.einsum is einsum
    False
    >>> pyscf.lib.einsum is einsum
    True
    """
    ops = rows() if _is_tested(pyscf.__version__) else {}
    with patch._here.lock:
        new = PyscfPatch((patch.patch(), patch.patch_rows(ops, True, LIBRARIES, {})))
        _patches.append(new)
        pyscf_fitted.integrals_first()
    return new


@contextlib.contextmanager
def patched_pyscf(names: Collection[str] | None = None) -> Iterator[None]:
    """`patch_pyscf` for a block, in this thread or task.

    With ``names`` only these functions are patched, and names that modules imported earlier are unchanged.
    """
    ops = rows() if _is_tested(pyscf.__version__) else {}
    everything = {**dict.fromkeys(patch._select(None)), **ops}
    chosen = {name: op for name, op in everything.items() if names is None or name in names}
    if chosen.keys() <= active().names:
        yield
        return
    own = {name: op for name, op in chosen.items() if name in ops}
    general = {name: op for name, op in chosen.items() if name not in ops}
    with patch._here.lock:
        pyscf_fitted.integrals_first()
    try:
        with patch._patched(general, False, LIBRARIES, {}), patch._patched(own, names is None, LIBRARIES, {}):
            yield
    finally:
        with patch._here.lock:
            pyscf_fitted.integrals_inside()
            if names is None:
                _release()


def unpatch_pyscf() -> None:
    """Remove the latest `patch_pyscf`.

    Raises
    ------
    RuntimeError
        If no `patch_pyscf` is in force.

    Examples
    --------
    >>> import pyscf, trnpy.chem
    >>> einsum = pyscf.lib.einsum
    >>> patch = trnpy.chem.patch_pyscf()
    >>> trnpy.chem.unpatch_pyscf()
    >>> pyscf.lib.einsum is einsum
    True
    """
    with patch._here.lock:
        if not _patches:
            raise RuntimeError("unpatch_pyscf(): no patch_pyscf() is in force")
        _patches[-1].undo()


def _is_tested(version: str) -> bool:
    release = tuple(int(part) for part in version.split(".")[:2])
    first, last = TESTED
    if first <= release <= last:
        return True
    tested = " to ".join(".".join(map(str, release)) for release in TESTED)
    warnings.warn(
        f"PySCF {version} is not among the versions that trnpy has been tested with, {tested}: its own functions "
        "stay as they are, only its calls of NumPy and SciPy are accelerated",
        RuntimeWarning,
        stacklevel=3,
    )
    return False


def _release() -> None:
    """Restore originals in modules that were imported during the patch and still refer to a wrapper."""
    hooks = {id(hook): hook for name, hook in patch._here.hooks.items() if not patch._here.users[name]}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            for attribute, value in list(vars(module).items()):
                if (hook := hooks.get(id(value))) is not None:
                    setattr(module, attribute, hook._original)
