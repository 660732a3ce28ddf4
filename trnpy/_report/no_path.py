"""NumPy and SciPy functions without a device path, and the reasons."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from trnpy._report.sampler import LINEAR_ALGEBRA, public_name

TRANSFORM = "a transform has few operations for each number that it moves"
SCHUR = "Schur forms come from rotations of neighbouring rows, one after another, not from products"
BAND = "the structure of the matrix leaves few operations for each number moved"
FACTORS = "the pattern of sparse factors, and the order of their steps, depend on the values"
ITERATION = "of SciPy's iterations only cg, gmres, eigsh, lobpcg and expm_multiply have one"
OTHER = "no device path has been written"

MODULES = {"numpy.fft": TRANSFORM, "scipy.fft": TRANSFORM, "scipy.fftpack": TRANSFORM}
NAMES = {
    name: why
    for why, names in (
        (
            SCHUR,
            """eig eigvals schur rsf2csf cdf2rdf qz ordqz hessenberg funm signm cosm sinm tanm coshm sinhm tanhm
            solve_sylvester solve_lyapunov solve_continuous_lyapunov solve_discrete_lyapunov solve_continuous_are
            solve_discrete_are""",
        ),
        (
            BAND,
            """eig_banded eigvals_banded eigh_tridiagonal eigvalsh_tridiagonal cholesky_banded cho_solve_banded
            solve_banded solveh_banded solve_toeplitz solve_circulant matmul_toeplitz""",
        ),
        (FACTORS, "spsolve spsolve_triangular splu spilu factorized"),
        (
            OTHER,
            """tensorinv tensorsolve cossin expm_cond expm_frechet ldl orthogonal_procrustes qr_multiply rq
            subspace_angles""",
        ),
        (ITERATION, "bicg bicgstab cgs eigs gcrotmk lgmres lsmr lsqr minres qmr svds tfqmr funm_multiply_krylov"),
    )
    for name in names.split()
}


def why(name: str) -> str:
    """Why the function with this public name has no device path."""
    module, _, function = name.rpartition(".")
    return MODULES.get(module) or NAMES.get(function, OTHER)


def pathless(function: Any) -> str:
    """The public name of a linear algebra function without a device path; "" for any other function."""
    if name := getattr(function, "__trnpy_pathless__", ""):  # a function of trnpy's namespaces
        return str(name)
    module = getattr(function, "__module__", None)
    if not isinstance(module, str) or not module.startswith(LINEAR_ALGEBRA) or isinstance(function, type):
        return ""
    name = public_name(f"{module}.{getattr(function, '__name__', '')}")
    home, _, own = name.rpartition(".")
    if not name or getattr(sys.modules[home], own) is not function:
        return ""
    if home in ("numpy.linalg", "scipy.linalg", "scipy.sparse.linalg"):
        ours = getattr(importlib.import_module(f"trnpy.{home.partition('.')[2]}"), own, None)
        if hasattr(ours, "__trnpy_op__"):
            return ""
    return name


def counterpart(function: Any) -> str:
    """The name in trnpy of a NumPy or SciPy function that is accelerated but not patched; "" for any other function."""
    name = getattr(function, "__name__", "")
    for namespace in ("", ".linalg", ".sparse.linalg"):
        ours = getattr(importlib.import_module(f"trnpy{namespace}"), name, None) if name else None
        homes = [sys.modules.get(f"{library}{namespace}") for library in ("numpy", "scipy")]
        if hasattr(ours, "__trnpy_op__") and any(getattr(home, name, None) is function for home in homes):
            return f"trnpy{namespace}.{name}"
    return ""
