"""PySCF objects accelerated one at a time: DF-MP2, density-fitted J and K, eigenproblems, contractions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from pyscf import df, gto, lib, scf
from pyscf.cc import ccsd
from pyscf.data.elements import ELEMENTS
from pyscf.df import df_jk
from pyscf.mp import dfmp2, dfump2, mp2

from trnpy._base.records import record
from trnpy._call.dispatch import Unsupported, explain
from trnpy.chem._rows import MEMORY, REAL
from trnpy.chem.dfmp2 import dfmp2_energy
from trnpy.chem.jk import build_jk_df
from trnpy.chem.pyscf_cycles import early_precision, mixed
from trnpy.chem.pyscf_fitted import arguments_of, delivered, occupied
from trnpy.chem.pyscf_patch import patched_pyscf


class _Accelerated:
    """A class that ``accelerate`` puts in front of an object's class, like PySCF's own mixins."""

    __name_mixin__ = ""  # PySCF prints the name of the object's class without an addition

    def undo_trnpy(self) -> Any:
        """Give the object its former class back, and return it."""
        mixin = next(cls for cls in MIXINS if isinstance(self, cls))
        self.__class__ = lib.drop_class(type(self), mixin)
        vars(self).pop("_trnpy_unpacked", None)
        return self


@record(eq=False)
class _Unread:
    """The arguments of `dfmp2_energy` for amplitudes that have not been computed yet."""

    arguments: tuple[Any, Any, Any]
    memory: float

    def computed(self) -> Any:
        return delivered(dfmp2_energy(*self.arguments, memory=self.memory, with_t2=True), True)[1]


class AcceleratedDFMP2(_Accelerated):
    """PySCF's DF-MP2 with energy and amplitudes from `dfmp2_energy`.

    ``run()`` returns no amplitudes. If a device computes the energy, they are computed when ``t2`` is read.
    """

    _trnpy_run = False  # whether ``run`` calls ``kernel``

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._trnpy_run = True
        try:
            return super().run(*args, **kwargs)  # type: ignore[misc]
        finally:
            vars(self).pop("_trnpy_run", None)

    @property
    def t2(self) -> Any:
        """Amplitudes in PySCF's form."""
        found = vars(self).get("t2")
        if isinstance(found, _Unread) and not self._trnpy_run:  # ``kernel`` returns it to ``run``, which drops it
            found = vars(self)["t2"] = found.computed()
        return found

    @t2.setter
    def t2(self, amplitudes: Any) -> None:
        vars(self)["t2"] = amplitudes

    def undo_trnpy(self) -> Any:
        _ = self.t2  # without this class nothing computes them
        return super().undo_trnpy()

    def init_amps(self, mo_energy: Any = None, mo_coeff: Any = None, eris: Any = None, with_t2: bool = True) -> Any:
        mp: Any = self
        eris = mp.ao2mo() if eris is None else eris
        try:
            arguments, memory = arguments_of(mp, eris, with_t2)
        except Unsupported:
            return super().init_amps(mo_energy, mo_coeff, eris, with_t2)  # type: ignore[misc]
        # If the orbitals are not converged, PySCF iterates and reads the amplitudes at once.
        later = with_t2 and self._trnpy_run and mp._scf.converged
        if later and explain(dfmp2_energy, *arguments, memory=memory).on_device:
            return delivered(dfmp2_energy(*arguments, memory=memory), False)[0], _Unread(arguments, memory)
        return delivered(dfmp2_energy(*arguments, memory=memory, with_t2=with_t2), with_t2)


class AcceleratedSCF(_Accelerated):
    """PySCF's SCF with eigenproblems in trnpy's accelerated functions."""

    def eig(self, *args: Any, **kwargs: Any) -> Any:
        with patched_pyscf(EIGENPROBLEMS):
            return super().eig(*args, **kwargs)  # type: ignore[misc]


class AcceleratedDFSCF(AcceleratedSCF):
    """PySCF's density-fitted SCF with J and K from `build_jk_df`, and eigenproblems in accelerated functions."""

    _trnpy_unpacked: tuple[np.ndarray, np.ndarray] | None = None  # packed triangles, and the matrices made of them

    def get_jk(
        self, mol: Any = None, dm: Any = None, hermi: int = 1, with_j: bool = True, with_k: bool = True,
        omega: Any = None,
    ) -> Any:  # fmt: skip
        mf: Any = self
        dm = mf.make_rdm1() if dm is None else dm
        if omega is not None or (with_k and mf.only_dfj) or (b := _triangles(mf, dm, with_k)) is None:
            return super().get_jk(mol, dm, hermi, with_j, with_k, omega)  # type: ignore[misc]
        plain, memory = np.asarray(dm), max(MEMORY, 4 * np.shape(dm)[-1] ** 2 * REAL.itemsize)
        if not with_k:
            return build_jk_df(b, plain, with_k=False) if with_j else (None, None)
        with early_precision():
            return self._fitted(b, plain, mf, with_j, {"orbitals": occupied(dm), "memory": memory})

    def scf(self, *args: Any, **options: Any) -> Any:
        with mixed(self):
            return super().scf(*args, **options)  # type: ignore[misc]

    kernel = scf

    def _fitted(self, b: np.ndarray, plain: np.ndarray, mf: Any, with_j: bool, options: dict[str, Any]) -> Any:
        """J and K of the densities ``plain``."""
        whole = self._unpacked(b, mf)
        if with_j and not explain(build_jk_df, whole, plain, **options).on_device:  # the host reads triangles faster
            return build_jk_df(b, plain, with_k=False)[0], build_jk_df(whole, plain, with_j=False, **options)[1]
        return build_jk_df(whole, plain, with_j=with_j, **options)

    def _unpacked(self, b: np.ndarray, mf: Any) -> np.ndarray:
        """The matrices of the triangles ``b``, or ``b`` itself if the matrices need more than half the free memory.

        They are kept from one iteration to the next.
        """
        if self._trnpy_unpacked is None or self._trnpy_unpacked[0] is not b:
            self._trnpy_unpacked = None
            free = (mf.max_memory - lib.current_memory()[0]) * 1e6
            if 2 * b.nbytes > free / 2:  # the matrices have about twice the bytes of the triangles
                return b
            self._trnpy_unpacked = b, lib.unpack_tril(b)
            self._trnpy_unpacked[1].flags.writeable = False  # no other reference: a device need not compare it
        return self._trnpy_unpacked[1]


def _triangles(mf: Any, dm: Any, with_k: bool) -> np.ndarray | None:
    """The packed integrals of ``mf``; None unless they are real, molecular and in memory, as `build_jk_df` needs."""
    fit = mf.with_df
    if type(fit) is not df.DF or np.iscomplexobj(dm) or np.shape(dm)[-1] != mf.mol.nao:
        return None
    if fit._cderi is None:
        if not with_k and not mf.mol.incore_anyway:
            return None  # PySCF computes J without forming the integrals
        fit.build()
    return fit._cderi if isinstance(fit._cderi, np.ndarray) else None


def _inside(name: str) -> Any:
    """PySCF's method ``name``, with contractions and eigenproblems accelerated while it runs."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        behind = next(cls for cls in type(self).__mro__ if not issubclass(cls, _Accelerated) and name in vars(cls))
        with patched_pyscf():
            return getattr(behind, name)(self, *args, **kwargs)

    method.__name__ = name
    return method


class AcceleratedMP2(_Accelerated):
    """PySCF's MP2 with accelerated contractions in the integral transformation and density matrices."""

    kernel, ao2mo, make_rdm1, make_rdm2 = map(_inside, ("kernel", "ao2mo", "make_rdm1", "make_rdm2"))


class AcceleratedCCSD(AcceleratedMP2):
    """PySCF's coupled cluster with accelerated contractions in amplitude equations, triples and density matrices."""

    ccsd, solve_lambda, ccsd_t = map(_inside, ("ccsd", "solve_lambda", "ccsd_t"))
    ipccsd, eaccsd, eeccsd = map(_inside, ("ipccsd", "eaccsd", "eeccsd"))


EIGENPROBLEMS = frozenset({"scipy.linalg.eigh", "pyscf.scf.hf.eig"})
KINDS = (  # PySCF's classes, and the class put in front of an object's class; the first match is used
    ((dfmp2.DFRMP2, dfump2.DFUMP2), AcceleratedDFMP2),
    (df_jk._DFHF, AcceleratedDFSCF),
    (scf.hf.SCF, AcceleratedSCF),
    (ccsd.CCSDBase, AcceleratedCCSD),
    (mp2.MP2Base, AcceleratedMP2),
)
MIXINS = (AcceleratedDFMP2, AcceleratedDFSCF, AcceleratedSCF, AcceleratedCCSD, AcceleratedMP2)


def accelerate(method: Any) -> Any:
    """Accelerate one PySCF object: a mean field, MP2 or coupled cluster.

    Parameters
    ----------
    method : pyscf.scf.hf.SCF, pyscf.mp.mp2.MP2Base or pyscf.cc.ccsd.CCSDBase
        The object. It is changed in place, until ``method.undo_trnpy()``.

    Returns
    -------
    same type as `method`
        `method` itself.

    Raises
    ------
    TypeError
        If `method` is any other object.

    Notes
    -----
    These parts of a calculation run on trnpy; calls appear in `trnpy.trace` and `trnpy.report`:

    - energy and amplitudes of DF-MP2 (``pyscf.mp.dfmp2.DFMP2``, ``pyscf.mp.dfump2.DFUMP2``): `dfmp2_energy`;
      after ``run()`` on a device the amplitudes are computed when ``t2`` is read;
    - J and K of a density-fitted mean field (``scf.RHF(mol).density_fit()``): `build_jk_df`;
    - eigenproblems of any mean field;
    - contractions of MP2 and coupled cluster.

    PySCF computes everything else as before: integrals on disk, range separation, complex densities.

    Examples
    --------
    >>> from pyscf import gto, mp, scf
    >>> import trnpy.chem
    >>> mol = gto.M(atom="H 0 0 0; F 0 0 0.92", basis="cc-pvdz", verbose=0)
    >>> mf = trnpy.chem.accelerate(scf.RHF(mol).density_fit()).run()
    >>> correlation = trnpy.chem.accelerate(mp.dfmp2.DFMP2(mf)).run().e_corr
    >>> f"{correlation:.4f} Hartree"
    '-0.2039 Hartree'
    """
    if isinstance(method, _Accelerated):
        return method
    for kind, mixin in KINDS:
        if isinstance(method, kind):
            return lib.set_class(method, (mixin, type(method)))
    raise TypeError(
        f"accelerate({type(method).__name__}): expected a mean field, MP2 or coupled cluster of PySCF; "
        "patch_pyscf() accelerates what any other method calls"
    )


def molecule(atoms: Sequence[tuple[str, Sequence[float]]], basis: str, charge: int, spin: int) -> Any:
    """A PySCF molecule of ``atoms`` at positions in Angstrom; ValueError, in one line, if PySCF cannot make it."""
    for symbol, _ in atoms:
        if symbol.capitalize() not in ELEMENTS[1:]:  # ELEMENTS[0] is the ghost atom; PySCF accepts most words as one
            raise ValueError(f"{symbol!r}: expected the symbol of an element")
    if not basis.strip():
        raise ValueError(f"basis {basis!r}: expected the name of a basis set, such as cc-pvdz")
    nuclear = sum(ELEMENTS.index(symbol.capitalize()) for symbol, _ in atoms)
    if charge >= nuclear:
        raise ValueError(f"charge {charge}: expected less than {nuclear}, the charge of the nuclei")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySCF warns that a basis-set package is missing; the error is enough
            return gto.M(atom=list(atoms), basis=basis, charge=charge, spin=spin, verbose=0)
    except (KeyError, RuntimeError) as why:
        raise ValueError(" ".join(str(why.args[0] if why.args else why).split())) from why


def mean_field(mol: Any) -> Any:
    """RHF for closed shells, else UHF."""
    return scf.UHF(mol) if mol.spin else scf.RHF(mol)


def density_fitted_mp2(mf: Any) -> Any:
    """Accelerated DF-MP2 on the mean field ``mf``, with PySCF's auxiliary basis for MP2."""
    return accelerate((dfump2.DFUMP2 if mf.mol.spin else dfmp2.DFRMP2)(mf))
