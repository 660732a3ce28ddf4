"""Linear algebra of sharded arrays: tall QR and SVD, least squares, Cholesky, linear systems, eigenvalues.

All ranks call a function together. The computations on one rank are calls of ``trnpy.linalg``, with its checks.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from trnpy._einsum.rows import matmul as local_matmul
from trnpy.dist._panel_factors import definite_factor, definite_solution, general_solution, shared
from trnpy.dist._sharded_products import matmul
from trnpy.dist._scalapack import eigenvectors
from trnpy.dist._sharded import Sharded, gather
from trnpy.dist._spectral import NotSplit, adjoint, blocks, hermitian, refined, scaled
from trnpy.linalg._namespace import NAMES

__all__ = ["cholesky", "eigh", "lstsq", "qr", "solve", "svd"]

MATRICES = 4  # matrices that an eigenproblem needs on a rank: the matrix, the vectors and two of workspace (LAPACK)
ORTHOGONAL = 8.0  # times sqrt(n) eps: largest accepted |Q^H Q - I| of a factor; 1 to 2 is usual
local_qr, local_svd, local_eigh, local_cholesky, solve_triangular = (
    NAMES[name] for name in ("qr", "svd", "eigh", "cholesky", "solve_triangular")
)


def _matrix(a: Any, name: str, square: bool = False) -> Sharded:
    if not isinstance(a, Sharded) or a.ndim != 2:
        raise TypeError(f"{name}: expected a Sharded matrix, as trnpy.dist.scatter makes them")
    if square and a.shape[0] != a.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, not {a.shape}")
    dtype = np.result_type(a.dtype, np.float32)
    dtype = dtype if dtype.char in "fdFD" else np.dtype(np.float64)
    same = a.dtype == dtype
    return a if same else Sharded(a.local.astype(dtype), a.axis, a.shape, a.comm, a.edges)


def qr(a: Sharded) -> tuple[Sharded, np.ndarray]:
    """The reduced QR factors of a matrix of more rows than columns, cut along its rows.

    CholeskyQR2 computes them and checks their orthogonality. If the check fails, as it does for condition numbers above
    1e7 in float64, TSQR factors each rank's rows and then these factors.

    Parameters
    ----------
    a : (m, n) Sharded
        m >= n. If it is not cut along axis 0, it is redistributed first.

    Returns
    -------
    q : (m, n) Sharded
        Orthonormal columns, cut along axis 0.
    r : (n, n) ndarray
        Upper triangular with a real, nonnegative diagonal, the same on every rank.

    Raises
    ------
    ValueError
        If there are fewer rows than columns.
    TypeError
        If `a` is not a Sharded matrix.
    MismatchedCalls
        If the ranks do not call it together.

    References
    ----------
    Y. Yamamoto, Y. Nakatsukasa, Y. Yanagisawa and T. Fukaya, "Roundoff error analysis of the CholeskyQR2 algorithm",
    Electron. Trans. Numer. Anal. 44, 306-326 (2015). J. Demmel, L. Grigori, M. Hoemmen and J. Langou,
    "Communication-optimal parallel and sequential QR and LU factorizations", SIAM J. Sci. Comput. 34, A206-A239 (2012).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> q, r = dist.linalg.qr(dist.scatter(np.arange(8.0).reshape(4, 2) ** 2))
    >>> np.allclose(dist.gather(q) @ r, np.arange(8.0).reshape(4, 2) ** 2, rtol=1e-12)
    True
    """
    a = _matrix(a, "qr")
    if a.shape[0] < a.shape[1]:
        raise ValueError(f"qr: expected at least as many rows as columns, not {a.shape}")
    rows = a.along(0)
    found = _by_gram(rows)
    q, r = _by_rows(rows) if found is None else found
    return Sharded(q, 0, a.shape, a.comm, rows.edges), r


def _gram(x: np.ndarray, a: Sharded) -> np.ndarray:
    return a.comm.allreduce(local_matmul(x.conj().T, x))


def _by_gram(a: Sharded) -> tuple[np.ndarray, np.ndarray] | None:
    """This rank's rows of Q, and R; None if two steps do not give orthonormal columns."""
    n, eps = a.shape[1], np.finfo(a.dtype).eps
    q, r = a.local, np.eye(n, dtype=a.dtype)
    with np.errstate(all="ignore"):
        for _ in range(2):
            gram = _gram(q, a)
            if not np.isfinite(gram).all():
                return None
            try:
                step = local_cholesky(gram, lower=False)
            except np.linalg.LinAlgError:  # on all ranks: they have the same matrix
                return None
            q = solve_triangular(step, q.T, trans="T").T if len(q) else q
            r = local_matmul(step, r)
        error = np.abs(_gram(q, a) - np.eye(n)).max(initial=0.0)
    return (q, r) if error <= ORTHOGONAL * np.sqrt(n) * eps else None


def _by_rows(a: Sharded) -> tuple[np.ndarray, np.ndarray]:
    """This rank's rows of Q, and R, from the factors of each rank's rows."""
    n = a.shape[1]
    if len(a.local):
        first, top = local_qr(a.local, mode="economic")
    else:
        first, top = np.empty((0, 0), a.dtype), np.empty((0, n), a.dtype)
    counts = np.cumsum([0, *a.comm.allgather(len(top)).tolist()])
    second, r = local_qr(a.comm.allgather(top), mode="economic")
    signs = np.where(r.diagonal() == 0, 1, r.diagonal() / np.where(r.diagonal() == 0, 1, np.abs(r.diagonal())))
    q = local_matmul(first, second[counts[a.comm.rank] : counts[a.comm.rank + 1]])
    return q * signs, signs.conj()[:, np.newaxis] * r


def svd(a: Sharded) -> tuple[Sharded, np.ndarray, np.ndarray]:
    """The reduced singular value decomposition of a matrix of more rows than columns, cut along its rows.

    Parameters
    ----------
    a : (m, n) Sharded
        m >= n.

    Returns
    -------
    u : (m, n) Sharded
        Cut along axis 0.
    s : (n,) ndarray
        Singular values, the largest first, on every rank.
    vh : (n, n) ndarray
        On every rank.

    Raises
    ------
    ValueError, TypeError, MismatchedCalls
        As `qr`.

    References
    ----------
    As `qr`; `trnpy.linalg.svd` decomposes its factor R.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.linalg.svd(dist.scatter(np.eye(5)[:, :2]))[1]
    array([1., 1.])
    """
    q, r = qr(a)
    u, s, vh = local_svd(r)
    return Sharded(local_matmul(q.local, u), 0, q.shape, q.comm, q.edges), s, vh


def lstsq(a: Sharded, b: Any, cond: float | None = None) -> tuple[np.ndarray, int, np.ndarray]:
    """The minimum-norm solution of a least-squares problem with more rows than columns.

    Parameters
    ----------
    a : (m, n) Sharded
        m >= n.
    b : (m,) or (m, k) Sharded or array_like
        Right-hand sides.
    cond : float, optional
        Singular values below ``cond`` times the largest are treated as zero; by default the eps of the dtype.

    Returns
    -------
    x : (n,) or (n, k) ndarray
        On every rank.
    rank : int
        The effective rank of `a`.
    s : (n,) ndarray
        Its singular values.

    Raises
    ------
    ValueError, TypeError, MismatchedCalls
        As `qr`.

    References
    ----------
    As `svd`.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.linalg.lstsq(dist.scatter(np.eye(4)[:, :2]), np.arange(4.0))[0]
    array([0., 1.])
    """
    u, s, vh = svd(a)
    cond = float(np.finfo(u.dtype).eps) if cond is None else cond
    rank = int((s > cond * s[:1]).sum())
    projected = gather(matmul(Sharded(u.local.conj().T, 1, u.shape[::-1], u.comm, u.edges), b, axis=None))
    inverse = np.concatenate([1 / s[:rank], np.zeros(len(s) - rank, s.dtype)])
    scaled = inverse[:, np.newaxis] * projected if projected.ndim == 2 else inverse * projected
    return local_matmul(vh.conj().T, scaled), rank, s


def cholesky(a: Sharded) -> Sharded:
    """The lower Cholesky factor of a Hermitian positive-definite matrix, cut like the matrix.

    Panels of 128 columns are distributed cyclically; the owner factors each panel and sends it to all ranks.

    Parameters
    ----------
    a : (n, n) Sharded
        Only the lower triangle is read.

    Returns
    -------
    (n, n) Sharded
        Zero above the diagonal.

    Raises
    ------
    numpy.linalg.LinAlgError
        On every rank, if the matrix is not positive definite.
    ValueError, TypeError, MismatchedCalls
        As `qr`.

    References
    ----------
    J. Choi et al., "Design and implementation of the ScaLAPACK LU, QR, and Cholesky factorization routines",
    Sci. Program. 5, 173-184 (1996).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.gather(dist.linalg.cholesky(dist.scatter(4 * np.eye(2))))
    array([[2., 0.],
           [0., 2.]])
    """
    return definite_factor(_matrix(a, "cholesky", square=True)).sharded()


def solve(a: Sharded, b: Any, assume_a: str = "gen") -> np.ndarray:
    """The solution of a linear system, by LU with partial pivoting or by Cholesky factorization.

    Parameters
    ----------
    a : (n, n) Sharded
        Cut along either axis.
    b : (n,) or (n, k) Sharded or array_like
        Right-hand sides: every rank solves for all of them.
    assume_a : {"gen", "pos"}
        ``"pos"``: Hermitian and positive definite; the lower triangle is read.

    Returns
    -------
    (n,) or (n, k) ndarray
        On every rank.

    Raises
    ------
    numpy.linalg.LinAlgError
        On every rank, if the matrix is singular or not positive definite.
    ValueError, TypeError, MismatchedCalls
        As `qr`; ValueError also for another `assume_a`.

    References
    ----------
    As `cholesky`.

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.linalg.solve(dist.scatter(2 * np.eye(3)), np.ones(3))
    array([0.5, 0.5, 0.5])
    """
    if assume_a not in ("gen", "pos"):
        raise ValueError(f"solve: assume_a={assume_a!r}, expected 'gen' or 'pos'")
    a = _matrix(a, "solve", square=True)
    sides = gather(b)
    if sides.ndim not in (1, 2) or len(sides) != a.shape[0]:
        raise ValueError(f"solve: b has shape {sides.shape} for a matrix of {a.shape}")
    dtype = np.result_type(a.dtype, sides.dtype)
    a = a if a.dtype == dtype else Sharded(a.local.astype(dtype), a.axis, a.shape, a.comm, a.edges)
    method = definite_solution if assume_a == "pos" else general_solution
    return method(a, np.array(sides, dtype).reshape(a.shape[0], -1)).reshape(sides.shape)


def eigh(a: Sharded, b: Any = None, root: int = 0, memory: float | None = None) -> tuple[np.ndarray, Sharded]:
    """Eigenvalues and eigenvectors of a Hermitian matrix or pencil.

    If four matrices fit the memory of one rank, that rank computes, which is the fastest, and the others wait.
    Otherwise sharded products divide the spectrum, with sixty times the operations of a product, until each part fits
    one rank; the parts are solved at the same time. If the program has loaded ScaLAPACK into its processes, ScaLAPACK
    computes the vectors instead (docs/scaling.md#scalapack). Residuals and orthogonality are checked.

    Parameters
    ----------
    a : (n, n) Sharded
        If one rank computes, only the lower triangle is read; otherwise the matrix must be Hermitian.
    b : (n, n) Sharded, optional
        Hermitian and positive definite: the eigenproblem is ``a x = w b x``.
    root : int
        The rank that computes if one rank does; it then holds the whole matrices.
    memory : float, optional
        Bytes that a rank may use for matrices. By default an eighth of this host's memory divided by the number of
        ranks; the smallest value of all ranks counts.

    Returns
    -------
    w : (n,) ndarray
        Eigenvalues in ascending order, on every rank.
    v : (n, n) Sharded
        Eigenvectors, cut along axis 1.

    Raises
    ------
    numpy.linalg.LinAlgError
        On every rank, as `trnpy.linalg.eigh`; also if the spectrum cannot be divided to the working accuracy, for
        example if most eigenvalues are equal.
    ValueError
        On every rank, if the matrix has infs or NaNs and several ranks compute; also as `qr`.
    TypeError, MismatchedCalls
        As `qr`.

    References
    ----------
    Y. Nakatsukasa and N. J. Higham, "Stable and efficient spectral divide and conquer algorithms for the symmetric
    eigenvalue decomposition and the SVD", SIAM J. Sci. Comput. 35, A1325-A1349 (2013).

    Examples
    --------
    >>> import numpy as np
    >>> from trnpy import dist
    >>> dist.linalg.eigh(dist.scatter(np.diag([3.0, 1.0])))[0]
    array([1., 3.])
    """
    a = _matrix(a, "eigh", square=True)
    b = None if b is None else _matrix(b, "eigh", square=True)
    most = int(math.sqrt((a.comm.gathers if memory is None else memory) / (MATRICES * a.dtype.itemsize)))
    if a.comm.size == 1 or a.shape[0] <= most:
        return _on_one(a, b, root)
    try:
        if b is None:
            return _divided(a, most)
        values, vectors = _divided(b, most)
        if values[0] <= 0:
            raise np.linalg.LinAlgError("b is not positive definite")
        rows = vectors.along(0)
        s = Sharded(rows.local / np.sqrt(values).astype(values.dtype), 0, b.shape, b.comm, rows.edges)
        w, y = _divided(hermitian(matmul(adjoint(s), matmul(a, s, axis=0), axis=0)), most)
        return w, matmul(s, y, axis=1)
    except NotSplit as why:
        raise np.linalg.LinAlgError(f"eigh of {a.shape} in pieces: {why}") from None


def _divided(a: Sharded, most: int) -> tuple[np.ndarray, Sharded]:
    """Eigenpairs by blocks of at most ``most`` rows, each on a rank of its own."""
    comm = a.comm
    largest = float(comm.allreduce(np.abs(a.local).max(initial=0.0), "max"))
    if not math.isfinite(largest):
        raise ValueError("array must not contain infs or NaNs")
    # Scaling by a power of two is exact; squares then neither overflow nor underflow.
    exponent = max(math.frexp(largest)[1], int(np.finfo(a.dtype).minexp))
    rows = scaled(2.0**-exponent, a.along(0))
    by_scalapack = eigenvectors(rows)
    if by_scalapack is not None:
        with contextlib.suppress(NotSplit):  # if ScaLAPACK's result is wrong, compute it below
            values, checked = refined(rows, by_scalapack, 0)
            return np.ldexp(values, exponent), checked.along(1)
    parts = blocks(rows, max(most, 1), lambda q: qr(q)[0])
    placed = [None if part.flat else _at(part.matrix, k % comm.size) for k, part in enumerate(parts)]
    solved = [local_eigh(m)[1] if m is not None and len(m) == m.shape[1] else None for m in placed]
    vectors = []
    for k, part in enumerate(parts):
        root, m, v = k % comm.size, part.matrix.shape[0], solved[k]
        edges, nothing = [0] * (root + 1) + [m] * (comm.size - root), np.empty((m, 0), a.dtype)
        whole = part.basis
        if not part.flat:
            inner = Sharded(nothing if v is None else v, 1, (m, m), comm, edges).along(0)
            whole = inner if whole is None else matmul(whole, inner, axis=0)
        elif whole is None:
            whole = Sharded(np.eye(len(rows.local), m, rows.range[0], a.dtype), 0, (m, m), comm, rows.edges)
        vectors.append(whole.along(0, rows.edges).local)
    w, v = refined(rows, Sharded(np.concatenate(vectors, axis=1), 0, a.shape, comm, rows.edges))
    return np.ldexp(w, exponent), v.along(1)


def _on_one(a: Sharded, b: Sharded | None, root: int) -> tuple[np.ndarray, Sharded]:
    """Eigenpairs computed on rank ``root``."""
    comm, n = a.comm, a.shape[0]
    matrices = [_at(x, root) for x in ([a] if b is None else [a, b])]
    text, w, v = "", np.empty(0, a.dtype.char.lower()), np.empty((n, 0), a.dtype)
    if comm.rank == root:
        try:
            w, v = local_eigh(*matrices)
        except np.linalg.LinAlgError as error:
            text = str(error)
    shared(comm, root, text)
    edges = [0] * (root + 1) + [n] * (comm.size - root)
    return comm.bcast(w, root), Sharded(v, 1, (n, n), comm, edges).along(1)


def _at(a: Sharded, root: int) -> np.ndarray:
    """The whole matrix on rank ``root``, nothing on the others."""
    edges = [0] * (root + 1) + [a.shape[a.axis]] * (a.comm.size - root)
    return a.along(a.axis, edges).local
