"""What the blocked algorithms ask of an engine and leave to the host, from sizes alone: one function beside each."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from trnpy._call.dispatch import Cost
from trnpy.linalg._panels import BLOCK, split
from trnpy.linalg._qr import WIDTH
from trnpy.linalg._routes import real

_remembered = functools.lru_cache(maxsize=4096)  # sizes, and those that halves of them take on the way


@dataclass(frozen=True, slots=True)
class Work:
    """Multiplications and additions, complex ones counted once; elements that cross the link."""

    products: float = 0.0
    sent: int = 0
    fetched: int = 0
    launches: int = 0
    host: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.products + other.products, self.sent + other.sent, self.fetched + other.fetched,
            self.launches + other.launches, self.host + other.host,
        )  # fmt: skip

    def cost(self, kind: str, n: float, flops: float, dtype: np.dtype, stack: int = 1) -> Cost:
        """Of ``stack`` matrices at once: as many launches as for one."""
        each = real(dtype) * stack
        size = dtype.itemsize * stack
        return Cost(
            kind, n, flops * each, size * self.sent, size * self.fetched, self.products * each, self.host * each,
            self.launches,
        )  # fmt: skip


def matmul(m: int, k: int, n: int) -> Work:
    return Work(2.0 * m * k * n, m * k + k * n, m * n, 1)


def gram(m: int, k: int) -> Work:
    """Half the products of a square one, one operand."""
    return Work(1.0 * m * m * k, m * k, m * m, 1)


@_remembered
def triangular(n: int, k: int, kernel: bool = False) -> Work:
    """``kernel``: one launch where there is a kernel for it.  Of backward and forward substitution what moves more."""
    if n <= BLOCK:
        return Work(host=1.0 * n * n * k)
    if kernel:
        return Work(1.0 * n * n * k, n * (n + k), n * k, 1)
    h = split(n)
    coupling = Work(2.0 * h * (n - h) * k, h * (n - h + k), h * k, 1)
    return triangular(h, k) + coupling + triangular(n - h, k)


@_remembered
def cholesky(n: int, kernel: bool = False) -> Work:
    if n <= BLOCK:
        return Work(host=n**3 / 3)
    h = split(n)
    return cholesky(h, kernel) + triangular(h, n - h, kernel) + gram(n - h, h) + cholesky(n - h, kernel)


@_remembered
def lu(m: int, n: int, kernel: bool = False) -> Work:
    k = min(m, n)
    if k <= BLOCK:
        return Work(host=1.0 * m * n * k - k**3 / 3)
    h = split(k)
    return lu(m, h, kernel) + triangular(h, n - h, kernel) + matmul(m - h, h, n - h) + lu(m - h, n - h, kernel)


@_remembered
def upper_inverse(n: int, kernel: bool = False) -> Work:
    if n <= BLOCK:
        return Work(host=n**3 / 3)
    h = split(n)
    halves = upper_inverse(h, kernel) + upper_inverse(n - h, kernel)
    return halves + matmul(h, h, n - h) + triangular(n - h, h, kernel)


@_remembered
def householder(m: int, n: int) -> Work:
    k = min(m, n)
    if k <= BLOCK:
        return Work(host=2.0 * m * n * k)
    h = split(k, WIDTH if k > WIDTH else BLOCK)
    done = householder(m, h) + reflect(m, h, n - h) + householder(m - h, n - h)
    if k > WIDTH:
        return done
    return done + matmul(h, m - h, k - h) + matmul(h, k - h, k - h) + matmul(h, h, k - h)


@_remembered
def reflect(m: int, k: int, columns: int) -> Work:
    """Q^H C for C (m, columns) and k reflectors."""
    if k > WIDTH:
        return reflect(m, WIDTH, columns) + reflect(m - WIDTH, k - WIDTH, columns)
    return matmul(k, m, columns) + matmul(k, k, columns) + matmul(m, k, columns)


@_remembered
def form_q(m: int, k: int, columns: int) -> Work:
    if k > WIDTH:
        return reflect(m, WIDTH, columns) + form_q(m - WIDTH, k - WIDTH, columns - WIDTH)
    return reflect(m, k, columns)


def cholesky_qr(m: int, n: int, kernel: bool = False) -> Work:
    """Two passes, what conditions up to 1e8 take."""
    each = gram(n, m) + cholesky(n, kernel) + triangular(n, m, kernel) + matmul(n, n, n)
    return each + each
