"""Generators and errors of orthogonal factors, singular values, eigenvalues and what rests on them."""

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
    orthonormal,
    over,
    size,
    symmetric,
    t,
    wide,
)
from parity.operands import MATRICES, spoilt_by
from parity.row import Row


def make_qr(case):
    options = case.of(
        {}, {"mode": "economic"}, {"mode": "r"}, {"pivoting": True}, {"mode": "economic", "pivoting": True}
    )
    return (case.finish(case.general(*case.sizes[:2])),), options


def make_numpy_qr(case):
    return (case.finish(case.general(*case.sizes[:2])),), case.of({}, {"mode": "complete"}, {"mode": "r"})


def of_qr(call, result, theirs):
    a, parts = wide(call.args[0]), members(result)
    pivots = parts.pop() if call.options.get("pivoting") else None
    if pivots is not None:
        a = np.take_along_axis(a, pivots[..., np.newaxis, :], axis=-1)
    r, dtype = wide(parts[-1]), parts[-1].dtype
    found = {"structure": holds(np.tril(r, -1) == 0)}
    if len(parts) == 1:  # R alone: R^H R = A^H A
        scale = lengths(a, -2)
        return found | {"gram": over(t(r) @ r - t(a) @ a, t(scale) * scale, dtype, a.shape[-2])}
    q = wide(parts[0])
    residual = over(lengths(q @ r - a, -2), lengths(a, -2), dtype, a.shape[-2])
    return found | {"residual": residual, "orthonormal": orthonormal(parts[0], dtype)}


def make_svd(case):
    a = case.finish(case.general(*case.sizes[:2]))
    return (a,), case.of({}, {"full_matrices": False}, {"compute_uv": False})


def make_numpy_svd(case):
    if case.of(False, False, False, True):
        return (case.finish(case.hermitian(case.sizes[0]), scaled=False),), {"hermitian": True}
    return make_svd(case)


def of_svd(call, result, theirs):
    parts, others = members(result), members(theirs)
    a, values = wide(call.args[0]), parts[1] if len(parts) == 3 else parts[0]
    norm = size(a)[..., 0]
    found = {
        "values": over(wide(values) - wide(others[1] if len(parts) == 3 else others[0]), norm, values.dtype),
        "order": holds(np.diff(values) <= 0) + holds(values >= 0),
    }
    if len(parts) < 3:
        return found
    u, s, vh = parts
    k = s.shape[-1]
    residual = (wide(u[..., :k]) * wide(s)[..., np.newaxis, :]) @ wide(vh[..., :k, :]) - a
    bases = max(orthonormal(u, u.dtype), orthonormal(t(vh), u.dtype))
    return found | {"residual": over(size(residual), norm[..., np.newaxis], s.dtype, k), "orthonormal": bases}


def make_matrix(case):
    return (case.finish(case.general(*case.sizes[:2])),), {}


def make_pinv(case):
    return (case.finish(case.general(*case.sizes[:2])),), case.of({}, {"rtol": 1e-3}, {"return_rank": True})


def make_numpy_pinv(case):
    if case.of(False, False, True):
        return (case.finish(case.hermitian(case.sizes[0]), scaled=False),), {"hermitian": True, "rcond": 1e-3}
    return (case.finish(case.general(*case.sizes[:2])),), case.of({}, {"rcond": 1e-3})


def make_pinvh(case):
    lower = case.of(True, False)
    a = spoilt_by(case.hermitian(case.sizes[0]), case.of("", "upper" if lower else "lower"))
    return (case.finish(a, scaled=False),), {"lower": lower, "rtol": 1e-3} | case.of({}, {"return_rank": True})


def of_pinv(call, result, theirs):
    parts, others = members(result), members(theirs)
    hermitian = call.row.endswith("pinvh")
    found = {"rank": holds(np.array_equal(parts[1:], others[1:]))}
    x, a = parts[0], call.args[0]
    a = half(a, call.options["lower"]) if hermitian else wide(a)
    ax, y = a @ wide(x), wide(x)
    scale = size(a) * size(y)
    both = max(over(size(z - t(z)), scale, x.dtype, 1) for z in (ax, y @ a))
    found |= {"Hermitian products": both, "x a x = x": over(size(y @ ax - y), scale * size(y), x.dtype, 1)}
    return found | forward(slice(0, 1), like=symmetric if hermitian else None)(call, result, theirs)


def make_cond(case):
    return (case.finish(case.general(*case.sizes[:2])),), case.of({}, {"p": 2}, {"p": -2}, {"p": "fro"})


def make_rank(case):
    m, n = case.sizes[:2]
    a = case.general(m, n)
    if case.of(False, True) and m and n:  # of low rank
        a = a[..., :, : (n + 1) // 2] @ case.normal((n + 1) // 2, n)
    return (case.finish(a),), case.of({}, {"tol": 1e-3}, {"rtol": 1e-3})


def make_norm(case):
    order = case.of(2, -2, "nuc", 2, -2, "nuc", None, 1)
    axes = {} if order is None else {"axis": (-2, -1)}
    return (case.finish(case.general(*case.sizes[:2])),), {"ord": order} | axes | case.of({}, {"keepdims": True})


def make_scipy_norm(case):
    case = case.changed(batch=())
    return (case.finish(case.general(*case.sizes[:2])),), {"ord": case.of(2, -2, "nuc")} | case.of(
        {}, {"keepdims": True}
    )


def of_cond(call, result, theirs):
    """Relative errors of s[0] / s[-1] are eps times the condition number itself; the inverse has absolute ones."""
    if call.options.get("p") == "fro":
        return {"forward": holds(np.array_equal(result, theirs, equal_nan=True))}
    mine, other = np.asarray(result), np.asarray(theirs)
    with np.errstate(all="ignore"):
        known = np.isfinite(other) & (other < 1 / (np.sqrt(call.args[0].size + 1) * np.finfo(other.dtype).eps))
        scale = np.where(other > 1, wide(other) ** 2, 1)
    return {"values": over(np.where(known, wide(mine) - wide(other), 0), scale, other.dtype)}


def of_rank(call, result, theirs):
    return {"rank": holds(np.array_equal(result, theirs))}


def of_norm(call, result, theirs):
    a = call.args[0]
    scale = lengths(wide(a).reshape(*np.shape(a)[:-2], -1)) * max(np.sqrt(min(np.shape(a)[-2:], default=1)), 1)
    return {"values": over(np.atleast_1d(wide(result) - wide(theirs)), scale.max(initial=0), np.asarray(theirs).dtype)}


def make_polar(case):
    return (case.finish(case.general(*case.sizes[:2])),), {"side": case.of("right", "left")}


def of_polar(call, result, theirs):
    a, (u, p) = wide(call.args[0]), map(wide, result)
    right = call.options["side"] == "right"
    short = u if u.shape[-2] >= u.shape[-1] else t(u)
    found = {
        "residual": over(size((u @ p if right else p @ u) - a), size(a), result[0].dtype, a.shape[-1]),
        "Hermitian": over(size(p - t(p)), size(p), result[1].dtype),
    }
    tall = (a.shape[-2] >= a.shape[-1]) == right
    full = np.all(np.linalg.matrix_rank(call.args[0].astype("c16")) == min(a.shape[-2:])) if tall and a.size else False
    return found | ({"orthonormal": orthonormal(short, result[0].dtype)} if full else {})


def make_span(case):
    m, n = case.sizes[:2]
    a = case.general(m, n)
    if case.of(False, True) and m and n:  # of low rank
        a = a[..., :, : (n + 1) // 2] @ case.normal((n + 1) // 2, n)
    return (case.finish(a),), case.of({}, {"rcond": 1e-4})


def of_span(call, q, theirs):
    """Bases of one span have one projector."""
    mine, other = wide(q), wide(theirs)
    found = {"orthonormal": orthonormal(q, q.dtype)}
    if not (mine.size and other.size and mine.shape == other.shape):
        return found

    def projector(*args, **options):
        x = call.reference(*args, **options)
        return x @ t(x)

    distance = apart(mine @ t(mine), other @ t(other), q.dtype)
    if distance <= 4:
        return found | {"forward": 0.0}
    spans = lambda *args, **options: [projector(*args, **options)]  # noqa: E731
    moved = change(spans, call.args, call.options, [other @ t(other)], call.case.seed, dtype=q.dtype)
    return found | {"forward": distance / (1 + moved)}


def make_eigh(case):
    n, lower, pair = case.sizes[0], case.of(True, False), case.of(False, False, True)
    spoilt = case.of("", "upper" if lower else "lower")
    case = case.changed(batch=())
    a = case.finish(spoilt_by(case.hermitian(n), spoilt), scaled=False)
    options = {"lower": lower}
    args = (a,)
    if pair:
        b = case.normal(n, n)
        b = b @ t(b) / max(n, 1) + 2 * np.eye(n)
        args = (a, spoilt_by(b, spoilt).astype(a.dtype))
        options["type"] = case.of(1, 2, 3)
    kind = case.of("", "", "index", "value", "driver")
    if kind == "index" and n:
        low = case.seed % n
        options["subset_by_index"] = [low, min(low + case.seed % 7, n - 1)]
    elif kind == "value":
        options["subset_by_value"] = [-0.51, 0.43]
    elif kind == "driver":
        options["driver"] = case.of("gv", "gvd", "gvx") if pair else case.of("ev", "evd", "evr", "evx")
    return args, options


def make_numpy_eigh(case):
    lower = case.of("L", "U")
    spoilt = case.of("", "upper" if lower == "L" else "lower")
    return (case.finish(spoilt_by(case.hermitian(case.sizes[0]), spoilt), scaled=False),), {"UPLO": lower}


def of_eigh(call, result, theirs):
    lower = call.options.get("lower", call.options.get("UPLO", "L") == "L")
    parts, others = members(result), members(theirs)
    a, w, dtype = half(call.args[0], lower), parts[0], parts[0].dtype
    norm = size(a)[..., 0]
    found = {"order": holds(np.diff(w) >= 0)}
    if len(call.args) == 1:
        distance = np.abs(wide(w) - wide(others[0]))
        if w.shape[-1] == a.shape[-1]:  # SciPy's dsyevr errs by up to 12 eps of a norm: dsyevd's values serve, too
            narrow = a.astype(np.result_type(dtype, *map(np.asarray, call.args)))
            distance = np.minimum(distance, np.abs(wide(w) - wide(np.linalg.eigvalsh(narrow))))
        found["values"] = over(distance, norm, dtype)
        b = np.eye(a.shape[-1])
    else:
        b = half(call.args[1], lower)
        found["values"] = over(wide(w) - wide(others[0]), norm * size(b)[..., 0], dtype)
    if len(parts) == 1:
        return found
    x, kind = wide(parts[1]), call.options.get("type", 1)
    xw = x * wide(w)[..., np.newaxis, :]
    left = {1: lambda: a @ x - b @ xw, 2: lambda: a @ (b @ x) - xw, 3: lambda: b @ (a @ x) - xw}[kind]()
    inner = t(x) @ np.linalg.solve(b.astype("c16"), x.astype("c16")) if kind == 3 else t(x) @ (b @ x)
    scale = norm[..., np.newaxis] * (size(b) if len(call.args) == 2 else 1)
    return found | {
        "residual": over(lengths(left, -2), scale, dtype, a.shape[-1]),
        "orthonormal": over(inner - np.eye(x.shape[-1]), 1.0, dtype),
    }


def make_eig(case):
    options = case.of({}, {"left": True}, {"left": True, "right": False}, {"right": False})
    return (case.finish(case.general(case.sizes[0], case.sizes[0])),), options


def make_eigvals(case):
    return make_eig(case)[0], {}


def of_eig(call, result, theirs):
    """The same LAPACK computes, matrix by matrix: nothing may differ."""
    same = [
        np.array_equal(x, y) and x.strides == y.strides for x, y in zip(members(result), members(theirs), strict=True)
    ]
    return {"equal": holds(all(same))}


ROWS = {
    "scipy.linalg.eig": Row(make_eig, of_eig, dtypes=FLOATS),
    "scipy.linalg.eigvals": Row(make_eigvals, of_eig, dtypes=FLOATS),
    "scipy.linalg.qr": Row(make_qr, of_qr, dtypes=MATRICES),
    "numpy.linalg.qr": Row(make_numpy_qr, of_qr, dtypes=MATRICES),
    "scipy.linalg.svd": Row(make_svd, of_svd, dtypes=MATRICES),
    "numpy.linalg.svd": Row(make_numpy_svd, of_svd, dtypes=MATRICES),
    "scipy.linalg.svdvals": Row(make_matrix, of_svd, dtypes=MATRICES),
    "numpy.linalg.svdvals": Row(make_matrix, of_svd, dtypes=MATRICES),
    "numpy.linalg.cond": Row(make_cond, of_cond, dtypes=MATRICES),
    "numpy.linalg.matrix_rank": Row(make_rank, of_rank, dtypes=MATRICES),
    "numpy.linalg.norm": Row(make_norm, of_norm, dtypes=MATRICES),
    "scipy.linalg.norm": Row(make_scipy_norm, of_norm, dtypes=MATRICES),
    "scipy.linalg.pinv": Row(make_pinv, of_pinv, dtypes=MATRICES),
    "numpy.linalg.pinv": Row(make_numpy_pinv, of_pinv, dtypes=MATRICES),
    "scipy.linalg.pinvh": Row(make_pinvh, of_pinv, dtypes=FLOATS),
    "scipy.linalg.polar": Row(make_polar, of_polar, dtypes=MATRICES),
    "scipy.linalg.orth": Row(make_span, of_span, dtypes=FLOATS),
    "scipy.linalg.null_space": Row(make_span, of_span, dtypes=FLOATS),
    "scipy.linalg.eigh": Row(make_eigh, of_eigh, dtypes=FLOATS),
    "scipy.linalg.eigvalsh": Row(make_eigh, of_eigh, dtypes=FLOATS),
    "numpy.linalg.eigh": Row(make_numpy_eigh, of_eigh, dtypes=FLOATS),
    "numpy.linalg.eigvalsh": Row(make_numpy_eigh, of_eigh, dtypes=FLOATS),
}
