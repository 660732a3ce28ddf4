"""Every kernel of trnpy against every front end on every machine: ``python -m conformance nki --kernels ours``.

A launch is traced with operands just large enough for several blocks, edges and turns. It counts what a
compiler would refuse: errors of any rule, and warnings of the rules of the backend. Other warnings are advice about
speed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nkisim.chip.dialects import DIALECTS, PARSER, TRACER, Dialect
from nkisim.chip.strictness import BACKEND
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.lint.rules import Finding
from nkisim.run.launch import Specification
from trnpy._nki.kernels import located, source
from trnpy._nki.simulated import kernel

MACHINES = ("trn1", "trn2", "trn3")
I4, U1, BF16 = "int32", "uint8", "bfloat16"
SEVEN = (6, 5, 4, 3, 2, 1, 0)


@dataclass(frozen=True)
class Case:
    """One launch: specifications of the operands, None where one is left out, and keyword arguments."""

    operands: tuple[Any, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One kernel for one front end on one machine."""

    kernel: str
    nki: Dialect
    target: str
    found: tuple[Finding, ...]

    @property
    def shown(self) -> str:
        return "NO: " + " ".join(sorted({f"{f.severity}{f.rule:02d}" for f in self.found})) if self.found else "yes"


def _case(*operands: Any, **settings: Any) -> Case:
    """A case from operands given as shapes of float32, pairs of a shape and a dtype, or None."""
    found = []
    for x in operands:
        if x is None:
            found.append(None)
        else:
            shape, dtype = x if isinstance(x[0], tuple) else (x, "float32")
            found.append(Specification(shape, dtype))
    return Case(tuple(found), settings)


def _digits(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, BF16


def _integers(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, I4


TILES = {"m_tiles": 1, "n_tiles": 1, "k_tiles": 1}
ROWS = (_integers(1, 16), _integers(1, 16))
OPERATOR = ((3 * 8 * 128, 16 * 128), _integers(128, 3), (128, 3), _integers(1, 3))
VECTOR, SCALAR = (128, 3), (128, 1)
SPARSE = (
    _case((16 * 128, 128), (640, 600), *ROWS, length=4),
    _case((16 * 128, 128), (640, 600), _integers(1, 4), ROWS[1], length=4, least=True),
    _case((16 * 128, 128), (640, 40), _integers(1, 2048), _integers(1, 4096), length=2),
    _case(_digits(16 * 128, 7 * 128), _digits(640, 7 * 40), *ROWS, length=8, digits=7),
)

CASES: Mapping[str, tuple[Case, ...]] = {
    "abs_bound": (
        _case(_digits(300, 260), _digits(260, 700), **TILES),
        _case(_digits(3 * 140, 130), _digits(3 * 130, 40), batch=3, **TILES),
        _case(_digits(900 * 20, 16), _digits(900 * 16, 9), batch=900, **TILES),
    ),
    "ao_to_mo": (
        _case((3 * 140, 140), (140, 30), (140, 20)),
        _case(
            _digits(7, 3 * 140, 140), _digits(7, 140, 30), _digits(8, 140, 20), top=9, words=(3, 3),
            first_tiles=(1, 1), second_tiles=(1, 1),
        ),
    ),
    "axpby": (_case((1100, 1100), (1100, 1100), (1, 1), (1, 1)), _case(_digits(300, 300), form="float32")),
    "batched_matmul": (
        _case((9, 256, 130), (9, 130, 30)), _case((9, 130, 256), (1, 130, 30), a_rows=False),
        _case((100, 16, 16), (100, 16, 16)), _case((2, 600, 600), (2, 600, 600)),
    ),
    "bsr_spmm": SPARSE,
    "bsr_transpose_spmm": SPARSE,
    "cg_iterations": (
        _case(*OPERATOR, VECTOR, VECTOR, VECTOR, SCALAR, SCALAR, most=4),
        _case(*OPERATOR, VECTOR, VECTOR, VECTOR, SCALAR, SCALAR, *OPERATOR, most=4),
    ),
    "csr_spmm": (_case((128, 16), (128, 16), _integers(128, 16), (500, 600), length=4),),
    "float64_matmul": (
        _case(_digits(7, 700, 200), _digits(7, 700, 530), m_tiles=1, k_tiles=1),
        _case(_digits(7, 700, 200), None, m_tiles=1, k_tiles=1, halved=True),
        _case(_digits(5, 300, 40), _digits(5, 300, 30), wrap=True, words=2, m_tiles=1, k_tiles=1, batch=3),
        _case(_digits(7, 100, 3 * 140), _digits(7, 300, 30), m_tiles=1, k_tiles=1, batch=3, beside=True),
    ),
    "digits_split": (
        _case(((600, 4800), U1), width=8, places=SEVEN), _case(((600, 4800), U1), width=8, places=SEVEN, turned=True),
    ),
    "exchange": (_case(_integers(1, 1000), group=(0,)),),
    "float64_digits": (
        _case(_integers(300, 1400), by_rows=True), _case(_integers(300, 1400), by_rows=False),
        _case(_integers(130, 512), by_rows=False, digits=12), _case(_integers(300, 512), (300, 1), digits=4),
        _case(_integers(3 * 140, 300), by_rows=False, batch=3),
        _case(_integers(170 * 140, 80), by_rows=False, batch=170),
    ),
    "float64_round": (
        _case(_integers(3, 300, 700), (300, 1), (1, 700)), _case(_integers(4, 130, 600), (130, 1), (1, 600)),
        _case(_integers(2, 130, 600), (130, 1), (1, 600)),
        _case(_integers(3, 3 * 140, 70), (3 * 140, 1), _digits(2, 3 * 70), batch=3),
        _case(_integers(3, 600 * 30, 20), (600 * 30, 1), _digits(2, 600 * 20), batch=600),
    ),
    "gmres_steps": (
        _case(*OPERATOR, VECTOR, SCALAR, most=4), _case(*OPERATOR, VECTOR, SCALAR, *OPERATOR, most=4),
    ),
    "jacobi_sweep": (_case((256, 256), (256, 256), _integers(4, 6)),),
    "matmul": (
        _case((300, 700), (700, 600), **TILES), _case((700, 300), (600, 700), a_rows=False, b_rows=False, **TILES),
        _case(_digits(300, 700), _digits(700, 600), **TILES),
        _case((300, 300), (300, 600), (1, 1), (300, 600), (1, 1), **TILES),
    ),
    "mp2_energy": (
        _case(_digits(4, 300, 600), (3, 600), (1, 5), _integers(2, 3), _integers(4, 2), span=150),
        _case((1, 300, 600), (3, 600), (1, 5), _integers(2, 3), span=150, exchange=False),
        _case(
            _digits(4, 300, 600), (3, 600), (1, 5), _integers(2, 3), _integers(4, 2), span=150, repeats=False,
            biases=False, offsets=False,
        ),
    ),
    "orthonormal_polar": (
        _case((160, 160), (160, 160), (160, 96), (4, 3), (2, 3)),
        _case((160, 160), (160, 64), (160, 96), (4, 3), (2, 3), complement=True),
    ),
    "polynomial_sign": (_case((160, 160), (4, 3)), _case((1100, 1100), (2, 3)), _case((300, 140), (1, 3))),
    "projected_matrix": (_case((300, 300), (300, 140)),),
    "probes.byte_reads": (_case(((128, 64), U1), width=4),),
    "probes.denormals": (_case((128, 64)),),
    "probes.exact_sums": (_case(_digits(256, 128), _digits(256, 64)),),
    "probes.float32_products": (_case((128, 128), (128, 64)),),
    "probes.integer_sums": (_case(_integers(128, 64), _integers(128, 64)),),
    "probes.register_offsets": (_case((5, 64)),),
    "probes.remainders": (_case((128, 64)),),
    "probes.repeated_rows": (_case((128, 64), _integers(1, 1)),),
    "probes.rounding": (_case((128, 64)),),
    "probes.sums_of_loops": (_case(_digits(3, 128 * 128), _digits(128, 64)),),
    "probes.transposes": (_case(_digits(128, 128)),),
    "schwarz_screened_spmm": (
        _case((512, 150), (512, 64), (1, 150), m_tiles=1, k_tiles=1),
        _case(_digits(7, 512, 150), _digits(7, 512, 64), (1, 150), m_tiles=1, k_tiles=1),
        _case((512, 150), (512, 64), (1, 150), m_tiles=1, k_tiles=1, repeats=False),
    ),
    "syrk": (
        _case((300, 200), tiles=1, k_tiles=1),
        _case((200, 300), (1, 1), (300, 300), (1, 1), a_rows=False, mirrored=False, tiles=1, k_tiles=1),
    ),
    "transpose": (_case((300, 700), m_tiles=1, n_tiles=1), _case(_digits(130, 200)), _case(_integers(130, 200))),
    "trsm": (_case((300, 300), (300, 40), (1, 1), tiles=1), _case((300, 300), (40, 300), right=True, tiles=1)),
    "words_matmul": (
        _case(
            _integers(3, 256, 200), _digits(8, 200, 640), _digits(256, 200), _digits(200, 640), tops=(9, 0), digits=8,
            m_tiles=1, k_tiles=1,
        ),
        _case(
            _integers(3, 200, 256), _integers(3, 640, 200), _digits(200, 256), _digits(640, 200), tops=(9, 8),
            turned=(True, True), rows=(False, False), digits=9, m_tiles=1, k_tiles=1,
        ),
    ),
    "words_sum": (
        _case(
            _integers(3, 256, 640), ((256, 640 * 16), U1), factors=(3, -1),
            places=((-1, *range(9)), (*range(9, 12), *range(7))), words=4,
        ),
    ),
}  # fmt: skip


def _in_source(name: str, nki: Dialect) -> frozenset[Finding]:
    return frozenset(lint_file(source(name), located(name)[1], (nki,)))


@functools.cache
def _in_launches(name: str, nki: Dialect, target: str) -> frozenset[Finding]:
    found: set[Finding] = set()
    for case in CASES[name]:
        found |= set(lint_launch(kernel(name), case.operands, dict(case.settings), target, "trace", nki))
    return frozenset(found)


def cell(name: str, nki: Dialect, target: str) -> Cell:
    """All findings for one kernel, front end and machine."""
    way = TRACER if nki == PARSER else nki  # what a parser refuses is found in the source already
    found = _in_source(name, nki) | _in_launches(name, way, target)
    counted = {f for f in found if f.severity == "E" or f.rule in BACKEND}
    return Cell(name, nki, target, tuple(sorted(counted)))


def cells(
    dialects: tuple[Dialect, ...] = DIALECTS, names: Iterable[str] | None = None,
    begun: Callable[[str], None] = lambda name: None,
) -> Iterator[Cell]:  # fmt: skip
    """One cell for each kernel, front end and machine; ``begun`` is called with each kernel's name before its cells."""
    for name in CASES if names is None else names:
        begun(name)
        for nki in dialects:
            for target in MACHINES:
                yield cell(name, nki, target)
