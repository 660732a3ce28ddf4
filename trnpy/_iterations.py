"""What a device does in one launch, or in fewer passes, for algorithms that check their own results.

Polynomial signs, bases of invariant subspaces and Jacobi sweeps in float32, by single products on other engines;
and products of float64 by a stated number of digits, which other engines compute in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnpy import _matched
from trnpy._engine import HOST, DeviceEngine, Engine, Handle
from trnpy._handles import Digits
from trnpy._nki.kernels.jacobi_sweep_reference import jacobi_sweep as jacobi_sweep_twin
from trnpy._nki.kernels.jacobi_sweep_reference import order as jacobi_order
from trnpy._nki.kernels.orthonormal_polar_reference import orthonormal_polar
from trnpy._nki.kernels.polynomial_sign_reference import polynomial_sign


@dataclass(frozen=True, slots=True)
class Sign:
    """S (n, n), with its trace and the sum of its squares."""

    matrix: Handle
    trace: float
    squares: float


@dataclass(frozen=True, slots=True)
class Subspace:
    """Q (n, r), the matrix in it Q^T h Q (r, r), and |Q^T Q - I|_F."""

    basis: Handle
    inside: np.ndarray
    defect: float


def sign(h: Any, coefficients: np.ndarray, engine: Engine) -> Sign:
    """The sign of symmetric float32 h (n, n), |h| <= 1, by a composition of odd quintics (steps, 3)."""
    if isinstance(engine, DeviceEngine):
        buffer, sums = engine.runtime.run("polynomial_sign", h.parts[0], coefficients)
        trace, squares = engine.runtime.get(sums).sum(axis=0, dtype=np.float64)
        return Sign(replace(h, parts=(buffer,)), float(trace), float(squares))
    s = polynomial_sign(engine.get(h), coefficients, _products("polynomial_sign", engine))
    return Sign(engine.put(s), float(s.trace(dtype=np.float64)), float((s.astype(np.float64) ** 2).sum()))


def subspace(
    h: Any, operator: Any, omega: np.ndarray, coefficients: np.ndarray, polish: np.ndarray, complement: bool,
    engine: Engine,
) -> Subspace:  # fmt: skip
    """An orthonormal basis (n, r) of where the sign ``operator`` is 1, or of what is orthogonal to its columns.

    From random omega (n, r) of norm below 1 by compositions of odd quintics; all in float32, h (n, n) symmetric.
    """
    r = omega.shape[1]
    if isinstance(engine, DeviceEngine):
        random: Any = engine.put(np.ascontiguousarray(omega))
        basis, inside, sums = engine.runtime.run(
            "orthonormal_polar", h.parts[0], operator.parts[0], random.parts[0], coefficients, polish,
            complement=complement,
        )  # fmt: skip
        padding = random.parts[0].shape[1] - r  # columns of zeros, each 1 away from orthonormal
        squares = float(engine.runtime.get(sums)[:, 1].sum(dtype=np.float64)) - padding
        inner = engine.runtime.get(inside)[:r, :r]
        return Subspace(replace(random, parts=(basis,)), inner, float(np.sqrt(max(squares, 0.0))))
    full, matmul = engine.get(h), _products("orthonormal_polar", engine)
    q = orthonormal_polar(full, engine.get(operator), omega, coefficients, polish, complement, matmul)
    gram = matmul(q.T, q) - np.eye(r, dtype=np.float32)
    return Subspace(engine.put(q), matmul(q.T, matmul(full, q)), float(np.linalg.norm(gram)))


def jacobi_sweep(a: Any, w: Any, engine: Engine) -> tuple[Handle, Handle]:
    """(J^T a J, J^T w) of float32 a and w (n, n), n a multiple of 128, by a sweep of block Jacobi."""
    if isinstance(engine, DeviceEngine):
        left, right = a.parts[0], w.parts[0]
        turned, vectors = engine.runtime.run("jacobi_sweep", left, right, jacobi_order(left.shape[0]))
        return replace(a, parts=(turned,)), replace(w, parts=(vectors,))
    x, y = engine.get(a), engine.get(w)
    x, y = jacobi_sweep_twin(x, y, jacobi_order(len(x)), _products("jacobi_sweep", engine))
    return engine.put(x), engine.put(y)


def _products(kernel: str, engine: Engine) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The engine's matmul; of the what-if's the host's, all products counted as the one launch that a device takes."""
    if engine.executes:
        return engine.matmul
    engine.counters.launches[kernel] += 1
    return HOST.matmul


def product(a: Any, b: Any, digits: int, engine: Engine) -> Handle:
    """A B of kept float64 or complex128 operands, to 256^(1-digits) of the largest terms of each sum on a device.

    Nothing is certified, so exponents that range widely inside a sum are for the caller to bear.
    """
    if isinstance(engine, DeviceEngine) and isinstance(a, Digits):
        return engine.in_digits(a.dtype, lambda device, _: _matched.matmul_kept(device, a, b, digits))
    kept: Handle = engine.matmul(a, b)
    return kept


def gram(a: Any, digits: int, engine: Engine) -> Handle:
    """A A^H, as ``product``: Hermitian to the last bit."""
    if isinstance(engine, DeviceEngine) and isinstance(a, Digits):
        return engine.in_digits(a.dtype, lambda device, _: _matched.gram_kept(device, a, digits))
    found = engine.get(engine.gram(a))
    return engine.put((found + found.conj().T) / 2)


__all__ = ["Sign", "Subspace", "gram", "jacobi_sweep", "product", "sign", "subspace"]
