"""A matrix distributed over the ranks in panels of columns, and its Cholesky and LU factors, panel after panel.

Panel k is on rank k modulo the number of ranks, so that all ranks have work until the end. The owner of a panel factors
it and sends it to all ranks; each rank updates its own columns to the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from trnpy._einsum.rows import matmul
from trnpy.dist._collectives import Communicator
from trnpy.dist._sharded import Sharded
from trnpy.linalg._namespace import NAMES

WIDTH = 128  # columns of a panel, as on a device
Step = tuple[slice, np.ndarray, np.ndarray]  # columns of a panel; its rows from there on, factored; pivots

cholesky, solve_triangular, get_lapack_funcs = (
    NAMES[name] for name in ("cholesky", "solve_triangular", "get_lapack_funcs")
)


class Panels:
    """A square floating-point matrix in panels of columns; ``local`` has the panels of this rank, in order."""

    def __init__(self, a: Sharded) -> None:
        self.comm, self.n, self.axis, self.edges = a.comm, a.shape[0], a.axis, a.edges
        self.width = WIDTH
        self.starts = range(0, self.n, self.width)
        owners = np.arange(self.n) // self.width % self.comm.size
        columns = a.along(1)
        first, last = columns.range
        blocks = [columns.local[:, owners[first:last] == rank] for rank in range(self.comm.size)]
        self.local = np.concatenate(self.comm.alltoall(blocks), axis=1)
        self.mine = np.flatnonzero(owners == self.comm.rank)  # the columns of ``local``
        self._even, self._owners = columns.edges, owners

    def sharded(self) -> Sharded:
        """The matrix as a Sharded array, cut like the given one."""
        first, last = self._even[self.comm.rank], self._even[self.comm.rank + 1]
        bounds = [np.searchsorted(self.mine, self._even[rank : rank + 2]) for rank in range(self.comm.size)]
        found = self.comm.alltoall([self.local[:, i:j] for i, j in bounds])
        whole = np.empty((self.n, last - first), self.local.dtype)
        for rank, block in enumerate(found):
            whole[:, self._owners[first:last] == rank] = block
        columns = Sharded(whole, 1, (self.n, self.n), self.comm, self._even)
        return columns.along(self.axis, self.edges)

    def owner(self, k: int) -> int:
        """The rank of the panel that begins at column k."""
        return k // self.width % self.comm.size

    def place(self, k: int) -> slice:
        """The columns of that panel, which is on this rank, in ``local``."""
        first = int(np.searchsorted(self.mine, k))
        return slice(first, first + min(self.width, self.n - k))

    def right(self, k: int) -> slice:
        """The columns of ``local`` to the right of that panel."""
        return slice(int(np.searchsorted(self.mine, min(k + self.width, self.n))), None)

    def steps(self, factor: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Iterator[Step]:
        """Each panel in order, factored by its owner, on all ranks; all ranks raise the error of one."""
        for k in self.starts:
            root, text, panel, pivots = self.owner(k), "", None, None
            if root == self.comm.rank:
                at = self.place(k)
                try:
                    panel, pivots = factor(self.local[k:, at])
                    self.local[k:, at] = panel
                except np.linalg.LinAlgError as error:
                    text = str(error) or "singular"
            shared(self.comm, root, text)
            yield (
                slice(k, min(k + self.width, self.n)),
                self.comm.bcast(panel, root),
                self.comm.bcast(pivots, root),
            )


def shared(comm: Communicator, root: int, text: str) -> None:
    """Raise LinAlgError on all ranks if the ``text`` of rank ``root`` is not empty."""
    said = bytes(comm.bcast(np.frombuffer(text.encode(), np.uint8), root)).decode()
    if said:
        raise np.linalg.LinAlgError(said)


def _definite(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columns of the Cholesky factor; no pivots."""
    width = panel.shape[1]
    top = cholesky(panel[:width], lower=True)
    below = solve_triangular(top, panel[width:].conj().T, lower=True).conj().T
    return np.concatenate([top, below]), np.empty(0, np.int64)


def _general(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columns of the factors L and U, and the order of the rows after pivoting."""
    (getrf,) = get_lapack_funcs(("getrf",), (panel,))
    factors, swaps, info = getrf(panel)
    if info > 0:
        raise np.linalg.LinAlgError("Matrix is singular.")
    order = np.arange(len(panel))
    for i, j in enumerate(swaps):
        order[[i, j]] = order[[j, i]]
    return factors, order


def definite_factor(a: Sharded, b: np.ndarray | None = None) -> Panels:
    """The lower Cholesky factor, zero above the diagonal; ``b``, on all ranks, becomes L^-1 b."""
    panels = Panels(a)
    for columns, panel, _ in panels.steps(_definite):
        width = panel.shape[1]
        top, below = panel[:width], panel[width:]
        right = panels.right(columns.start)
        mine = panels.mine[right] - columns.stop
        panels.local[columns.stop :, right] -= matmul(below, below[mine].conj().T)
        if b is not None:
            b[columns] = solve_triangular(top, b[columns], lower=True)
            b[columns.stop :] -= matmul(below, b[columns])
    panels.local[np.arange(panels.n)[:, np.newaxis] < panels.mine] = 0
    return panels


def definite_solution(a: Sharded, b: np.ndarray) -> np.ndarray:
    """x of A x = b for a Hermitian positive-definite A, on all ranks. All ranks have b, which is overwritten."""
    panels = definite_factor(a, b)
    for k in reversed(panels.starts):
        root, x = panels.owner(k), None
        if root == panels.comm.rank:
            columns = panels.local[k:, panels.place(k)]
            width = columns.shape[1]
            rest = b[k : k + width] - matmul(columns[width:].conj().T, b[k + width :])
            x = solve_triangular(columns[:width], rest, lower=True, trans="C")
        x = panels.comm.bcast(x, root)
        b[k : k + len(x)] = x
    return b


def general_solution(a: Sharded, b: np.ndarray) -> np.ndarray:
    """x of A x = b, by LU with partial pivoting, on all ranks. All ranks have b, which is overwritten."""
    panels = Panels(a)
    for columns, panel, order in panels.steps(_general):
        k, width = columns.start, panel.shape[1]
        top, below = panel[:width], panel[width:]
        right = panels.right(k)
        rest = panels.local[k:, right][order]
        rest[:width] = solve_triangular(top, rest[:width], lower=True, unit_diagonal=True)
        rest[width:] -= matmul(below, rest[:width])
        panels.local[k:, right] = rest
        b[k:] = b[k:][order]
        b[columns] = solve_triangular(top, b[columns], lower=True, unit_diagonal=True)
        b[columns.stop :] -= matmul(below, b[columns])
    for k in reversed(panels.starts):
        root, x, above = panels.owner(k), None, None
        if root == panels.comm.rank:
            at = panels.place(k)
            width = at.stop - at.start
            x = solve_triangular(panels.local[k : k + width, at], b[k : k + width])
            above = matmul(panels.local[:k, at], x)
        x, above = panels.comm.bcast(x, root), panels.comm.bcast(above, root)
        b[k : k + len(x)] = x
        b[:k] -= above
    return b
