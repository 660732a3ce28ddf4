"""PySCF's density-fitted methods over the ranks of a program: integrals, DF-MP2, and the patch of PySCF's methods."""

from __future__ import annotations

import functools
import hashlib
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyscf import df, gto, lib
from pyscf.df.incore import fill_2c2e
from pyscf.mp import dfmp2, dfump2

from trnpy._engine import lapack
from trnpy._settings.policy import current_policy
from trnpy.chem import _checkpoint
from trnpy.chem import _jk_ranks as _jk
from trnpy.chem import _mp2_ranks as _ranks
from trnpy.chem._checkpoint import Checkpoint, read, replace
from trnpy.chem._rows import REAL
from trnpy.chem.dfmp2 import MP2Energy
from trnpy.chem.pyscf_fitted import delivered, occupied, short_of_memory
from trnpy.dist._collectives import Communicator
from trnpy.dist._start import comm as process_comm
from trnpy.dist._start import shared

FACTORS = 3  # matrices (naux, naux) in memory while Coulomb integrals of the auxiliary functions are factored
SHARE = 0.9  # of the part of PySCF's ``max_memory`` that is still free


class Computed:
    """Integrals (mn|P), which are computed when they are read and never stored; `fitted` turns (ia|P) into (ia|L)."""

    unfitted = True

    def __init__(self, fit: Any) -> None:
        self._fit, mol = fit, fit.mol
        if fit.auxmol is None:
            fit.auxmol = df.addons.make_auxmol(mol, fit.auxbasis)
        self.edges: Sequence[int] = fit.auxmol.ao_loc.tolist()
        nao = mol.nao
        self.row_bytes = REAL.itemsize * (3 * (nao * (nao + 1) // 2) + nao * nao)
        self._integral = gto.moleintor.ascint3(mol._add_suffix("int3c2e"))
        self._tables = gto.mole.conc_env(
            mol._atm, mol._bas, mol._env, *(getattr(fit.auxmol, n) for n in ("_atm", "_bas", "_env"))
        )
        self._factor: tuple[np.ndarray, bool] = np.empty((0, 0)), True  # the factor, and whether it is triangular

    def rows(self, first: int, last: int) -> np.ndarray:
        return np.asarray(lib.unpack_tril(self.triangles(first, last)))

    def triangles(self, first: int, last: int) -> np.ndarray:
        if first == last:  # there are more ranks than shells
            return np.empty((0, self._fit.mol.nao * (self._fit.mol.nao + 1) // 2))
        nbas, starts = self._fit.mol.nbas, self.edges
        shells = (0, nbas, 0, nbas, nbas + starts.index(first), nbas + starts.index(last))
        packed = gto.moleintor.getints3c(self._integral, *self._tables, shls_slice=shells, comp=1, aosym="s2ij")
        return np.asarray(lib.transpose(packed.reshape(-1, last - first)))

    def check(self, memory: float) -> None:
        naux = self.edges[-1]
        least = FACTORS * REAL.itemsize * naux * naux
        if least > memory:
            raise _ranks.TooLittleMemory(
                f"fitting with {naux} auxiliary functions needs {_ranks.SHARES * least} bytes a rank"
            )

    def fit(self) -> None:
        coulomb = fill_2c2e(self._fit.mol, self._fit.auxmol)
        try:
            self._factor = lapack.cholesky(coulomb, lower=True, overwrite_a=True), True
        except lapack.LinAlgError:  # like PySCF
            e, u = lapack.eigh(fill_2c2e(self._fit.mol, self._fit.auxmol))
            kept = abs(e) > dfmp2.THRESH_LINDEP
            self._factor = (u[:, kept] * e[kept] ** -0.5) @ u[:, kept].T, False

    def fitted(self, b: np.ndarray) -> np.ndarray:
        factor, triangular = self._factor
        if not triangular:
            return np.asarray(b @ factor)
        return np.asarray(lapack.solve_triangular(factor, b.T, lower=True, check_finite=False).T)


class Stored:
    """Fitted integrals (mn|L) that PySCF has in memory or in a file; each rank reads its own range."""

    unfitted = False

    def __init__(self, fit: Any) -> None:
        self._fit, nao = fit, fit.mol.nao
        self.edges: Sequence[int] = range(fit.get_naoaux() + 1)
        self.row_bytes = REAL.itemsize * (2 * (nao * (nao + 1) // 2) + nao * nao)

    def rows(self, first: int, last: int) -> np.ndarray:
        return np.asarray(lib.unpack_tril(self.triangles(first, last)))

    def triangles(self, first: int, last: int) -> np.ndarray:
        with df.addons.load(self._fit._cderi, self._fit._dataname) as found:
            if isinstance(found, np.ndarray) or hasattr(found, "dtype"):
                return np.array(found[first:last])
            # Several datasets, each with a range of columns.
            return np.hstack([found[str(n)][first:last] for n in range(len(found))])

    def check(self, memory: float) -> None:
        pass

    def fit(self) -> None:
        pass

    def fitted(self, b: np.ndarray) -> np.ndarray:
        return b


def _integrals(fit: Any) -> Computed | Stored:
    return Computed(fit) if fit._cderi is None else Stored(fit)


def _together(comm: Communicator, what: str, fit: Any) -> None:
    """Raise MismatchedCalls on all ranks if they have different molecules or auxiliary functions."""
    stored = "" if fit._cderi is None else f", {fit.get_naoaux()} stored functions"
    molecules = [fit.mol] if fit.auxmol is None else [fit.mol, fit.auxmol]
    comm.meet(f"{what} of molecule {_hash(*molecules).hexdigest()[:16]}{stored}")


class OverRanks:
    """The result of ``ao2mo`` of a DF-MP2 object: the integrals (ia|L) of the orbitals of this rank."""

    ovL: Any = (None,)  # PySCF's name for the integrals of all orbitals, which no rank has

    def __init__(self, method: Any, memory: float | None = None, mo_coeff: Any = None) -> None:
        self.comm = process_comm()
        _together(self.comm, "DF-MP2", method.with_df)
        given = memory if memory is not None else SHARE * 1e6 * (method.max_memory - lib.current_memory()[0])
        self.memory = float(self.comm.allreduce(float(given), "min"))
        self.orbitals = _orbitals(method, mo_coeff).agreed(self.comm)
        self._integrals = _integrals(method.with_df)
        self.naux = self._integrals.edges[-1]
        self.nocc: Any = [len(e) for e in self.orbitals.occ_energy]
        self.nvir: Any = [len(e) for e in self.orbitals.vir_energy]
        if not isinstance(method, dfump2.DFUMP2):
            (self.nocc,), (self.nvir,) = self.nocc, self.nvir
        self.share = _ranks.transformed(self._integrals, self.orbitals, self.comm, self.memory, lib.param.TMPDIR)

    @property
    def nbytes(self) -> int:
        """Bytes of (ia|L) of all orbitals."""
        return self.orbitals.number * self.orbitals.nvir * self.naux * REAL.itemsize

    def energy(self, with_t2: bool = False, checkpoint: Path | None = None) -> MP2Energy:
        kept = None if checkpoint is None else Checkpoint(checkpoint, self.digest())
        return _ranks.energy(self.share, self.orbitals, self.comm, self.memory, kept, with_t2)

    def digest(self) -> str:
        """A digest of everything that the energies depend on."""
        fit = self._integrals._fit
        found = _hash(fit.mol, *([fit.auxmol] if fit.auxmol is not None else []))
        o = self.orbitals
        for a in (*o.occ, *o.vir, *o.occ_energy, *o.vir_energy):
            found.update(repr(a.shape).encode() + a.tobytes())
        return str(found.hexdigest())


def _hash(*molecules: Any) -> Any:
    found = hashlib.sha256()
    for mol in molecules:
        found.update(repr((mol.nelectron, mol.spin, mol.omega)).encode() + mol.atom_coords().tobytes())
        found.update(mol.atom_charges().tobytes())
        for shell in range(mol.nbas):  # the order in PySCF's own tables differs from process to process
            found.update(repr((mol.bas_atom(shell), mol.bas_angular(shell))).encode())
            found.update(mol.bas_exp(shell).tobytes() + mol.bas_ctr_coeff(shell).tobytes())
    return found


def _orbitals(method: Any, mo_coeff: Any) -> _ranks.Orbitals:
    """The active orbitals of a DF-MP2 object, for each spin."""
    coefficients, energies = method.split_mo_coeff(mo_coeff), method.split_mo_energy()
    if not isinstance(method, dfump2.DFUMP2):
        coefficients, energies = [coefficients], [energies]
    return _ranks.Orbitals(
        *(
            tuple(np.ascontiguousarray(spin[part]) for spin in spins)
            for spins in (coefficients, energies)
            for part in (1, 2)
        )
    )


STATE = "converged", "e_tot", "mo_coeff", "mo_energy", "mo_occ"  # the attributes of a mean field that MP2 reads


def converge(mf: Any, memory: float, checkpoint: Path | None) -> None:
    """Converge ``mf`` on the first rank, or read its orbitals from the folder ``checkpoint``, for all ranks."""
    comm = process_comm()

    def first() -> None:
        digest = np.array(_hash(mf.mol).hexdigest())
        found = {} if checkpoint is None else read(checkpoint / "orbitals.npz", digest)
        if found:
            vars(mf).update({name: found[name] for name in STATE})
            return
        mf.max_memory = lib.current_memory()[0] + memory / 1e6
        mf.kernel(None if checkpoint is None else _kept_density(mf, checkpoint / "density.npz", digest))
        if checkpoint is not None and mf.converged:
            replace(checkpoint / "orbitals.npz", digest=digest, **{n: np.asarray(getattr(mf, n)) for n in STATE})

    comm.on_first(first)
    for name in STATE:
        setattr(mf, name, comm.bcast(getattr(mf, name)))
    mf.converged, mf.e_tot = bool(mf.converged), float(mf.e_tot)


def _kept_density(mf: Any, path: Path, digest: np.ndarray) -> np.ndarray | None:
    """The stored density of a killed run, if there is one; from now on ``mf`` stores its own at intervals."""
    written = time.monotonic()

    def keep(local: dict[str, Any]) -> None:
        nonlocal written
        if time.monotonic() - written >= _checkpoint.EVERY_S:
            replace(path, digest=digest, density=np.asarray(local["dm"]))
            written = time.monotonic()

    mf.callback = keep
    return read(path, digest).get("density")


def peak_bytes() -> int:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _ao2mo(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ao2mo(self: Any, mo_coeff: Any = None, ovL: Any = None, ovL_to_save: Any = None) -> Any:
        plain = type(self.with_df) is df.DF and self._scf.converged and 0 not in _sizes(self)
        if not plain or ovL is not None or ovL_to_save is not None or shared() is None:
            return original(self, mo_coeff, ovL, ovL_to_save)
        return OverRanks(self, mo_coeff=mo_coeff)

    return ao2mo


def _sizes(method: Any) -> list[int]:
    """Numbers of occupied and of virtual orbitals, for each the larger of the two spins."""
    occupied, virtual = np.max(method.nocc), np.max(np.subtract(method.nmo, method.nocc))
    return [int(occupied), int(virtual)]


def _init_amps(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_amps(
        self: Any, mo_energy: Any = None, mo_coeff: Any = None, eris: Any = None, with_t2: bool = True
    ) -> Any:
        eris = self.ao2mo(mo_coeff) if eris is None else eris
        if not isinstance(eris, OverRanks):
            return original(self, mo_energy, mo_coeff, eris, with_t2)
        if short_of_memory(self, eris, isinstance(self, dfump2.DFUMP2), with_t2):
            raise MemoryError("the amplitudes exceed max_memory: run with with_t2=False")
        return delivered(eris.energy(with_t2), with_t2)

    return init_amps


def _get_jk(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_jk(
        self: Any, dm: Any, hermi: int = 1, with_j: bool = True, with_k: bool = True, direct_scf_tol: float = 1e-13,
        omega: Any = None,
    ) -> Any:  # fmt: skip
        plain = type(self) is df.DF and omega is None and not np.iscomplexobj(dm) and np.shape(dm)[-1] == self.mol.nao
        comm = shared() if plain and (with_j or with_k) else None
        held = None if comm is None else _held(self, comm)
        if comm is None or held is None:
            return original(self, dm, hermi, with_j, with_k, direct_scf_tol, omega)
        orbitals = occupied(dm) if comm.rank == 0 else None  # rounding must not make the orbitals differ by rank
        widths = comm.bcast(np.array([-1] if orbitals is None else [c.shape[1] for c in orbitals]))
        if widths[0] >= 0:
            orbitals = [comm.bcast(None if orbitals is None else orbitals[n]) for n in range(len(widths))]
        return _jk.matrices(held[1], comm.bcast(np.asarray(dm)), orbitals, comm, with_j, with_k, *held[2:])

    return get_jk


def _held(fit: Any, comm: Communicator) -> Any:
    """A key, this rank's integrals, their matrices if these fit half the free memory, and leaves; kept with ``fit``.

    None if a rank has no room for its shard.
    """
    reproducible = current_policy().reproducible
    key = fit.mol._env.tobytes(), str(fit.auxbasis), id(fit._cderi), reproducible
    kept = vars(fit).get("_trnpy_held")
    if kept is None or kept[0] != key:
        _together(comm, "density-fitted J and K", fit)
        nao, naux = fit.mol.nao, _integrals(fit).edges[-1]
        packed = REAL.itemsize * naux * nao * (nao + 1) / 2 / comm.size
        room = float(comm.allreduce(1e6 * (fit.max_memory - lib.current_memory()[0]), "min"))
        if room < 2 * packed:
            return None
        b = _jk.fitted(_integrals(fit), comm, reproducible)
        share = np.array(_jk.shares(_integrals(fit).edges, comm.size, reproducible)[comm.rank])
        leaves = (share - share[0]).tolist() if reproducible else ()
        kept = fit._trnpy_held = key, b, lib.unpack_tril(b) if 6 * packed < room and len(b) else None, leaves
    return kept


def take_over() -> Callable[[], None]:
    """Patch PySCF's DF-MP2, J and K to run over ranks in an unchanged program; returns a function that undoes it."""
    changed = [
        (kind, name, vars(kind)[name], wrapped)
        for kind in (dfmp2.DFRMP2, dfump2.DFUMP2)
        for name, wrapped in (("ao2mo", _ao2mo), ("init_amps", _init_amps))
    ]
    changed.append((df.DF, "get_jk", vars(df.DF)["get_jk"], _get_jk))
    for kind, name, original, wrapped in changed:
        setattr(kind, name, wrapped(original))

    def undo() -> None:
        for kind, name, original, _ in changed:
            setattr(kind, name, original)

    return undo
