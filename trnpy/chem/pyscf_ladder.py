"""The contractions of PySCF's coupled cluster with integrals of four virtual orbitals, as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pyscf import lib
from pyscf.cc import ccsd, dfccsd

from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Refused, current_engine
from trnpy._nki.instances import hardware_of
from trnpy._settings.policy import current_policy
from trnpy.chem import _ladder
from trnpy.chem._rows import REAL


def prepare_ladder(mycc: Any, mol: Any, vvvv: Any, t2: Any, out: Any = None, verbose: Any = None) -> Problem:
    if vvvv is None:
        raise Unsupported(Reason.PARAM, "integrals that are computed in each call")
    if not isinstance(vvvv, np.ndarray) or vvvv.ndim != 2 or not isinstance(t2, np.ndarray):
        raise Unsupported(Reason.LAYOUT, f"integrals {type(vvvv).__name__} are not in memory, or not of pairs")
    _check(mycc, out)
    return _ladder.prepare(vvvv, t2)


def prepare_fitted(mycc: Any, mol: Any, vvL: Any, VVL: Any, t2: Any, out: Any = None, verbose: Any = None) -> Problem:
    if vvL is not VVL or np.ndim(vvL) != 2 or not isinstance(t2, np.ndarray):
        raise Unsupported(Reason.LAYOUT, "integrals of two sets of orbitals, or not of pairs")
    _check(mycc, out)
    free = 1e6 * (mycc.max_memory - lib.current_memory()[0])
    if len(vvL) ** 2 * REAL.itemsize > free:  # all (ac|bd), while the device gets them
        raise Unsupported(Reason.PARAM, "integrals of four virtual orbitals exceed max_memory")
    if isinstance(vvL, np.ndarray):
        return _ladder.prepare(vvL, t2, True)
    if vvL.dtype != REAL:
        raise Unsupported(Reason.DTYPE, f"fitted integrals of {vvL.dtype}")
    return _ladder.prepare(_buffer(mycc, vvL), t2, True, vvL.read_direct)


def _check(mycc: Any, out: Any) -> None:
    if np.ndim(mycc.nocc):
        raise Unsupported(Reason.PARAM, "orbitals that depend on the spin: (ac|bd) is not (bd|ac)")
    if out is not None:
        raise Unsupported(Reason.PARAM, "a call with memory for its result")


def _buffer(mycc: Any, stored: Any) -> np.ndarray:
    """Memory for the integrals of a file: the same in each call, so that a device-resident copy is found again."""
    kept = vars(mycc).get("_trnpy_fitted")
    if kept is None or kept[0] is not stored:
        kept = mycc._trnpy_fitted = stored, np.empty(stored.shape)
    buffer: np.ndarray = kept[1]
    return buffer


def _covers(prepare: Callable[..., Problem]) -> Callable[[tuple[Any, ...], dict[str, Any]], bool]:
    """Whether the row computes a call: ``prepare`` succeeds, and the integrals fit in the device's memory.

    In all other calls PySCF's products of blocks are accelerated one by one, and send integrals in each call.
    """

    def covers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        policy = current_policy()
        engine = current_engine(policy)
        try:
            work = work_of(prepare(*args, **kwargs))
            if work is not None:
                work.tally((engine and engine.hardware) or hardware_of(policy.machine), policy)
        except (Unsupported, Refused, TypeError):
            return False
        return True

    return covers


def rows() -> dict[str, Op]:
    """The rows, by the dotted name of each function."""
    found = {}
    for module, prepare in ((ccsd, prepare_ladder), (dfccsd, prepare_fitted)):
        name = f"{module.__name__}._contract_vvvv_t2"
        found[name] = Op(name, module._contract_vvvv_t2, prepare, kind=None, covers=_covers(prepare))
    return found
