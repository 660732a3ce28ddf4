"""The contraction of PySCF's coupled cluster with integrals of four virtual orbitals, as a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyscf.cc import ccsd

from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Op, Problem, Reason, Unsupported
from trnpy._engine.engines import Refused, current_engine
from trnpy._nki.instances import hardware_of
from trnpy._settings.policy import current_policy
from trnpy.chem import _ladder


def prepare_ladder(mycc: Any, mol: Any, vvvv: Any, t2: Any, out: Any = None, verbose: Any = None) -> Problem:
    if vvvv is None:
        raise Unsupported(Reason.PARAM, "integrals that are computed in each call")
    if not isinstance(vvvv, np.ndarray) or vvvv.ndim != 2 or not isinstance(t2, np.ndarray):
        raise Unsupported(Reason.LAYOUT, f"integrals {type(vvvv).__name__} are not in memory, or not of pairs")
    if np.ndim(mycc.nocc):
        raise Unsupported(Reason.PARAM, "orbitals that depend on the spin: (ac|bd) is not (bd|ac)")
    if out is not None:
        raise Unsupported(Reason.PARAM, "a call that gives the memory of its result")
    return _ladder.prepare(vvvv, t2)


def covers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is for the row: if it is prepared, and its integrals fit the device.

    Of all others PySCF's products of blocks are accelerated one by one, which send integrals in each call.
    """
    policy = current_policy()
    engine = current_engine(policy)
    try:
        work = work_of(prepare_ladder(*args, **kwargs))
        if work is not None:
            work.tally((engine and engine.hardware) or hardware_of(policy.machine), policy)
    except (Unsupported, Refused, TypeError):
        return False
    return True


def rows() -> dict[str, Op]:
    """The row, by the dotted name of its function."""
    name = "pyscf.cc.ccsd._contract_vvvv_t2"
    return {name: Op(name, ccsd._contract_vvvv_t2, prepare_ladder, kind=None, covers=covers)}
