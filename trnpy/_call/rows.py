"""The table of accelerated functions, from which patches, namespaces, docs and tests read their names.

For each module of NumPy or SciPy it lists the modules of trnpy whose ``OPS`` hold the rows, with the functions' names.
Such a module is imported when one of its rows is needed. Importing one takes 10 ms, all of them 45, and SciPy 300.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnpy._call.decisions import Op

TABLE: Mapping[str, Mapping[str, str]] = {
    "numpy": {"trnpy._einsum.rows": "matmul dot inner tensordot einsum kron"},
    "numpy.linalg": {
        "trnpy.linalg._eigh": "eigh eigvalsh",
        "trnpy.linalg._cholesky": "cholesky",
        "trnpy.linalg._det": "det slogdet",
        "trnpy.linalg._solve": "solve",
        "trnpy.linalg._inverse": "inv",
        "trnpy.linalg._qr": "qr",
        "trnpy.linalg._lstsq": "lstsq",
        "trnpy.linalg._svd_rows": "svd svdvals",
        "trnpy.linalg._norms": "cond matrix_rank norm",
        "trnpy.linalg._pinv": "pinv",
        "trnpy.linalg._matrix_power": "matrix_power",
        "trnpy.linalg._multi_dot": "multi_dot",
    },
    "scipy.linalg": {
        "trnpy.linalg._eigh": "eigh eigvalsh",
        "trnpy.linalg._eig": "eig eigvals",
        "trnpy.linalg._cholesky": "cholesky cho_factor cho_solve",
        "trnpy.linalg._lu": "lu lu_factor lu_solve",
        "trnpy.linalg._det": "det",
        "trnpy.linalg._solve": "solve",
        "trnpy.linalg._triangular": "solve_triangular",
        "trnpy.linalg._inverse": "inv",
        "trnpy.linalg._qr": "qr",
        "trnpy.linalg._lstsq": "lstsq",
        "trnpy.linalg._svd_rows": "svd svdvals",
        "trnpy.linalg._norms": "norm",
        "trnpy.linalg._pinv": "pinv pinvh",
        "trnpy.linalg._polar": "polar",
        "trnpy.linalg._orth": "orth null_space",
        "trnpy.linalg._expm": "expm",
        "trnpy.linalg._matrix_functions": "sqrtm logm",
        "trnpy.linalg._matrix_power": "fractional_matrix_power",
        "trnpy.linalg._khatri_rao": "khatri_rao",
    },
    "scipy.sparse": {"trnpy.sparse._matmul": "matmul"},
    "scipy.sparse.linalg": {
        "trnpy.sparse.linalg._cg_gmres": "cg gmres",
        "trnpy.sparse.linalg._eigsh_lobpcg": "eigsh lobpcg",
        "trnpy.sparse.linalg._expm": "expm",
        "trnpy.sparse.linalg._expm_multiply": "expm_multiply",
    },
}


def names(namespace: str) -> list[str]:
    """The names of the accelerated functions of a module such as "scipy.linalg"."""
    return [name for listed in TABLE[namespace].values() for name in listed.split()]


@functools.cache
def row(name: str) -> Op:
    """The row of the function with the dotted ``name``; KeyError or StopIteration if there is none."""
    namespace, _, short = name.rpartition(".")
    module = next(module for module, listed in TABLE[namespace].items() if short in listed.split())
    found: Op = next(op for op in importlib.import_module(module).OPS if op.name == name)
    return found


def rows(namespace: str) -> tuple[Op, ...]:
    """The rows of all accelerated functions of a module."""
    return tuple(row(f"{namespace}.{name}") for name in names(namespace))
