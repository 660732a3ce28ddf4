"""Generators and errors of triangular factors, and of solutions and determinants from them."""

from __future__ import annotations

import math
import warnings

import numpy as np
import scipy.linalg

from parity.cases import FLOATS
from parity.measures import (
    change,
    graded,
    half,
    holds,
    members,
    over,
    t,
    wide,
)
from parity.operands import MATRICES, columns, definite, sides, square
from parity.row import Row


def make_cholesky(case):
    lower = case.of(False, True)
    return (definite(case, case.of("", "upper" if lower else "lower")),), {"lower": lower}


def make_numpy_cholesky(case):
    upper = case.of(False, True)
    return (definite(case, case.of("", "lower" if upper else "upper")),), {"upper": True} if upper else {}


def of_cholesky(call, result, theirs):
    lower = call.options.get("lower", not call.options.get("upper", call.row.startswith("scipy")))
    factor, a = wide(members(result)[0]), half(call.args[0], lower)
    clean = not isinstance(result, (tuple, list))  # the other triangle of cho_factor's array is anything
    l = np.tril(factor) if lower else t(np.triu(factor))
    d = np.sqrt(np.abs(np.diagonal(a, axis1=-2, axis2=-1)))
    other = np.triu(factor, 1) if lower else np.tril(factor, -1)
    return {
        "residual": over(
            l @ t(l) - a, d[..., np.newaxis] * d[..., np.newaxis, :], members(result)[0].dtype, a.shape[-1]
        ),
        "structure": holds(not clean or not other.any()) + holds(np.diagonal(l, axis1=-2, axis2=-1).real > 0),
    }


def make_cho_solve(case):
    lower, a = case.of(True, False), case.definite(case.sizes[0])
    l = np.linalg.cholesky(a) if a.size else a
    c = l if lower else t(l)
    return ((case.finish(c), lower), sides(case, case.sizes[0])), {}


def of_cho_solve(call, x, theirs):
    (c, lower), b = call.args
    c = np.tril(wide(c)) if lower else np.triu(wide(c))
    first, second = (c, t(c)) if lower else (t(c), c)
    b, x = columns(wide(b), b), columns(x, b)
    y = second @ wide(x)
    scale = np.abs(first) @ (np.abs(second) @ np.abs(wide(x))) + np.abs(b)
    return {"residual": over(first @ y - b, scale, x.dtype, len(x))}


def make_triangular(case):
    n, lower, unit_diagonal = case.sizes[0], case.of(False, True), case.of(False, False, True)
    a = case.general(n, n)
    a = a / (np.abs(a).max(initial=0) or 1) / (max(n, 1) ** 0.5)
    a = a + 2 * np.eye(n)  # well-conditioned, or graded
    options = {"lower": lower, "trans": case.of(0, 1, 2, "N", "T", "C"), "unit_diagonal": unit_diagonal}
    return (case.finish(a, scaled=not unit_diagonal), sides(case, n)), options


def of_triangular(call, x, theirs):
    a, b = call.args
    a = np.tril(wide(a)) if call.options["lower"] else np.triu(wide(a))
    if call.options["unit_diagonal"]:
        a = np.where(np.eye(len(a), dtype=bool), 1, a) if a.ndim == 2 else a
    trans = call.options["trans"]
    a = a.swapaxes(-1, -2) if trans in (1, "T") else t(a) if trans in (2, "C") else a
    b, x = columns(wide(b), b), columns(x, b)
    return {"residual": over(a @ wide(x) - b, np.abs(a) @ np.abs(wide(x)) + np.abs(b), x.dtype, a.shape[-1])}


def make_lu(case):
    a = case.finish(case.general(*case.sizes[:2]))
    return (a,), case.of({}, {"permute_l": True}, {"p_indices": True})


def of_lu(call, result, theirs):
    a, l, u = wide(call.args[0]), wide(result[-2]), wide(result[-1])
    if call.options.get("permute_l"):
        p = np.eye(a.shape[-2])
    elif call.options.get("p_indices"):
        p = np.eye(a.shape[-2])[result[0]]
    else:
        p = result[0]
    structure = holds(np.tril(u, -1) == 0) + holds(np.abs(l) <= 1 + 1e-5)
    if not call.options.get("permute_l"):
        structure += holds(np.triu(l, 1) == 0)
        structure += holds(p.sum(axis=-1) == 1) + holds(p.sum(axis=-2) == 1)
    plu = p @ l @ u
    return {
        "residual": over(plu - a, p @ (np.abs(l) @ np.abs(u)), result[-1].dtype, a.shape[-1]),
        "structure": structure,
    }


def unpacked(lu, piv):
    """P, L and U of what LAPACK's getrf leaves."""
    k, lu = min(lu.shape[-2:]), wide(lu)
    m = lu.shape[-2]
    p = np.empty((*piv.shape[:-1], m), int)
    for at in np.ndindex(piv.shape[:-1]):
        order = np.arange(m)
        for i, j in enumerate(piv[at]):
            order[[i, j]] = order[[j, i]]
        p[at] = order
    return p, np.tril(lu, -1)[..., :k] + np.eye(m, k), np.triu(lu)[..., :k, :]


def make_lu_factor(case):
    return (case.finish(case.general(*case.sizes[:2])),), {}


def of_lu_factor(call, result, theirs):
    if result[1].shape[:-1] != call.args[0].shape[:-2]:  # of SciPy 1.15's pivots of numbers in a stack
        return {}
    order, l, u = unpacked(*result)
    a = np.take_along_axis(wide(call.args[0]), order[..., np.newaxis], axis=-2)
    structure = holds(np.abs(l) <= 1 + 1e-5)
    return {"residual": over(l @ u - a, np.abs(l) @ np.abs(u), result[0].dtype, a.shape[-1]), "structure": structure}


def make_lu_solve(case):
    case = case.changed(batch=())
    a = case.finish(case.general(case.sizes[0], case.sizes[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)  # a pivot of a subnormal matrix may underflow
        factors = scipy.linalg.lu_factor(a)
    return (factors, sides(case, case.sizes[0])), {"trans": case.of(0, 1, 2)}


def of_lu_solve(call, x, theirs):
    (lu, piv), b = call.args
    order, l, u = unpacked(lu, piv)
    l = l[np.argsort(order)]
    trans = call.options["trans"]
    first, second = (l, u) if trans == 0 else (u.T, l.T) if trans == 1 else (t(u), t(l))
    b, x = columns(wide(b), b), columns(x, b)
    scale = np.abs(first) @ (np.abs(second) @ np.abs(wide(x))) + np.abs(b)
    return {"residual": over(first @ (second @ wide(x)) - b, scale, x.dtype, len(x))}


def make_det(case):
    return (square(case),), {}


def exact_det(a):
    """Phase and logarithm of |det| of wide matrices (..., n, n), and how far one eps of each entry moves the result."""
    n, phase, log = a.shape[-1], [], []
    for m in a.reshape(math.prod(a.shape[:-2]), n, n):
        m, sign, size_ = m.copy(), 1.0 + 0 * m.sum(), np.longdouble(0)
        for i in range(n):
            j = i + int(np.abs(m[i:, i]).argmax())
            if m[j, i] == 0:
                sign, size_ = 0 * sign, -np.inf
                break
            if j != i:
                m[[i, j]], sign = m[[j, i]], -sign
            sign, size_ = sign * m[i, i] / abs(m[i, i]), size_ + np.log(abs(m[i, i]))
            m[i + 1 :, i:] -= m[i + 1 :, i : i + 1] / m[i, i] * m[i, i:]
        phase.append(sign)
        log.append(size_)
    return np.array(phase), np.array(log)


def of_det(call, result, theirs):
    (a,) = call.args
    dtype = np.dtype(a.dtype if a.dtype.kind in "fc" else float)  # SciPy factors in single precision, too
    phase, log = exact_det(wide(a).astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble))
    if isinstance(result, tuple):
        sign, found = (np.ravel(wide(x)) for x in result)
        both = np.isneginf(log) & np.isneginf(found)
        with np.errstate(all="ignore"):
            difference = np.where(both, 0, np.abs(found - log) + np.abs(sign - phase))
        error = over(difference, 1 + np.abs(np.where(np.isfinite(log), log, 0)), dtype)
        return {
            "forward": error
            / (1 + change(call.reference, call.args, {}, members(theirs), call.case.seed, graded, dtype))
        }
    with np.errstate(all="ignore"):
        expected, found = phase * np.exp(log), np.ravel(wide(result))
        inside = np.abs(expected) < np.finfo(np.asarray(result).dtype).max * 0.999
    error = over(np.where(inside, found - expected, 0), np.abs(expected), dtype)
    if error <= 4:
        return {"forward": error}
    # NumPy takes the exponential of a logarithm, which is as accurate as the logarithm is small.
    rounded = np.abs(log).max(initial=0, where=np.isfinite(log)) if call.row.startswith("numpy") else 0
    moved = change(call.reference, call.args, {}, members(theirs), call.case.seed, graded, dtype)
    return {"forward": error / (1 + float(rounded) + moved)}


ROWS = {
    "scipy.linalg.cholesky": Row(make_cholesky, of_cholesky, dtypes=MATRICES),
    "scipy.linalg.cho_factor": Row(make_cholesky, of_cholesky, dtypes=MATRICES),
    "numpy.linalg.cholesky": Row(make_numpy_cholesky, of_cholesky, dtypes=MATRICES),
    "scipy.linalg.cho_solve": Row(make_cho_solve, of_cho_solve, dtypes=FLOATS),
    "scipy.linalg.solve_triangular": Row(make_triangular, of_triangular, dtypes=FLOATS),
    "scipy.linalg.lu": Row(make_lu, of_lu, dtypes=MATRICES),
    "scipy.linalg.lu_factor": Row(make_lu_factor, of_lu_factor, dtypes=MATRICES),
    "scipy.linalg.lu_solve": Row(make_lu_solve, of_lu_solve, dtypes=FLOATS),
    "scipy.linalg.det": Row(make_det, of_det, dtypes=MATRICES),
    "numpy.linalg.det": Row(make_det, of_det, dtypes=MATRICES),
    "numpy.linalg.slogdet": Row(make_det, of_det, dtypes=MATRICES),
}
