"""The NumPy reference implementation of mp2_energy.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

LARGEST = 2**30  # elements of the digits: 2 GiB, the limit of 32-bit byte offsets
MOST_COLUMNS = 512  # of a block: one PSUM bank
MOST_PLACES = 5120  # entries of both tables, which stay on the chip
LARGEST_GROUP = 2.0**24  # of the highest group's sums, which float32 holds exactly


def groups_of(digits: int) -> int:
    """Groups of digit pairs: i + j < digits, and for an even number the pair in the middle."""
    return digits + 1 if digits % 2 == 0 else digits


def operations(digits: int, naux: int, span: int, cells: int) -> float:
    """Real operations of TensorE for ``cells`` pairs of blocks of ``span`` virtual orbitals."""
    products = digits * (digits + 1) / 2 + (digits % 2 == 0)
    return 2.0 * products * naux * span * span * cells


def check(a, gaps, units, cells, others, b, gaps_b, span, exchange) -> None:  # type: ignore[no-untyped-def]
    """Raise ValueError, with the reason, for operands that the kernel does not support."""
    right, gaps_right = (a, gaps) if b is None else (b, gaps_b)
    form = "float32" if a.shape[0] == 1 else "bfloat16"
    if a.dtype.name != form or right.dtype != a.dtype or right.shape[:2] != a.shape[:2] or 0 in a.shape + right.shape:
        raise ValueError(f"{a.dtype}{a.shape} and {right.dtype}{right.shape}: expected {form} digits of one naux")
    if not 1 <= span <= MOST_COLUMNS or a.shape[2] % span or right.shape[2] % span:
        raise ValueError(f"columns {a.shape[2]} and {right.shape[2]}: expected multiples of span {span}, at most 512")
    for x, table in ((a, gaps), (right, gaps_right)):
        if table.shape != (3, x.shape[2]):
            raise ValueError(f"gaps {table.shape} for {x.shape[2]} columns: expected (3, {x.shape[2]})")
    if units.shape != (1, groups_of(a.shape[0])):
        raise ValueError(f"units {units.shape} of {a.shape[0]} digits: expected (1, {groups_of(a.shape[0])})")
    if others is not None and not exchange:
        raise ValueError("pairs of blocks without exchange: expected all of them in cells")
    if cells.size + (0 if others is None else others.size) > MOST_PLACES:
        raise ValueError(f"{cells.shape[1]} cells: at most {MOST_PLACES} entries of tables")
    if max(a.size, right.size) > LARGEST:
        raise ValueError(f"digits {a.shape} and {right.shape}: at most {LARGEST} elements each")


def excess(parts: np.ndarray, cells: int) -> float:
    """The distance between the first place of a table and the sum of the others, in tolerances; up to 1 is equal.

    The kernel adds ``len(table)`` numbers in float32, each of whose sums is rounded.
    """
    errors = [0.0]
    for table in (parts[: cells + 1], parts[cells + 1 :]):
        if len(table) > 1:
            x = table.astype(np.float64)
            error = np.abs(x[0] - x[1:].sum(axis=0))
            allowed = len(x) * 2.0**-24 * np.abs(x[1:]).sum(axis=0)
            with np.errstate(all="ignore"):
                errors.append(np.where(error == 0, 0.0, error / allowed).max())
    return float(np.max(errors))


def finish(parts: np.ndarray, cells: int) -> np.ndarray:
    """(cells + others, 2) float64, direct and exchange, from the kernel's result for ``cells`` and others."""
    found = np.delete(parts, [0, cells + 1] if len(parts) > cells + 1 else [0], axis=0)
    d, d_rest, same, same_rest, off, off_rest = found.astype(np.float64).sum(axis=1).T
    return np.stack([d + d_rest, same + same_rest + 2 * (off + off_rest)], axis=1)


def mp2_energy(a, gaps, units, cells, others=None, b=None, gaps_b=None, span=128, exchange=True):  # type: ignore[no-untyped-def]
    """For ``finish`` the sums of T_ab T_ab / D and T_ab T_ba / D, T in units of H, D = -(gap_ia + gap_jb): float64,
    of the shape of the kernel's output, in which all but one lane of each cell is zero."""
    check(a, gaps, units, cells, others, b, gaps_b, span, exchange)
    right, gaps_right = (a, gaps) if b is None else (b, gaps_b)
    x, y, unit = a.astype(np.float64), right.astype(np.float64), units[0].astype(np.float64)
    gap, gap_right = (g[1:].astype(np.float64).sum(axis=0) for g in (gaps, gaps_right))
    s = len(x)
    pairs = [(i, j) for i in range(s) for j in range(s) if i + j < s or i == j == s // 2 > 0]

    def block(left: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = slice(left, left + span), slice(first, first + span)
        t = sum(unit[i + j] * x[i][:, rows].T @ y[j][:, columns] for i, j in pairs)
        return t, -1 / (gap[rows, None] + gap_right[columns])

    found = [(0.0, 0.0)]
    for i, j in cells.T:
        t, inverse = block(i, j)
        found.append(((t * t * inverse).sum(), (t * t.T * inverse).sum() if exchange else 0.0))
    found += [] if others is None else [(0.0, 0.0)]
    for pi, qj, qi, pj in () if others is None else others.T:
        (t, inverse), (swapped, inverse_swapped) = block(pi, qj), block(qi, pj)
        direct = (t * t * inverse).sum() + (swapped * swapped * inverse_swapped).sum()
        found.append((direct, 2 * (t * swapped.T * inverse).sum()))
    parts = np.zeros((len(found), 128, 6))
    parts[:, 0, [0, 2]] = found
    for table in (parts[: cells.shape[1] + 1], parts[cells.shape[1] + 1 :]):
        table[:1] = table[1:].sum(axis=0)
    return parts
