"""Generators and errors of linear systems, inverses, least squares and functions of matrices."""

from __future__ import annotations

import numpy as np

from parity.cases import FLOATS
from parity.measures import (
    apart,
    change,
    forward,
    half,
    holds,
    lengths,
    members,
    over,
    size,
    symmetric,
    t,
    wide,
)
from parity.operands import MATRICES, columns, definite, sides, square
from parity.row import Row


def make_solve(case):
    structure = case.of(None, None, "gen", "pos", "sym", "her")
    n = case.sizes[0]
    if structure in ("pos", "sym", "her"):
        lower = case.of(False, True)
        a = definite(case, "upper" if lower else "lower") if structure == "pos" else definite(case)
        return (a, sides(case, n)), {"assume_a": structure, "lower": lower}
    options = {} if structure is None else {"assume_a": structure}
    return (square(case), sides(case, n)), options | case.of({}, {}, {"transposed": True})


def make_numpy_solve(case):
    return (square(case), sides(case, case.sizes[0])), {}


def of_solve(call, x, theirs):
    a, b = call.args
    a = half(a, call.options["lower"]) if call.options.get("assume_a") == "pos" else wide(a)
    a = a.swapaxes(-1, -2) if call.options.get("transposed") else a
    b, x = columns(wide(b), b), columns(x, b)
    scale = size(a) * lengths(wide(x), -2) + lengths(b, -2)
    return {"residual": over(lengths(a @ wide(x) - b, -2), scale, x.dtype, a.shape[-1])}


def make_inv(case):
    if case.dtype.kind in "iub":  # SciPy 1.17.1 writes past its copy of integers that are not in C order, and may die
        case = case.changed(layouts=("C", "C"))
    structure = case.of(None, None, "gen", "pos", "sym")
    if structure in ("pos", "sym"):
        return (definite(case),), {"assume_a": structure, "lower": case.of(False, True)}
    return (square(case),), {} if structure is None else {"assume_a": structure}


def make_numpy_inv(case):
    return (case.of(square, definite)(case),), {}


def of_inv(call, x, theirs):
    a, y = wide(call.args[0]), wide(x)
    eye, scale = np.eye(a.shape[-1]), size(a) * size(y)
    left, right = over(size(y @ a - eye), scale, x.dtype, 1), over(size(a @ y - eye), scale, x.dtype, 1)
    return {"residual": min(left, right)}


def make_lstsq(case):
    m, n = sorted(case.sizes[:2], reverse=True) if case.of(True, True, False) else case.sizes[:2]
    options = case.of({}, {"lapack_driver": "gelsy"}, {"lapack_driver": "gelss"}, {"cond": 1e-3})
    return (case.finish(case.general(m, n)), sides(case, m)), options


def make_numpy_lstsq(case):
    case = case.changed(batch=())
    m, n = case.sizes[:2]
    return (case.finish(case.general(m, n)), sides(case, m)), case.of({}, {"rcond": -1}, {"rcond": 1e-3})


def of_lstsq(call, result, theirs):
    a, b = call.args
    b, x = columns(wide(b), b), columns(result[0], b)
    wa, wx = wide(a), wide(x)
    left, length = b - wa @ wx, size(wa)
    found = {"rank": holds(np.array_equal(result[2], theirs[2]))}
    full = np.array_equal(result[2], np.full(np.shape(result[2]), min(a.shape[-2:])))
    if full:
        scale = length * (lengths(left, -2) + length * lengths(wx, -2))
        rounded = 4 * length**2 * np.sqrt(wa.shape[-1]) * wide(np.finfo(x.dtype).smallest_subnormal)  # of a tiny x
        gradient = np.maximum(lengths(t(wa) @ left, -2) - rounded, 0)
        found["normal equations"] = over(gradient, scale, x.dtype, a.shape[-2])
    if result[3] is not None and theirs[3] is not None:
        # LAPACK's gelss errs by up to 95 eps of the largest value of a subnormal matrix: those of gesdd serve, too.
        values = np.linalg.svd(np.asarray(a, np.result_type(a, float)), compute_uv=False)
        found["singular values"] = min(apart(result[3], theirs[3]), apart(result[3], values))
    return found | forward(slice(0, 2 if full else 1))(call, result, theirs)


def exact_expm(a):
    """e^A of wide matrices (..., n, n), by Taylor's series and squaring."""
    squarings = max(int(np.ceil(np.log2(float(size(a).max(initial=0.25))))) + 2, 0)
    a, term = a / 2**squarings, np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    total = term
    for k in range(1, 26):
        term = term @ a / k
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return total


def of_expm(call, result, theirs):
    expected = exact_expm(wide(call.args[0]))
    error = over(size(wide(result) - expected), size(expected), result.dtype)
    return {"forward": error / (1 + change(call.reference, call.args, {}, members(theirs), call.case.seed))}


def make_expm(case):
    n = min(case.sizes[0], 65)
    a = case.general(n, n)
    a = a / (np.abs(a).sum(axis=-1).max(initial=0) or 1) * case.of(1e-3, 0.5, 3.0, 20.0)
    return (case.finish(a, scaled=False),), {}


def make_function(case):
    case = case.changed(hardest=1e7)
    return (case.finish(case.definite(min(case.sizes[0], 129)), scaled=False),), {}


def eigenpairs(a):
    """Eigenvalues and vectors of a wide Hermitian definite matrix, to its own accuracy (Ogita and Aishima, 2018)."""
    w, x = np.linalg.eigh(a.astype(np.complex128 if a.dtype.kind == "c" else np.float64))
    w, x, eye = w.astype(np.longdouble), x.astype(a.dtype), np.eye(len(a), dtype=bool)
    for _ in range(3):
        r, s = eye - t(x) @ x, t(x) @ a @ x
        w = np.diagonal(s).real / (1 - np.diagonal(r).real)
        gaps = np.where(eye, 1, w - w[:, np.newaxis])
        x = x + x @ np.where(eye, r / 2, (s + w * r) / gaps)
    return w, x


def of_function(call, result, theirs):
    """The distance from f(A) by accurate eigenpairs, beside what data that move by one eps change."""
    f = {
        "sqrtm": np.sqrt, "logm": np.log, "inv_sqrtm": lambda w: 1 / np.sqrt(w),
        "fractional_matrix_power": lambda w: w ** np.longdouble(call.args[-1]),
    }[call.row.rpartition(".")[2]]  # fmt: skip
    a, n = wide(call.args[0]), call.args[0].shape[-1]
    expected = np.zeros(a.shape, a.dtype)
    for at in np.ndindex(a.shape[:-2]) if n else ():
        w, x = eigenpairs(a[at].astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble))
        if w.min() <= 0:
            return {}
        expected[at] = (x * f(w)) @ t(x)
    error = over(size(wide(result) - expected), size(expected), call.args[0].dtype)
    if error <= 4:
        return {"forward": error}
    moved = change(call.reference, call.args, {}, members(theirs), call.case.seed, symmetric, call.args[0].dtype)
    return {"forward": error / (1 + moved)}


def make_power(case):
    args, options = make_function(case)
    return (*args, case.of(0.5, -0.5, 1 / 3, -1.3, 2.5)), options


def make_matrix_power(case):
    n = case.of(0, 1, 2, 3, 7, 10, -1, -2)
    a = case.general(case.sizes[0], case.sizes[0])
    a = a / (np.abs(a).max(initial=0) or 1)
    return (case.finish(a, scaled=False), n), {}


def of_matrix_power(call, x, theirs):
    a, n = call.args
    if x.dtype.kind in "iub":
        return {"exact": holds(np.array_equal(x, theirs))}
    if n < 0:
        return forward()(call, x, theirs)
    exact, scale = np.linalg.matrix_power(wide(a), n), np.linalg.matrix_power(np.abs(wide(a)), n)
    return {"forward": over(wide(x) - exact, scale, x.dtype, a.shape[-1])}


ROWS = {
    "scipy.linalg.solve": Row(make_solve, of_solve, dtypes=MATRICES),
    "numpy.linalg.solve": Row(make_numpy_solve, of_solve, dtypes=MATRICES),
    "scipy.linalg.inv": Row(make_inv, of_inv, dtypes=MATRICES),
    "numpy.linalg.inv": Row(make_numpy_inv, of_inv, dtypes=MATRICES),
    "scipy.linalg.lstsq": Row(make_lstsq, of_lstsq, dtypes=MATRICES),
    "numpy.linalg.lstsq": Row(make_numpy_lstsq, of_lstsq, dtypes=MATRICES),
    "scipy.linalg.expm": Row(make_expm, of_expm, dtypes=FLOATS),
    "scipy.linalg.sqrtm": Row(make_function, of_function, dtypes=FLOATS, times=2.0),
    "scipy.linalg.logm": Row(make_function, of_function, dtypes=FLOATS, times=2.0),
    "scipy.linalg.fractional_matrix_power": Row(make_power, of_function, dtypes=FLOATS, times=2.0),
    "numpy.linalg.matrix_power": Row(make_matrix_power, of_matrix_power, dtypes=MATRICES),
}
