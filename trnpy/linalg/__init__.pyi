"""Types of trnpy.linalg: written by tests/typing/make_stubs.py."""

from numpy.linalg import (
    cond as cond, cross as cross, diagonal as diagonal, matmul as matmul, matrix_norm as matrix_norm,
    matrix_power as matrix_power, matrix_rank as matrix_rank, matrix_transpose as matrix_transpose,
    multi_dot as multi_dot, outer as outer, slogdet as slogdet, tensordot as tensordot, tensorinv as tensorinv,
    tensorsolve as tensorsolve, trace as trace, vecdot as vecdot, vector_norm as vector_norm
)
from scipy.linalg import (
    LinAlgError as LinAlgError, LinAlgWarning as LinAlgWarning, bandwidth as bandwidth, block_diag as block_diag,
    cdf2rdf as cdf2rdf, cho_factor as cho_factor, cho_solve as cho_solve, cho_solve_banded as cho_solve_banded,
    cholesky as cholesky, cholesky_banded as cholesky_banded, circulant as circulant,
    clarkson_woodruff_transform as clarkson_woodruff_transform, companion as companion,
    convolution_matrix as convolution_matrix, coshm as coshm, cosm as cosm, cossin as cossin, det as det, dft as dft,
    diagsvd as diagsvd, eig as eig, eig_banded as eig_banded, eigh as eigh, eigh_tridiagonal as eigh_tridiagonal,
    eigvals as eigvals, eigvals_banded as eigvals_banded, eigvalsh as eigvalsh,
    eigvalsh_tridiagonal as eigvalsh_tridiagonal, expm as expm, expm_cond as expm_cond, expm_frechet as expm_frechet,
    fiedler as fiedler, fiedler_companion as fiedler_companion, find_best_blas_type as find_best_blas_type,
    fractional_matrix_power as fractional_matrix_power, funm as funm, get_blas_funcs as get_blas_funcs,
    get_lapack_funcs as get_lapack_funcs, hadamard as hadamard, hankel as hankel, helmert as helmert,
    hessenberg as hessenberg, hilbert as hilbert, inv as inv, invhilbert as invhilbert, invpascal as invpascal,
    ishermitian as ishermitian, issymmetric as issymmetric, khatri_rao as khatri_rao, ldl as ldl, leslie as leslie,
    logm as logm, lstsq as lstsq, lu as lu, lu_factor as lu_factor, lu_solve as lu_solve,
    matmul_toeplitz as matmul_toeplitz, matrix_balance as matrix_balance, norm as norm, null_space as null_space,
    ordqz as ordqz, orth as orth, orthogonal_procrustes as orthogonal_procrustes, pascal as pascal, pinv as pinv,
    pinvh as pinvh, polar as polar, qr as qr, qr_delete as qr_delete, qr_insert as qr_insert,
    qr_multiply as qr_multiply, qr_update as qr_update, qz as qz, rq as rq, rsf2csf as rsf2csf, schur as schur,
    signm as signm, sinhm as sinhm, sinm as sinm, solve as solve, solve_banded as solve_banded,
    solve_circulant as solve_circulant, solve_continuous_are as solve_continuous_are,
    solve_continuous_lyapunov as solve_continuous_lyapunov, solve_discrete_are as solve_discrete_are,
    solve_discrete_lyapunov as solve_discrete_lyapunov, solve_lyapunov as solve_lyapunov,
    solve_sylvester as solve_sylvester, solve_toeplitz as solve_toeplitz, solve_triangular as solve_triangular,
    solveh_banded as solveh_banded, sqrtm as sqrtm, subspace_angles as subspace_angles, svd as svd,
    svdvals as svdvals, tanhm as tanhm, tanm as tanm, test as test, toeplitz as toeplitz
)
from trnpy.linalg import blas as blas, interpolative as interpolative, lapack as lapack
from trnpy.linalg._inv_sqrtm import inv_sqrtm as inv_sqrtm
from trnpy.linalg._level3 import gemm as gemm, symm as symm, syrk as syrk, trmm as trmm, trsm as trsm
