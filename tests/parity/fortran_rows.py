"""Generators and errors of BLAS and LAPACK rows: what f2py's routines leave in each triangle, and their info codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.factor_rows import unpacked
from parity.measures import half, holds, lengths, over, size, t, wide
from parity.row import Row
from parity.spectral_rows import of_eigh
from trnpy.linalg._blas_rows import OPS as BLAS_OPS
from trnpy.linalg._lapack_rows import OPS as LAPACK_OPS

DTYPES = {"s": "f4", "d": "f8", "c": "c8", "z": "c16"}


def scalars(case, real=False):
    if real or case.dtype.kind != "c":
        return case.of((1.0, 0.0), (1.5, 0.5), (-1.0, 1.0))
    return case.of((1.0, 0.0), (1.5 - 0.5j, 0.5 + 0.25j))


def op_of(a, trans):
    a = wide(a)
    return a if trans == 0 else a.swapaxes(-1, -2) if trans == 1 else t(a)


def plain(case):
    """The case with operands of one dtype, none empty, which f2py refuses, and no stack.

    None is read-only: where a routine may overwrite an operand, f2py writes into one.
    """
    layouts = tuple("C" if layout == "read-only" else layout for layout in case.layouts)
    return case.changed(
        batch=(), layouts=layouts, dtypes=(case.dtypes[0],) * 2, sizes=tuple(max(n, 1) for n in case.sizes)
    )


def make(kind):
    def made(case):
        case = plain(case)
        m, k, n = case.sizes
        hermitian = kind.startswith("he")
        alpha, beta = scalars(case, real=kind == "herk")
        general = lambda rows, columns, which=0: case.finish(case.general(rows, columns, which), which)  # noqa: E731
        options = {}
        if kind == "gemm":
            options["trans_a"], options["trans_b"] = case.of(0, 1, 2), case.of(0, 1, 2)
            a = general(k, m) if options["trans_a"] else general(m, k)
            b = general(n, k, 1) if options["trans_b"] else general(k, n, 1)
            args, shape = (a, b), (m, n)
        elif kind in ("symm", "hemm"):
            options["side"], options["lower"] = case.of(0, 1), case.of(0, 1)
            args, shape = (general(n, n) if options["side"] else general(m, m), general(m, n, 1)), (m, n)
        elif kind in ("trmm", "trsm"):
            options = {
                "side": case.of(0, 1),
                "lower": case.of(0, 1),
                "trans_a": case.of(0, 1, 2),
                "diag": case.of(0, 0, 1),
            }
            size_ = n if options["side"] else m
            a = case.general(size_, size_)
            a = a / (np.abs(a).max() * size_**0.5) + 2 * np.eye(size_)
            return (alpha, case.finish(a, scaled=not options["diag"]), general(m, n, 1)), options | {
                "overwrite_b": case.of(0, 1)
            }
        else:
            trans = case.of(0, 2 if hermitian or case.dtype.kind != "c" else 1)
            options["trans"], options["lower"] = trans, case.of(0, 1)
            count = 2 if kind.endswith("2k") else 1
            args = tuple(general(k, n) if trans else general(n, k) for _ in range(count))
            shape = (n, n)
            beta = beta.real if hermitian else beta
        if case.of(False, True):
            options |= {"beta": beta, "c": general(*shape, 1), "overwrite_c": case.of(0, 1)}
        return (alpha, *args), options

    return made


def of_product(kind):
    """alpha op(A) op(B) + beta C, or a rank-k update of one triangle."""

    def errors(call, result, theirs):
        (alpha, *arrays), o = call.args, call.options

        def value(absolute):
            f = (lambda x: np.abs(wide(x))) if absolute else wide
            s, b = f(alpha), f(o.get("beta", 0.0))
            if kind == "gemm":
                x = s * (op_of(f(arrays[0]), o["trans_a"]) @ op_of(f(arrays[1]), o["trans_b"]))
            elif kind in ("symm", "hemm"):
                a, other = f(_whole(arrays[0], o["lower"], kind == "hemm")), f(arrays[1])
                x = s * (other @ a if o["side"] else a @ other)
            elif kind == "trmm":
                a, other = op_of(f(_triangle(arrays[0], o)), o["trans_a"]), f(arrays[1])
                x = s * (other @ a if o["side"] else a @ other)
            else:
                adjoint = t if kind.startswith("he") else lambda y: y.swapaxes(-1, -2)
                sides = [adjoint(f(y)) if o["trans"] else f(y) for y in arrays]
                x = s * (sides[0] @ adjoint(sides[-1]))
                if len(sides) == 2:
                    conjugate = np.conj(s) if kind.startswith("he") else s
                    x = x + conjugate * (sides[1] @ adjoint(sides[0]))
            return x + b * f(o["c"]) if o.get("c") is not None and b != 0 else x

        expected, scale, x = value(False), value(True), wide(result)
        found = {}
        if kind.endswith("k"):  # ranks k and 2k
            inside = np.tril(np.ones(x.shape, bool)) if o["lower"] else np.triu(np.ones(x.shape, bool))
            found["other triangle"] = holds(np.array_equal(result[~inside], theirs[~inside]))
            if kind.startswith("he"):
                expected = np.where(np.eye(len(x), dtype=bool), expected.real, expected)
            expected, scale, x = (np.where(inside, y, 0) for y in (expected, scale, x))
        return found | {"forward": over(x - expected, scale, result.dtype, max(call.case.sizes))}

    return errors


def _whole(a, lower, hermitian):
    if hermitian:
        return half(a, lower)
    a = wide(a)
    strict = np.tril(a, -1) if lower else np.triu(a, 1)
    return strict + strict.T + np.diag(np.diag(a))


def _triangle(a, o):
    a = np.tril(wide(a)) if o["lower"] else np.triu(wide(a))
    return np.where(np.eye(len(a), dtype=bool), 1, a) if o["diag"] else a


def of_trsm(call, result, theirs):
    (alpha, a, b), o, x = call.args, call.options, wide(result)
    a, b = op_of(_triangle(a, o), o["trans_a"]), wide(alpha) * wide(b)
    product, scale = (x @ a, np.abs(x) @ np.abs(a)) if o["side"] else (a @ x, np.abs(a) @ np.abs(x))
    return {"residual": over(product - b, scale + np.abs(b), result.dtype, len(a))}


def make_evd(case):
    case = plain(case)
    options = {"lower": case.of(0, 1), "compute_v": case.of(1, 0)}
    return (case.finish(case.hermitian(case.sizes[0]), scaled=False),), options


def make_gvd(case):
    case = plain(case)
    n = case.sizes[0]
    b = case.normal(n, n)
    b = b @ t(b) / n + 2 * np.eye(n)
    a = case.finish(case.hermitian(n), scaled=False)
    return (a, b.astype(a.dtype)), {"itype": case.of(1, 2, 3), "jobz": case.of("V", "N"), "uplo": case.of("L", "U")}


def of_evd(call, result, theirs):
    """LAPACK's w, v, info as scipy.linalg.eigh's w, v."""
    w, v, info = result
    o = call.options
    lower = o.get("uplo", "L") == "L" if "uplo" in o else bool(o["lower"])
    vectors = o.get("jobz", "V") == "V" if "uplo" in o else bool(o["compute_v"])
    as_eigh = replace(call, options={"lower": lower, "type": o.get("itype", 1)})
    parts, others = (w, v) if vectors else w, (theirs[0], theirs[1]) if vectors else theirs[0]
    return {"info": holds(info == theirs[2])} | of_eigh(as_eigh, parts, others)


def make_potrf(case):
    case = plain(case)
    a = case.definite(case.sizes[0])
    return (case.finish(a),), {"lower": case.of(0, 1), "clean": case.of(1, 0), "overwrite_a": case.of(0, 1)}


def of_potrf(call, result, theirs):
    (c, info), o = result, call.options
    a = half(call.args[0], o["lower"])
    strict = np.triu(c, 1) if o["lower"] else np.tril(c, -1)
    l = np.tril(wide(c)) if o["lower"] else t(np.triu(wide(c)))
    d = np.sqrt(np.abs(np.diag(a)))
    other = np.triu(theirs[0], 1) if o["lower"] else np.tril(theirs[0], -1)
    found = {"info": holds(info == theirs[1]), "other triangle": holds(np.array_equal(strict, other))}
    return found | {"residual": over(l @ t(l) - a, np.outer(d, d), c.dtype, len(a))}


def make_posv(case):
    case = plain(case)
    n = case.sizes[0]
    b = case.finish(case.normal(n, case.sizes[2], which=1), 1)
    return (case.finish(case.definite(n)), b), {"lower": case.of(0, 1)}


def of_posv(call, result, theirs):
    c, x, info = result
    a, b = half(call.args[0], call.options["lower"]), wide(call.args[1])
    scale = size(a) * lengths(x, -2) + lengths(b, -2)
    return {
        "info": holds(info == theirs[2]), "residual": over(lengths(a @ wide(x) - b, -2), scale, x.dtype, len(a)),
    } | of_potrf(call, (c, info), (theirs[0], theirs[2]))  # fmt: skip


def make_getrf(case):
    case = plain(case)
    return (case.finish(case.general(*case.sizes[:2])),), {"overwrite_a": case.of(0, 1)}


def of_getrf(call, result, theirs):
    lu, piv, info = result
    order, l, u = unpacked(lu, piv)
    residual = over(l @ u - wide(call.args[0])[order], np.abs(l) @ np.abs(u), lu.dtype, len(l))
    return {"info": holds(info == theirs[2]), "residual": residual, "structure": holds(np.abs(l) <= 1 + 1e-5)}


def make_gesv(case):
    case = plain(case)
    n = case.sizes[0]
    return (case.finish(case.general(n, n)), case.finish(case.normal(n, case.sizes[2], which=1), 1)), {}


def of_gesv(call, result, theirs):
    lu, piv, x, info = result
    a, b = map(wide, call.args)
    order, l, u = unpacked(lu, piv)
    scale = np.abs(l[np.argsort(order)]) @ (np.abs(u) @ np.abs(wide(x))) + np.abs(b)
    residual = over(a @ wide(x) - b, scale, x.dtype, len(a))
    return of_getrf(call, (lu, piv, info), (theirs[0], theirs[1], theirs[3])) | {"solution": residual}


LAPACK = {
    "evd": (make_evd, of_evd), "gvd": (make_gvd, of_evd), "potrf": (make_potrf, of_potrf), "posv": (make_posv, of_posv),
    "getrf": (make_getrf, of_getrf), "gesv": (make_gesv, of_gesv),
}  # fmt: skip


def _row(name):
    routine = name.rpartition(".")[2]
    dtypes, kind = (DTYPES[routine[0]],), routine[1:]
    if kind == "trsm":
        return Row(make(kind), of_trsm, most=1.0, dtypes=dtypes)
    if ".blas." in name:
        return Row(make(kind), of_product(kind), dtypes=dtypes)
    return Row(*LAPACK[kind.removeprefix("sy").removeprefix("he")], dtypes=dtypes)


ROWS = {op.name: _row(op.name) for op in (*BLAS_OPS, *LAPACK_OPS)}
