"""Types of trnpy.sparse.linalg: written by tests/typing/make_stubs.py."""

from scipy.sparse.linalg import (
    ArpackError as ArpackError, ArpackNoConvergence as ArpackNoConvergence, LaplacianNd as LaplacianNd,
    LinearOperator as LinearOperator, MatrixRankWarning as MatrixRankWarning, SuperLU as SuperLU,
    aslinearoperator as aslinearoperator, bicg as bicg, bicgstab as bicgstab, cg as cg, cgs as cgs, eigs as eigs,
    eigsh as eigsh, expm as expm, expm_multiply as expm_multiply, factorized as factorized,
    funm_multiply_krylov as funm_multiply_krylov, gcrotmk as gcrotmk, gmres as gmres, inv as inv,
    is_sptriangular as is_sptriangular, lgmres as lgmres, lobpcg as lobpcg, lsmr as lsmr, lsqr as lsqr,
    matrix_power as matrix_power, minres as minres, norm as norm, onenormest as onenormest, qmr as qmr,
    spbandwidth as spbandwidth, spilu as spilu, splu as splu, spsolve as spsolve,
    spsolve_triangular as spsolve_triangular, svds as svds, test as test, tfqmr as tfqmr, use_solver as use_solver
)
