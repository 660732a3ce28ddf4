"""Shapes and dtypes of the outputs of each kernel, so that a runtime allocates them without tracing the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from trnpy._nki.kernels.shared.parameters import TILE, lower_blocks

Outputs = tuple[tuple[tuple[int, ...], str], ...]  # shapes and names of dtypes

FLOAT32, BFLOAT16, INT32 = "float32", "bfloat16", "int32"


def outputs(kernel: str, /, *operands: Any, **parameters: Any) -> Outputs:
    """The outputs of a launch of ``kernel``: one tensor, or a tuple of several.

    Only ``shape`` and ``dtype`` of an operand are read; operands that are omitted are None.
    """
    return TABLE[kernel](*operands, **parameters)


def _turned(shape: tuple[int, ...], rows: bool) -> tuple[int, ...]:
    return shape if rows else shape[::-1]


def _matmul(a: Any, b: Any, *_: Any, a_rows: bool = True, b_rows: bool = True, **__: Any) -> Outputs:
    return (((_turned(a.shape, a_rows)[0], _turned(b.shape, b_rows)[1]), FLOAT32),)


def _abs_bound(*_: Any, **__: Any) -> Outputs:
    return (((TILE, 1), FLOAT32),)


def _batched_matmul(a: Any, b: Any, a_rows: bool = True, b_rows: bool = True, **_: Any) -> Outputs:
    batch, m, n = max(a.shape[0], b.shape[0]), _turned(a.shape[1:], a_rows)[0], _turned(b.shape[1:], b_rows)[1]
    return (((batch, m, n), FLOAT32),)


def _syrk(a: Any, *_: Any, a_rows: bool = True, **__: Any) -> Outputs:
    m = _turned(a.shape, a_rows)[0]
    return (((m, m), FLOAT32),)


def _trsm(a: Any, b: Any, *_: Any, **__: Any) -> Outputs:
    return ((b.shape, FLOAT32),)


def _axpby(x: Any, *_: Any, form: str = FLOAT32) -> Outputs:
    return ((x.shape, form),)


def _transpose(x: Any, **_: Any) -> Outputs:
    return ((x.shape[::-1], _name(x.dtype)),)


def _name(dtype: np.dtype) -> str:
    """The name of an operand's dtype; in a dry run an untyped 2-byte dtype represents bfloat16."""
    return BFLOAT16 if dtype.kind == "V" else dtype.name


def _digits_split(x: Any, width: int, places: tuple[int, ...], turned: bool = False, packed: bool = False) -> Outputs:
    rows, columns, digits = x.shape[0], x.shape[1] // width, len(places)
    shape = (rows, digits * columns) if packed else (digits, columns, rows) if turned else (digits, rows, columns)
    return ((shape, BFLOAT16),)


def _float64_digits(x: Any, top: Any = None, by_rows: bool = True, digits: int = 7, batch: int = 1) -> Outputs:
    rows, columns = x.shape[0], x.shape[1] // 2
    found: Outputs = (
        ((digits, columns, rows) if by_rows else (digits, rows, columns), BFLOAT16),
        ((rows, columns), BFLOAT16),
        ((rows, 1) if by_rows else (batch, columns), INT32),
    )
    return found if top is None else found[:2]


def _float64_round(v: Any, *_: Any, **__: Any) -> Outputs:
    _words, m, n = v.shape
    return (((m, 2 * n), INT32),)


def _float64_matmul(
    a: Any, b: Any = None, words: int = 3, m_tiles: int = 4, halved: bool = False, batch: int = 1,
    beside: bool = False, **_: Any,
) -> Outputs:  # fmt: skip
    m = a.shape[2] // batch if beside else a.shape[2]
    if b is not None:
        return (((words, batch * m, b.shape[2]), INT32),)
    return (((words, _packed(m, m_tiles * TILE, halved)), INT32),)


@functools.lru_cache(maxsize=1024)
def _packed(m: int, m_block: int, halved: bool) -> int:
    """Elements of the lower blocks of a square of order m."""
    _, height, _, width, start = lower_blocks(m, m_block, halved)[-1]
    return start + height * width


def _words_matmul(
    a: Any, b: Any, *_: Any, turned: tuple[bool, bool] = (False, False), words: int = 3, **__: Any
) -> Outputs:
    (_, m), (_, n) = factors(a, b, turned)
    return ((words, m, n), INT32), ((m, n), BFLOAT16), ((TILE, 3), FLOAT32)


def factors(a: Any, b: Any, turned: tuple[bool, bool]) -> tuple[tuple[int, int], tuple[int, int]]:
    """(k, m) and (k, n) of words_matmul's operands; operands in words may be transposed."""
    sides = ((a, turned[0], False), (b, turned[1], True))
    left, right = (
        x.shape[1:] if _name(x.dtype) != INT32 or across != below else x.shape[:0:-1] for x, across, below in sides
    )
    return left, right


def _words_sum(x: Any, y: Any, words: int = 3, **_: Any) -> Outputs:
    rows, columns = next(z.shape[1:] for z in (x, y) if len(z.shape) == 3)
    return ((words, rows, columns), INT32), ((rows, columns), BFLOAT16), ((TILE, 2), FLOAT32)


def _polynomial_sign(x: Any, coefficients: Any) -> Outputs:
    return (x.shape, FLOAT32), ((TILE, 2), FLOAT32)


def _projected_matrix(h: Any, q: Any) -> Outputs:
    r = q.shape[1]
    return ((r, r), FLOAT32), ((TILE, 2), FLOAT32)


def _orthonormal_polar(h: Any, operator: Any, omega: Any, *_: Any, **__: Any) -> Outputs:
    n, r = omega.shape
    return ((n, r), FLOAT32), ((r, r), FLOAT32), ((TILE, 2), FLOAT32)


def _jacobi_sweep(a: Any, w: Any, order: Any) -> Outputs:
    return (a.shape, FLOAT32), (w.shape, FLOAT32)


def _ao_to_mo(g: Any, left: Any, right: Any, words: tuple[int, int] = (3, 3), **_: Any) -> Outputs:
    rows, nao = g.shape[-2:]
    shape = rows // nao * left.shape[-1], right.shape[-1]
    return ((shape, FLOAT32),) if len(g.shape) == 2 else (((words[1], *shape), INT32),)


def _mp2_energy(a: Any, gaps: Any, units: Any, cells: Any, others: Any = None, *_: Any, **__: Any) -> Outputs:
    pairs = 0 if others is None else others.shape[1]
    rows = 1 + cells.shape[1] + (1 + pairs if pairs else 0)
    return (((rows, TILE, 6), FLOAT32),)


def _schwarz_screened_spmm(a: Any, b: Any, counts: Any, words: int = 3, **_: Any) -> Outputs:
    shape = a.shape[-1], b.shape[-1]
    return (((words, *shape), INT32),) if len(a.shape) == 3 else ((shape, FLOAT32),)


def _bsr_spmm(
    tiles: Any, x: Any, left_at: Any, right_at: Any, length: int, digits: int = 0, words: int = 3, least: bool = False,
    **_: Any,
) -> Outputs:  # fmt: skip
    n, rows = x.shape[1] // max(digits, 1), right_at.shape[1] // length * TILE
    return (((words, rows, n), INT32),) if digits else (((TILE, 1) if least else (rows, n), FLOAT32),)


def _csr_spmm(values: Any, row_of: Any, column_of: Any, x: Any, length: int) -> Outputs:
    return (((values.shape[1] // length * TILE, x.shape[1]), FLOAT32),)


def _cg_iterations(
    tiles: Any, column_of: Any, row_of: Any, first_row: Any, x: Any, *_: Any, most: int = 32
) -> Outputs:  # fmt: skip
    return (x.shape, FLOAT32), (x.shape, FLOAT32), (x.shape, FLOAT32), ((TILE, 1), FLOAT32), ((1, most), FLOAT32)


def _gmres_steps(tiles: Any, column_of: Any, row_of: Any, first_row: Any, r: Any, *_: Any, most: int = 20) -> Outputs:
    return (r.shape, FLOAT32), (r.shape, FLOAT32), ((1, most), FLOAT32)


def _exchange(rows: Any, group: Any) -> Outputs:
    return ((rows.shape, _name(rows.dtype)),)


def _sums(a: Any, b: Any) -> Outputs:
    return (((TILE, b.shape[1]), FLOAT32),)


def _answers(times: int) -> Callable[..., Outputs]:
    """The outputs of a self-test that returns ``times`` results for each row, in the dtype of its operand."""
    return lambda x, *_: (((times * x.shape[0], x.shape[1]), _name(x.dtype)),)


def _sums_of_loops(a: Any, b: Any) -> Outputs:
    return (((2 * a.shape[0], TILE * b.shape[1]), FLOAT32),)


def _byte_reads(x: Any, width: int) -> Outputs:
    return (((2 * TILE, x.shape[1] // width), BFLOAT16),)


TABLE: Mapping[str, Callable[..., Outputs]] = MappingProxyType(
    {
        "matmul": _matmul, "abs_bound": _abs_bound, "batched_matmul": _batched_matmul, "syrk": _syrk, "trsm": _trsm,
        "axpby": _axpby, "transpose": _transpose, "digits_split": _digits_split,
        "float64_digits": _float64_digits, "float64_round": _float64_round, "float64_matmul": _float64_matmul,
        "words_matmul": _words_matmul, "words_sum": _words_sum,
        "polynomial_sign": _polynomial_sign, "orthonormal_polar": _orthonormal_polar, "jacobi_sweep": _jacobi_sweep,
        "projected_matrix": _projected_matrix, "cg_iterations": _cg_iterations, "gmres_steps": _gmres_steps,
        "bsr_spmm": _bsr_spmm, "bsr_transpose_spmm": _bsr_spmm, "csr_spmm": _csr_spmm,
        "ao_to_mo": _ao_to_mo, "mp2_energy": _mp2_energy,
        "schwarz_screened_spmm": _schwarz_screened_spmm, "exchange": _exchange,
        "probes.exact_sums": _sums, "probes.float32_products": _sums, "probes.rounding": _answers(2),
        "probes.integer_sums": _answers(1), "probes.byte_reads": _byte_reads, "probes.denormals": _answers(2),
        "probes.remainders": _answers(1), "probes.transposes": _answers(1), "probes.repeated_rows": _answers(1),
        "probes.register_offsets": _answers(1), "probes.sums_of_loops": _sums_of_loops,
    }
)  # fmt: skip
