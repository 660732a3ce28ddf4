"""precision="mixed": float32 J and K in the first cycles of a density-fitted SCF, matched precision in later ones."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from trnpy._settings.policy import current_policy, policy

# Root mean square of the orbital gradient, in Hartree, down to which cycles are in float32. float32 errors of J and K
# change the gradient by about 1e-6: a smaller limit would gain few cycles, and near that value no cycle would reach it.
ROUGH = 1e-3
_early: ContextVar[bool] = ContextVar("trnpy_early_cycle", default=False)


def early_precision() -> contextlib.AbstractContextManager[Any]:
    """The policy of J and K here: float32 in an early cycle."""
    return policy(precision="fp32") if _early.get() else contextlib.nullcontext()


@contextlib.contextmanager
def mixed(mf: Any) -> Iterator[None]:
    """A block that converges ``mf``; under precision="mixed" its early cycles use float32.

    PySCF calls ``mf.check_convergence`` after each cycle; no early cycle counts as converged. The first matched cycle
    restores PySCF's own criterion. At least half of ``max_cycle`` are matched.
    """
    # With ``direct_scf`` later cycles add to the J and K of early ones; if there is one cycle only, it must be matched.
    if current_policy().precision != "mixed" or _early.get() or mf.direct_scf or mf.max_cycle < 2:
        yield
        return

    def check(envs: dict[str, Any]) -> bool:
        if envs["norm_gorb"] <= ROUGH or envs["cycle"] + 1 >= mf.max_cycle // 2:
            end()
        return False

    own = {name: value for name, value in vars(mf).items() if name == "check_convergence"}  # else the class defines it

    def end() -> None:
        _early.set(False)
        vars(mf).pop("check_convergence", None)
        vars(mf).update(own)

    token = _early.set(True)
    mf.check_convergence = check
    try:
        yield
    finally:
        if _early.get():
            end()
        _early.reset(token)


def by_cycles(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """PySCF's SCF loop in such a block."""

    @functools.wraps(kernel)
    def call(mf: Any, *args: Any, **options: Any) -> Any:
        with mixed(mf):
            return kernel(mf, *args, **options)

    return call
