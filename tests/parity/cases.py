"""A case of the parity tests: drawn by hypothesis, stored as JSON, and turned into operands by its row's generator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hypothesis import strategies as st
from linalg.matrices import FAMILIES as HERMITIAN
from linalg.matrices import hermitian

EDGES = (0, 1, 2, 3, 5, 16, 31, 64, 65, 127, 128, 129)  # of the algorithms' blocks
FAR_EDGES = (200, 255, 256, 257)
FLOATS = ("f4", "f8", "c8", "c16")
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=-2), 3, axis=-1)[..., ::2, ::3],
    "negative": lambda a: a[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "read-only": lambda a: np.broadcast_to(a, a.shape),
}
# Condition numbers stay where a factorization cannot break down by rounding: then exceptions are unambiguous.
CONDITIONS = {"f": (1e1, 1e3), "d": (1e2, 1e7, 1e11)}
GENERAL = ("normal", "positive", "constant", "sparse", "graded rows", "graded columns", "conditioned", "near identity")
# Powers of ten that all elements are multiplied by; the least makes subnormal numbers.
SCALES = {"f": (0, 0, 0, 5, -5, 15, -15, -39), "d": (0, 0, 0, 10, -10, 75, -75, 150, -150, -309)}


@dataclass(frozen=True)
class Case:
    """What one call is made of. Sizes, dtypes and layouts are of the operands; a generator reads what it needs."""

    row: str
    engine: str  # "host", "forced" or "simulator"
    sizes: tuple[int, int, int]
    batch: tuple[int, ...]
    dtypes: tuple[str, str]
    layouts: tuple[str, str]
    family: int
    scales: tuple[int, int]
    option: int
    seed: int
    hardest: float = np.inf  # condition number that a generator allows

    @cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @cached_property
    def rest(self) -> list[int]:
        return [self.option]

    def of(self, *choices):
        """One of the choices; calls of one generator choose independently, by the digits of the case's option."""
        self.rest[0], at = divmod(self.rest[0], len(choices))
        return choices[at]

    def changed(self, **fields) -> Case:
        """The case with other fields; random numbers and choices go on where they are."""
        new = dataclasses.replace(self, **fields)
        new.__dict__.update(rng=self.rng, rest=self.rest if "option" not in fields else [new.option])
        return new

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.dtypes[0])

    def kind(self, which: int = 0) -> str:
        return "f" if np.dtype(self.dtypes[which]).char in "fFe" else "d"

    def scale(self, which: int = 0) -> float:
        scales = SCALES[self.kind(which)]
        return 10.0 ** scales[self.scales[which] % len(scales)]

    def finish(self, a: np.ndarray, which: int = 0, scaled: bool = True) -> np.ndarray:
        """``a`` in the operand's dtype, size and layout; integers up to 20 (of bool, a third is true)."""
        dtype = np.dtype(self.dtypes[which])
        if dtype.kind in "iub":
            largest = np.abs(a).max(initial=0) or 1
            a = np.rint(np.abs(a) / largest * 20 if dtype.kind == "u" else a.real / largest * 20)
            a = a > 5 if dtype.kind == "b" else a.real
        elif scaled and dtype != "f2":
            a = a * self.scale(which)
        if dtype.kind != "c":
            a = a.real
        return LAYOUTS[self.layouts[which]](a.astype(dtype))

    def normal(self, *shape: int, which: int = 0) -> np.ndarray:
        """Normally distributed, in the wide dtype of the operand's kind."""
        g = self.rng.standard_normal((*self.batch, *shape))
        return g + 1j * self.rng.standard_normal(g.shape) if np.dtype(self.dtypes[which]).kind == "c" else g

    def general(self, m: int, n: int, which: int = 0) -> np.ndarray:
        """A matrix (m, n) of the case's family."""
        a, family = self.normal(m, n, which=which), GENERAL[self.family % len(GENERAL)]
        steep = 2.0 if self.kind(which) == "f" else 8.0
        if family == "positive":
            a = np.abs(a)
        elif family == "constant":
            a = np.full_like(a, 1.5) + 2.0**-6 * a
        elif family == "sparse":
            a = a * (self.rng.uniform(size=a.shape) < 0.2) + np.eye(m, n)
        elif family == "graded rows":
            a = a * 10.0 ** self.rng.uniform(-steep, steep, (m, 1))
        elif family == "graded columns":
            a = a * 10.0 ** self.rng.uniform(-steep, steep, n)
        elif family == "conditioned":
            u, _, v = np.linalg.svd(a, full_matrices=False)
            a = (u * np.geomspace(1, 1 / self.condition, min(m, n))) @ v if min(m, n) else a
        elif family == "near identity":
            a = np.eye(m, n) + 1e-3 * a
        return a

    @property
    def condition(self) -> float:
        return min(CONDITIONS[self.kind()][self.seed % len(CONDITIONS[self.kind()])], self.hardest)

    def definite(self, n: int, which: int = 0) -> np.ndarray:
        """A Hermitian positive-definite matrix; of every other family with rows and columns graded by 12 decades."""
        a = self.normal(n, n, which=which)
        if self.dtype.kind in "iub":
            return np.eye(n) + np.ones((n, n)) / 20
        q = np.linalg.qr(a)[0]
        a = (q * np.geomspace(1, 1 / self.condition, n)) @ q.conj().swapaxes(-1, -2) if n else a
        if self.family % 4 == 1:
            d = 10.0 ** self.rng.uniform(-1, 1, n) if self.kind() == "f" else 10.0 ** self.rng.uniform(-6, 6, n)
            a = a * d * d[:, np.newaxis]
        return a + a.conj().swapaxes(-1, -2)

    def hermitian(self, n: int) -> np.ndarray:
        """A Hermitian matrix of one of the families that break eigensolvers; of single precision without two."""
        families = [f for f in HERMITIAN if self.kind() == "d" or f not in ("tiny", "huge")]
        a = hermitian(families[self.family % len(families)], n, self.dtype, self.seed) if n else np.empty((0, 0))
        return np.broadcast_to(a, (*self.batch, n, n)).copy()


def cases(row, dtypes, engines, dear: int):
    """Cases of a row, as hypothesis draws them; of one in ``dear`` seeds also those that take long, of 0 none."""
    small = st.sampled_from(EDGES[:7])
    size = st.one_of(small, small, st.sampled_from(EDGES + FAR_EDGES * bool(dear)))
    pair = st.integers(0, 99)
    drawn = st.builds(
        Case,
        row=st.just(row),
        engine=st.sampled_from(engines),
        sizes=st.tuples(size, size, size),
        batch=st.sampled_from([(), (), (), (1,), (3,), (2, 2), (0,)]),
        dtypes=st.tuples(st.sampled_from(dtypes), st.sampled_from(dtypes)),
        layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
        family=st.integers(0, 27),
        scales=st.tuples(pair, pair),
        option=st.integers(0, 9999),
        seed=st.integers(0, 999),
    )
    return drawn.map(lambda case: fitted(case, dear and case.seed % dear == 0))


def fitted(case: Case, dear: bool) -> Case:
    """The case with sizes that its engine can take in a test: the simulator runs instructions one by one."""
    engine = case.engine if dear or case.engine != "simulator" else "forced"
    most = 20 if engine == "simulator" else 32 if case.batch else max(EDGES + FAR_EDGES * dear)
    return dataclasses.replace(case, engine=engine, sizes=tuple(min(n, most) for n in case.sizes))
