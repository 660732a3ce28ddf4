"""Predicted times of a product with a sparse matrix, from its blocks; row orders that reduce their number."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from nkisim.hardware import between
from trnpy._base.records import record
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Decision, decide
from trnpy._engine.abstract_arrays import Unknown
from trnpy._engine.engines import Refused
from trnpy._nki.instances import hardware_of
from trnpy._nki.kernels.sparse.bsr_spmm_reference import LARGEST
from trnpy._report.html_table import frame
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import current_policy
from trnpy._settings.policy import policy as set_policy
from trnpy.sparse import _picture
from trnpy.sparse._matmul import MATMUL, SparseProduct, device_product, is_sparse
from trnpy.sparse._outline import EVERY
from trnpy.sparse._tiles import BUCKETS, TILE, Blocks, count_blocks

FORM_BYTES = 4  # fewest bytes of a tile's element on an engine
CURVE_BITS = 62  # of a position on the curve, in an int64


@record(frozen=True)
class BlockAnalysis:
    """Predicted times of a product with ``columns`` dense columns; those of a device are modelled, never measured."""

    blocks: Blocks
    columns: int
    machine: str
    resident_s: float | None  # seconds if the matrix is on the device already; None if there is no such product
    one_shot_s: float | None  # seconds if the matrix is sent for this product
    decision: Decision
    matrix: Any = field(compare=False)  # drawn as a picture in notebooks

    def __str__(self) -> str:
        b, (rows, columns) = self.blocks, self.blocks.shape
        every = -(-rows // b.block) * -(-columns // b.block)
        lines = [
            f"{rows} x {columns}, {b.nnz} stored elements",
            f"blocks {b.block} x {b.block}: {b.count} of {every}, density within them {b.density:.2%}",
            f"padding: {b.padding:.2f} to the longest, {b.bucket_padding:.2f} in {BUCKETS} buckets",
        ]
        if self.resident_s is None or self.one_shot_s is None:
            single_or_double = np.dtype(self.decision.dtype).char in "fdFD"
            why = "its tiles exceed one operand" if single_or_double else f"no path for {self.decision.dtype}"
            lines.append(f"{self.columns} columns on {self.machine}: {why}")
        else:
            times = f"{between(self.resident_s)} resident, {between(self.one_shot_s)} one-shot, modelled"
            lines.append(f"{self.columns} columns on {self.machine}: {times}")
        if self.decision.host_s is not None:
            lines.append(f"{self.columns} columns on the host: {self.decision.host_s:.2g} s predicted")
        return "\n".join([*lines, str(self.decision)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return frame(_picture.page(self.blocks, str(self), _compressed(self.matrix)), "blocks")


def _compressed(a: Any) -> Any:
    return a if a.format in ("csr", "csc") else a.tocsr()


def block_analysis(
    a: Any, columns: int = TILE, order: str | np.ndarray | None = None, html: str | Path | None = None
) -> BlockAnalysis:
    """Print the 128 x 128 block structure of a sparse matrix and where a product with it would run.

    Parameters
    ----------
    a : (rows, n) sparse array or sparse matrix
        The left factor of ``a @ x``. It is not made dense. Its block count is cached on the object until its pattern
        changes.
    columns : int, optional
        Columns of the dense factor x (n, columns).
    order : {"rcm"} or (n,) array_like of int, optional
        Permutation of the rows and columns of a square matrix before counting: "rcm" for reverse Cuthill-McKee, or
        any other, such as that of `morton_order`.
    html : path, optional
        File for an HTML page that shows the blocks.

    Returns
    -------
    BlockAnalysis
        The printed figures: ``blocks``, the decision and seconds. Seconds of a device are modelled, never measured.

    Raises
    ------
    TypeError
        If `a` is not sparse or does not have two dimensions.
    ValueError
        If `order` is not known or `a` is not square.

    Examples
    --------
    >>> import scipy.sparse
    >>> from trnpy.sparse import block_analysis
    >>> a = scipy.sparse.eye_array(256, format="csr")
    >>> analysis = block_analysis(a)  # doctest: +ELLIPSIS
    256 x 256, 256 stored elements
    blocks 128 x 128: 2 of 4, density within them 0.78%
    padding: 1.00 to the longest, 1.00 in 4 buckets
    ...
    >>> analysis.blocks.count
    2
    """
    if not is_sparse(a) or a.ndim != 2:
        raise TypeError(f"block_analysis({type(a).__name__}): expected a sparse array or matrix of two dimensions")
    if order is not None:
        a = _reordered(a, order)
    blocks = count_blocks(a)
    policy, rates = current_policy(), current_rates()
    hardware = hardware_of(policy.machine)
    # A placeholder for X: an array of its shape and dtype that needs no memory.
    x = np.broadcast_to(np.zeros((), a.dtype), (a.shape[1], columns))
    problem = MATMUL.problem(True, a, x)
    decision = decide("scipy.sparse.matmul", problem, None, policy, rates)
    resident_s, one_shot_s = (
        _modelled_s(device_product(a, x, problem.dtype, problem.cost), kept) if problem.dtype.char in "fdFD" else None
        for kept in (True, False)
    )
    result = BlockAnalysis(blocks, columns, hardware.name, resident_s, one_shot_s, decision, a)
    print(result)
    if html is not None:
        _picture.write(html, result.blocks, str(result), _compressed(a))
    return result


def _modelled_s(product: SparseProduct, kept: bool) -> float | None:
    """Seconds of a product with tiles on the policy's machine; ``kept``: the matrix is already on the device.

    None if the device has no such product.
    """
    policy, hardware = current_policy(), hardware_of(current_policy().machine)
    if count_blocks(product.a).count * TILE**2 * FORM_BYTES > LARGEST:
        return None  # before a dry run creates as many tiles
    with set_policy(force=True):  # a time is needed even for a product that the device would slow down
        work = work_of(product)
    if work is None:
        return None
    pattern, x = work.options
    pattern = replace(pattern, resident=EVERY if kept else frozenset())
    try:
        tally = work._replace(options=(pattern, x), method="tiles").tally(hardware, policy)
    except (Refused, Unknown):
        return None
    return tally.seconds(hardware, current_rates())


def morton_order(points: Any) -> np.ndarray:
    """Permutation that sorts points along a Z-shaped curve, so that nearby points get nearby indices.

    Parameters
    ----------
    points : (n, d) array_like
        Finite real coordinates in 1 to 62 dimensions.

    Returns
    -------
    (n,) ndarray of intp
        Indices of the points in order along the curve.

    Raises
    ------
    ValueError
        If `points` does not have this shape or is not finite.

    Notes
    -----
    Coordinates are scaled by the largest extent and rounded to 62 // d bits, whose bits are interleaved [1]_.

    References
    ----------
    .. [1] G. M. Morton, A computer oriented geodetic data base, IBM technical report, 1966.

    Examples
    --------
    >>> from trnpy.sparse import morton_order
    >>> morton_order([[0, 0], [1, 1], [0, 1], [1, 0]])
    array([0, 3, 2, 1])
    """
    points = np.asarray(points, float)
    if points.ndim != 2 or points.shape[1] == 0 or not np.isfinite(points).all():
        raise ValueError(f"points {points.shape}: expected finite coordinates (n, d)")
    if not len(points):
        return np.empty(0, np.intp)
    bits = CURVE_BITS // points.shape[1]
    if not bits:
        raise ValueError(f"points {points.shape}: expected at most {CURVE_BITS} dimensions")
    low = points.min(axis=0)
    extent = float((points - low).max()) or 1.0
    cells = ((points - low) / extent * (2**bits - 1)).astype(np.int64)
    place = np.zeros(len(points), np.int64)
    for bit in range(bits):
        for axis in range(points.shape[1]):
            place |= (cells[:, axis] >> bit & 1) << (bit * points.shape[1] + axis)
    return np.argsort(place, kind="stable")


def _reordered(a: Any, order: str | np.ndarray) -> Any:
    """``a`` with one permutation of rows and columns; ValueError for an unknown order or if ``a`` is not square."""
    if a.shape[0] != a.shape[1]:
        raise ValueError(f"order={order!r} of a {a.shape[0]} x {a.shape[1]} matrix: expected a square one")
    a = a.tocsr()
    if isinstance(order, str):
        if order != "rcm":
            raise ValueError(f"order={order!r}: expected 'rcm' or a permutation")
        order = sparse.csgraph.reverse_cuthill_mckee(a)
    return a[order][:, order]
