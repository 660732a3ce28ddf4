"""Generators and errors of sparse products and solvers, and of the inverse square root."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse

import trnpy.sparse
from parity.cases import FLOATS
from parity.measures import forward, holds, lengths, members, over, size, t, wide
from parity.row import Row
from parity.system_rows import make_expm, of_expm, of_function

FORMATS = ("csr", "csc", "bsr", "coo", "dia")


def sparse(case, m, n, which=0):
    """A matrix of scattered elements or dense blocks, of a class of trnpy's."""
    case = case.changed(batch=())
    block = case.of(1, 1, 4)
    pattern = case.rng.uniform(size=(-(-m // block), -(-n // block))) < case.of(0.02, 0.2, 0.7)
    mask = np.kron(pattern, np.ones((block, block), bool))[:m, :n]
    a = case.finish(np.where(mask, case.general(m, n, which), 0), which)
    name = case.of(*FORMATS)
    blocks = {"blocksize": (4, 4)} if name == "bsr" and m % 4 == n % 4 == 0 and min(m, n) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.sparse.SparseEfficiencyWarning)  # of many diagonals
        return getattr(trnpy.sparse, case.of(f"{name}_array", f"{name}_matrix"))(np.ascontiguousarray(a), **blocks)


def make_matmul(case):
    case = case.changed(batch=())
    m, k, n = case.sizes
    a = sparse(case, m, k)
    kind = case.of("dense", "dense", "vector", "sparse")
    if kind == "sparse":
        return (a, sparse(case, k, n, 1)), {}
    b = case.finish(case.normal(k, n if kind == "dense" else 1, which=1), 1)
    return (a, b if kind == "dense" else b[:, 0]), {}


def make_multiply(case):
    case = case.changed(batch=())
    m, n = case.sizes[:2]
    a = sparse(case, m, n)
    other = case.of(lambda: sparse(case, m, n, 1), lambda: case.finish(case.normal(m, n, which=1), 1), lambda: 2.5)()
    return (a, other), {}


def dense(a):
    return a.toarray() if scipy.sparse.issparse(a) else np.asarray(a)


def of_product(call, result, theirs):
    a, b = map(dense, call.args)
    x, times = dense(result), np.multiply if call.row.endswith("multiply") else np.matmul
    found = {}
    if scipy.sparse.issparse(theirs) and theirs.format in ("csr", "csc"):
        found["pattern"] = holds(np.array_equal(result.indptr, theirs.indptr))
    if x.dtype.kind in "iub":
        return found | {"exact": holds(np.array_equal(x, dense(theirs)))}
    expected, scale = times(wide(a), wide(b)), times(np.abs(wide(a)), np.abs(wide(b)))
    return found | {"forward": over(wide(x) - expected, scale, x.dtype, max(call.case.sizes))}


def laplacian(case, n, shift=0.5):
    """A definite sparse matrix whose condition is a few hundred, of random symmetric pattern."""
    a = scipy.sparse.random_array((n, n), density=min(6 / n, 1.0), rng=case.rng)
    a = a + a.T
    d = np.asarray(abs(a).sum(axis=1)).ravel() + shift
    return trnpy.sparse.csr_array((a + scipy.sparse.diags_array(d)) * case.scale())


def make_solver(unsymmetric):
    def made(case):
        n = max(case.sizes[0], 1)
        a = laplacian(case, n)
        if unsymmetric:
            a = trnpy.sparse.csr_array(a + scipy.sparse.diags_array(a.diagonal()[1:] / 3, offsets=1, shape=(n, n)))
        b = case.rng.standard_normal(n) * case.scale(1)
        options = {"rtol": case.of(1e-5, 1e-10)} | case.of({}, {"x0": np.ones(n)})
        return (a, b), options

    return made


def of_solver(call, result, theirs):
    """What the residual is above its target, in eps of |A| (|x| + |x0|) + |b|, where the solver says it converged."""
    (a, b), (x, info) = call.args, result
    if not np.linalg.norm(b):  # SciPy returns b where its norm is zero, be it by underflow
        return {"as SciPy's": holds(np.array_equal(x, theirs[0]))}
    a = a.toarray()
    residual, target = lengths(wide(a) @ wide(x) - wide(b)), call.options["rtol"] * lengths(b)
    left = np.maximum(residual - 1.01 * target, 0)
    # Whether a solver converges to a target below the rounding of its first residual is up to rounding.
    first = size(a)[0] * lengths(call.options.get("x0", 0.0 * b))
    found = {"info": holds(info == theirs[1] or theirs[1] or target < np.finfo(float).eps * first)}
    if info:
        return found
    return found | {"residual": over(left, size(a)[0] * lengths(x) + first + lengths(b), x.dtype)}


def make_eigsh(case):
    # ARPACK takes Ritz values below eps^(2/3) for converged: they differ from call to call.
    if case.scale() < np.finfo(case.dtype).eps ** (2 / 3):
        case = case.changed(scales=(0, 0))
    n = max(case.sizes[0], 20)
    a = laplacian(case, n)
    d = scipy.sparse.diags_array(np.linspace(1, 30, n) ** 2 * case.scale())
    a = trnpy.sparse.csr_array((a + d).astype(case.dtype))
    options = {"k": case.of(1, 3), "which": case.of("LM", "LA", "SA")}
    options["return_eigenvectors"] = case.of(True, False)
    return (a,), options | case.of({}, {"v0": np.ones(n, case.dtype)})


def make_lobpcg(case):
    n, k = max(case.sizes[0], 20), case.of(1, 3)
    d = np.linspace(1, 30, n) ** 2
    a = laplacian(case, n) / case.scale() + scipy.sparse.diags_array(d)
    x = np.linalg.qr(case.rng.standard_normal((n, k)))[0]
    options = {"largest": case.of(True, False), "maxiter": 300, "tol": 1e-6}
    b = scipy.sparse.diags_array(np.linspace(1, 2, n))
    return (trnpy.sparse.csr_array(a), x), options | case.of({}, {"B": b}, {"B": lambda y: b @ y})


def of_pairs(call, result, theirs):
    """Residuals |A x - w x| over the norm, orthonormal vectors, and the reference's values; lobpcg to its tolerance."""
    parts, others, a = members(result), members(theirs), wide(call.args[0].toarray())
    w, dtype, norm = parts[0], parts[0].dtype, size(a)[0, 0]
    tolerance, b = call.options.get("tol", 0.0), call.options.get("B", np.eye(len(a)))
    b = wide(b(np.eye(len(a))) if callable(b) else b @ np.eye(len(a)))
    if tolerance and lengths(a @ wide(others[1]) - b @ wide(others[1]) * wide(others[0]), -2).max() > tolerance:
        return {}  # SciPy does not converge, and says so
    values = wide(np.sort(w)) - wide(np.sort(others[0]))
    slack = 2 * tolerance**2 * float(norm) if tolerance else 0.0
    found = {"values": over(np.maximum(np.abs(values) - slack, 0), norm, dtype)}
    if len(parts) == 1:
        return found
    x = wide(parts[1])
    left = lengths(a @ x - b @ x * wide(w), -2)
    residual = over(np.maximum(left - 2 * tolerance * x.shape[-1], 0), norm, dtype)
    return found | {"residual": residual, "orthonormal": over(t(x) @ b @ x - np.eye(x.shape[-1]), 1.0, dtype)}


def make_expm_multiply(case):
    case = case.changed(batch=())
    n = max(min(case.sizes[0], 65), 1)
    a = case.general(n, n)
    a = a / (np.abs(a).sum(axis=-1).max(initial=0) or 1) * case.of(1e-3, 0.5, 3.0, 20.0)
    b = case.normal(n, max(case.sizes[2], 1), which=1)
    return (case.finish(a, scaled=False), case.finish(b, 1, scaled=False)), {}


def make_dense_expm(case):
    return make_expm(case.changed(batch=()))


def make_inv_sqrtm(case):
    case = case.changed(hardest=1e7, batch=())
    return (case.finish(case.definite(max(min(case.sizes[0], 129), 1)), scaled=False),), {}


ROWS = {
    "scipy.sparse.matmul": Row(
        make_matmul, of_product, dtypes=(*FLOATS, "f8", "i8", "b1"), engines=("host", "forced", "simulator")
    ),
    "scipy.sparse.multiply": Row(make_multiply, of_product, dtypes=(*FLOATS, "i8")),
    "scipy.sparse.linalg.cg": Row(make_solver(False), of_solver, dtypes=("f8",), most=20.0, warns=False),
    "scipy.sparse.linalg.gmres": Row(make_solver(True), of_solver, dtypes=("f8",), most=20.0, warns=False),
    "scipy.sparse.linalg.eigsh": Row(make_eigsh, of_pairs, dtypes=("f4", "f8"), most=50.0),
    "scipy.sparse.linalg.lobpcg": Row(make_lobpcg, of_pairs, dtypes=("f8",), most=50.0, warns=False),
    "scipy.sparse.linalg.expm": Row(make_dense_expm, of_expm),
    "scipy.sparse.linalg.expm_multiply": Row(make_expm_multiply, forward(slice(None)), dtypes=("f8", "c16")),
    "trnpy.linalg.inv_sqrtm": Row(make_inv_sqrtm, of_function, dtypes=FLOATS),
}
