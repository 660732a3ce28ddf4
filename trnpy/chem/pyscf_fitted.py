"""PySCF's density-fitted methods as rows: J and K of a mean field, energy and amplitudes of MP2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from pyscf import df, lib
from pyscf.df import df_jk
from pyscf.mp import dfmp2, dfump2
from pyscf.scf import hf

from trnpy._base.records import record
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy.chem import dfmp2 as pairs
from trnpy.chem import jk
from trnpy.chem._rows import MEMORY, REAL
from trnpy.chem.pyscf_cycles import by_cycles, early_precision


def prepare_jk(
    dfobj: Any, dm: Any, hermi: Any = 0, with_j: Any = True, with_k: Any = True, direct_scf_tol: Any = 1e-13
) -> Problem:
    if not with_k:
        raise Unsupported(Reason.MEMORY_BOUND, "J alone reads the integrals twice")
    b = dfobj._cderi
    if type(dfobj) is not df.DF or not isinstance(b, np.ndarray):
        raise Unsupported(Reason.LAYOUT, f"integrals of {type(dfobj).__name__} are not in memory, or not computed yet")
    if not b.dtype == np.asarray(dm).dtype == REAL or np.shape(dm)[-1] != dfobj.mol.nao:
        raise Unsupported(Reason.DTYPE, "a density that is not float64, or of other functions than the molecule's")
    memory = max(MEMORY, 4 * np.shape(dm)[-1] ** 2 * REAL.itemsize)
    problem = jk._prepare(
        b, np.asarray(dm), orbitals=occupied(dm), with_j=bool(with_j), with_k=bool(with_k), memory=memory
    )
    return replace(problem, missing=0)  # type: ignore[call-arg]  # as PySCF returns it


def occupied(dm: Any) -> list[np.ndarray] | None:
    """Orbitals times square roots of occupations for each density; None if PySCF did not tag ``dm`` with them."""
    c, occupations = getattr(dm, "mo_coeff", None), getattr(dm, "mo_occ", None)
    if c is None or occupations is None or np.iscomplexobj(c):
        return None
    c, occupations = np.asarray(c), np.asarray(occupations)
    if c.ndim == 2 and np.ndim(dm) == 3:  # ROHF: both spins have the same orbitals
        c, occupations = np.stack([c, c]), np.stack([occupations > 0, occupations == 2]).astype(float)
    elif c.ndim == 2:
        c, occupations = c[None], occupations[None]
    if len(c) != (len(dm) if np.ndim(dm) == 3 else 1):
        return None
    # PySCF also leaves out negative occupations. Its K then differs from the K of ``dm``, so the check of K rejects it.
    return [orbitals[:, n > 0] * np.sqrt(n[n > 0]) for orbitals, n in zip(c, occupations, strict=True)]


@record(kw_only=True)
class Correlation(pairs.PairEnergies):
    """Energy and amplitudes as PySCF returns them."""

    def deliver(self, result: Any) -> Any:
        return delivered(result, self.with_t2)


def prepare_mp2(
    mp: Any, mo_energy: Any = None, mo_coeff: Any = None, eris: Any = None, with_t2: Any = True, verbose: Any = None
) -> Problem:
    if eris is None:
        raise Unsupported(Reason.PARAM, "a call that transforms the integrals itself")
    arguments, memory = arguments_of(mp, eris, with_t2)
    return Correlation.of(pairs._prepare(*arguments, memory=memory, with_t2=bool(with_t2)))


def arguments_of(mp: Any, eris: Any, with_t2: bool) -> tuple[tuple[Any, Any, Any], float]:
    """Integrals, orbital energies and workspace for `dfmp2_energy`; Unsupported if PySCF must compute the call."""
    unrestricted = isinstance(mp, dfump2.DFUMP2)
    integrals = list(eris.ovL) if unrestricted else [eris.ovL]
    if not all(isinstance(b, np.ndarray) for b in integrals):
        raise Unsupported(Reason.LAYOUT, "integrals are not in memory")
    if short_of_memory(mp, eris, unrestricted, with_t2):
        raise Unsupported(Reason.PARAM, "the amplitudes exceed max_memory")
    energies = mp.split_mo_energy() if unrestricted else [mp.split_mo_energy()]
    occ, vir = [e[1] for e in energies], [e[2] for e in energies]
    b = [x.reshape(len(o), len(v), eris.naux) for x, o, v in zip(integrals, occ, vir, strict=True)]
    smallest = (pairs.WORKSPACE + 1) * max(map(len, vir)) ** 2 * REAL.itemsize
    return (b, occ, vir) if unrestricted else (b[0], occ[0], vir[0]), max(MEMORY, smallest)


def delivered(energy: pairs.MP2Energy, with_t2: bool) -> tuple[Any, Any]:
    """Energy and amplitudes as PySCF's ``init_amps`` returns them."""
    t2 = tuple(channel.t2 for channel in energy.channels)
    total = lib.tag_array(np.asarray(energy.total), e_corr_ss=energy.same_spin, e_corr_os=energy.opposite_spin)
    return total, (t2 if len(t2) > 1 else t2[0]) if with_t2 else None


def short_of_memory(mp: Any, eris: Any, unrestricted: bool, with_t2: bool) -> bool:
    """Whether PySCF would refuse to keep the amplitudes; PySCF is then called and raises its own error."""
    of_pairs = np.outer(eris.nocc, eris.nvir).diagonal() if unrestricted else np.array([eris.nocc * eris.nvir])
    amplitudes = np.triu(np.outer(of_pairs, of_pairs)).sum() * REAL.itemsize if with_t2 else 0
    return bool(mp.max_memory - lib.current_memory()[0] < amplitudes / 1e6)


def rows() -> dict[str, Op]:
    """The rows, by the dotted name of each function."""
    return {
        "pyscf.df.df_jk.get_jk": Op("pyscf.df.df_jk.get_jk", df_jk.get_jk, prepare_jk, kind=None),
        "pyscf.mp.dfmp2.kernel": Op("pyscf.mp.dfmp2.kernel", dfmp2.kernel, prepare_mp2, kind=None),
        "pyscf.mp.dfump2.kernel": Op("pyscf.mp.dfump2.kernel", dfump2.kernel, prepare_mp2, kind=None),
    }


# --- Integrals before the calls that need them -----------------------------------------------------------------------


def _transformed(init_amps: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init_amps)
    def call(
        self: Any, mo_energy: Any = None, mo_coeff: Any = None, eris: Any = None, *rest: Any, **options: Any
    ) -> Any:
        return init_amps(self, mo_energy, mo_coeff, self.ao2mo() if eris is None else eris, *rest, **options)

    return call


def _built(get_jk: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get_jk)
    def call(self: Any, dm: Any, hermi: Any = 1, with_j: Any = True, with_k: Any = True, *rest: Any, **o: Any) -> Any:
        omega = rest[1] if len(rest) > 1 else o.get("omega")  # with omega another object has the integrals
        if with_k and self._cderi is None and omega is None:
            self.build()
        with early_precision():
            return get_jk(self, dm, hermi, with_j, with_k, *rest, **o)

    return call


WRAPPED = (
    (dfmp2.DFRMP2, "init_amps", _transformed), (dfump2.DFUMP2, "init_amps", _transformed), (df.DF, "get_jk", _built),
    (hf, "kernel", by_cycles),
)  # fmt: skip


class _Methods:
    """The number of active `integrals_first` patches, and PySCF's own methods."""

    users = 0
    originals: tuple[Any, ...] = ()


def integrals_first() -> None:
    """Make PySCF's methods compute integrals before they call the functions of `rows`, which receive them as arguments.

    Unpatched PySCF computes them inside these functions, at the same moment. Each call needs one `integrals_inside`.
    """
    _Methods.users += 1
    if _Methods.users == 1:
        _Methods.originals = tuple(vars(kind)[name] for kind, name, _ in WRAPPED)
        for (kind, name, wrapper), original in zip(WRAPPED, _Methods.originals, strict=True):
            setattr(kind, name, wrapper(original))


def integrals_inside() -> None:
    """Undo one `integrals_first`."""
    _Methods.users -= 1
    if not _Methods.users:
        for (kind, name, _), original in zip(WRAPPED, _Methods.originals, strict=True):
            setattr(kind, name, original)
