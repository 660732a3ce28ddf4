"""The cost of a call: the dry engine runs the algorithm on shapes alone and counts launches, transfers, host work."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from nkisim.hardware import EFFICIENCY, FLOAT64_PASSES, TRN2, Hardware
from trnpy._engine import abstract_functions as _functions  # noqa: F401  # registers NumPy's functions for stand-ins
from trnpy._engine.abstract_arrays import TWO_BYTES, Count, Outline, StandIn, new, stand_ins_of
from trnpy._engine.device import DeviceEngine
from trnpy._engine.engines import Engine
from trnpy._engine.launch_counts import Tally
from trnpy._engine.multicore import Cores
from trnpy._engine.precision import Facts
from trnpy._engine.proof.engine import Proving
from trnpy._engine.tuning import Tuning
from trnpy._nki.kernels.chem.mp2_energy_reference import operations as mp2_operations
from trnpy._nki.kernels.outputs import factors, outputs
from trnpy._nki.kernels.spectra.jacobi_sweep_reference import HALF
from trnpy._nki.runtime import Buffer, LaunchCounters, Operand, fetched
from trnpy._settings.host_steps import BESIDE, HIDDEN
from trnpy._settings.policy import Policy, _own

TILE = 128
JACOBI_PAIR = 2.9e9 * FLOAT64_PASSES  # bfloat16 operations in the time of a pair of blocks: 1.33 ms, modelled on trn2

# Lower estimates, modelled on trn2 (test_bsr_spmm, test_csr_spmm): for a tile and for a row of tiles, in one format
# and with digits, whose carries end each row; and for 128 gathered rows, whose descriptors GpSimd writes.
TILE_S, ROW_S = 0.6e-6, 1.1e-6
DIGIT_TILE_S, DIGIT_ROW_S = 1.4e-6, 6e-6
GROUP_S, GROUP_COLUMNS = 1.9e-6, 1024
# For a solver step (test_krylov): per tile of 64 KiB, and for its dot products and updates.
SOLVER_TILE_S, VECTOR_S = 0.20e-6, 15e-6
NUMBER_S = 0.62e-9  # per float64 number that is split into digits (test_float64_digits)
RESULT_S = 0.80e-9  # per result that is rounded to float64 (test_float64_round)
# Of mp2_energy, for 128 rows of T: what VectorE and the transfers add to the products, and in float32 a third of that
# (test_mp2_energy).
ENERGIES_S = 8.5e-6
# Both in rows of 512: shorter rows are as slow as rows with so many more elements; and the scales of the columns of a
# matrix of a stack take MATRIX_S and a tenth of the rest.
STACKED_WIDTH, MORE_ELEMENTS, MORE_RESULTS, MATRIX_S = 512, 124, 96, 6e-6
KEPT_FROM = 2  # uses of an array after which an engine caches its forms


# --- what kernels compute ---------------------------------------------------------------------------------------------

Work = tuple[str, float]  # the format that is multiplied, and the number of operations


def _form(x: Any) -> str:
    return "bfloat16" if x.dtype == TWO_BYTES else str(x.dtype.name)


def _matmul(a: Any, b: Any, *_: Any, a_rows: bool = True, b_rows: bool = True, **__: Any) -> Work:
    return _form(a), 2.0 * math.prod(a.shape) * b.shape[1 if b_rows else 0]


def _batched_matmul(a: Any, b: Any, *_: Any, **__: Any) -> Work:
    (batch, k, n), m = b.shape, a.shape[1]
    return _form(a), 2.0 * batch * m * k * n


def _syrk(a: Any, *_: Any, a_rows: bool = True, **__: Any) -> Work:
    return _form(a), 1.0 * math.prod(a.shape) * a.shape[0 if a_rows else 1]


def _trsm(a: Any, b: Any, *_: Any, **__: Any) -> Work:
    return "float32", 1.0 * len_of(a) * math.prod(b.shape)


def _moved(*_: Any, **__: Any) -> Work:
    """The work of kernels that multiply nothing."""
    return "float32", 0.0


def _by_rows(count: int, rows: int, columns: int, more: int) -> float:
    """Elements of ``count`` matrices whose rows are processed by tiles, in rows of STACKED_WIDTH."""
    chunks = -(-columns // STACKED_WIDTH)
    return count * -(-rows // TILE) * TILE * (columns + more * chunks) * STACKED_WIDTH / (STACKED_WIDTH + more)


def _float64_digits(x: Any, *_: Any, batch: int = 1, **__: Any) -> Work:
    seconds = NUMBER_S * _by_rows(batch, x.shape[0] // batch, x.shape[1] // 2, MORE_ELEMENTS)
    return "float32", _at_least(0.0, "float32", seconds if batch == 1 else 1.1 * seconds + MATRIX_S * batch)


def _float64_round(v: Any, *_: Any, batch: int = 1, **__: Any) -> Work:
    seconds = RESULT_S * _by_rows(batch, v.shape[1] // batch, v.shape[2], MORE_RESULTS)
    return "float32", _at_least(0.0, "float32", seconds)


def _float64_matmul(a: Any, b: Any = None, *_: Any, **__: Any) -> Work:
    digits, rows, m = a.shape
    pairs = digits * (digits + 1) / 2
    return "bfloat16", (1.0 * m if b is None else 2.0 * b.shape[2]) * pairs * m * rows


def _words_matmul(
    a: Any, b: Any, *_: Any, turned: tuple[bool, bool] = (False, False), digits: int = 7, **__: Any
) -> Work:
    (k, m), (_k, n) = factors(a, b, turned)
    rows = -(-m // TILE) * TILE  # a tile with fewer rows takes TensorE just as long (test_words_matmul)
    return "bfloat16", (digits * (digits + 1) + 2.0) * rows * k * n  # one additional product, of magnitudes


def _polynomials(rows: int, columns: int, steps: int) -> float:
    """Operations of ``steps`` odd quintic polynomials of a matrix, applied in sequence."""
    return steps * 2.0 * columns * columns * (2 * rows + columns)


def _polynomial_sign(x: Any, coefficients: Any) -> Work:
    return "float32", _polynomials(x.shape[0], x.shape[1], len_of(coefficients))


def _projected_matrix(h: Any, q: Any) -> Work:
    n, r = q.shape
    return "float32", 2.0 * n * r * (n + r + r)


def _orthonormal_polar(
    h: Any, operator: Any, omega: Any, coefficients: Any, polish: Any, complement: bool = False
) -> Work:
    n, r = omega.shape
    flops = _polynomials(n, r, len_of(coefficients) + len_of(polish)) + 2.0 * n * r * (n + r + r)
    return "float32", flops + 2 * 2.0 * n * r * operator.shape[1] * (2 if complement else 1)


def _jacobi_sweep(a: Any, w: Any, order: Any) -> Work:
    pairs = (len_of(a) // HALF + 1) * len_of(a) // (2 * HALF) + 1
    return "bfloat16", pairs * JACOBI_PAIR


def _ao_to_mo(g: Any, left: Any, right: Any, **_: Any) -> Work:
    nleft, nright = left.shape[-1], right.shape[-1]
    if len(g.shape) == 2:
        rows, nao = g.shape
        return "float32", 2.0 * rows * nleft * nao + 2.0 * rows // nao * nleft * nao * nright
    (s, rows, nao), t = g.shape, len_of(right)
    stack = rows // nao
    return "bfloat16", s * (s + 1.0) * rows * nleft * nao + t * (t + 1.0) * stack * nleft * nao * nright


def _mp2_energy(
    a: Any, gaps: Any, units: Any, cells: Any, others: Any = None, *_: Any, span: int = 128, **__: Any
) -> Work:
    digits, naux, _columns = a.shape
    count, pairs = cells.shape[1], 0 if others is None else others.shape[1]
    squares, tiles, form = count + 2 * pairs, -(-span // TILE), _form(a)
    padded = tiles * TILE / span  # a tile with fewer rows takes TensorE just as long
    products_s = padded * mp2_operations(digits, naux, span, squares) / TRN2.flops_per_s[form]
    return form, _at_least(0.0, form, products_s + squares * tiles * (ENERGIES_S if digits > 1 else ENERGIES_S / 3))


def _schwarz_screened_spmm(a: Any, b: Any, *_: Any, **__: Any) -> Work:
    (k, m), n, digits = a.shape[-2:], b.shape[-1], a.shape[0] if len(a.shape) == 3 else 1
    return _form(a), digits * (digits + 1.0) * m * n * k


def _at_least(flops: float, form: str, seconds: float) -> float:
    """``flops``, or the number that takes ``seconds`` on trn2 if that is larger."""
    return max(flops, seconds * TRN2.flops_per_s[form] * EFFICIENCY)


def _bsr_spmm(
    tiles: Any, x: Any, left_at: Any, right_at: Any, length: int, digits: int = 0, **_: Any
) -> Work:  # fmt: skip
    n, passes = x.shape[1] // max(digits, 1), digits * (digits + 1) / 2 if digits else 1.0
    count = right_at.shape[1]
    tile_s, row_s = (DIGIT_TILE_S, DIGIT_ROW_S) if digits else (TILE_S, ROW_S)
    seconds = tile_s * count + row_s * (count // length)
    return _form(tiles), _at_least(2.0 * passes * TILE * TILE * n * count, _form(tiles), seconds)


def _csr_spmm(values: Any, row_of: Any, column_of: Any, x: Any, length: int) -> Work:
    n, count = x.shape[1], values.shape[1]
    seconds = GROUP_S * count * max(1.0, n / GROUP_COLUMNS)
    return "float32", _at_least(2.0 * TILE * TILE * n * count, "float32", seconds)


def _solver(tiles: Any, m_tiles: Any, most: int) -> Work:
    """``most`` steps of an iteration, each with a product with the matrix and with the preconditioner."""
    count = sum(math.prod(x.shape) for x in (tiles, m_tiles) if x is not None) / TILE**2
    seconds = most * (SOLVER_TILE_S * count + VECTOR_S)
    return "float32", _at_least(2.0 * TILE * TILE * most * count, "float32", seconds)


def _cg_iterations(
    tiles: Any, column_of: Any, row_of: Any, first_row: Any, x: Any, r: Any, p: Any, rho: Any, limit: Any,
    m_tiles: Any = None, *_: Any, most: int = 32,
) -> Work:  # fmt: skip
    return _solver(tiles, m_tiles, most)


def _gmres_steps(
    tiles: Any, column_of: Any, row_of: Any, first_row: Any, r: Any, limit: Any, m_tiles: Any = None, *_: Any,
    most: int = 20,
) -> Work:  # fmt: skip
    return _solver(tiles, m_tiles, most)


def len_of(x: Any) -> int:
    return int(x.shape[0])


KERNELS: Mapping[str, Callable[..., Work]] = MappingProxyType(
    {
        "matmul": _matmul, "abs_bound": _matmul, "batched_matmul": _batched_matmul, "syrk": _syrk, "trsm": _trsm,
        "axpby": _moved, "transpose": _moved, "digits_split": _moved,
        "float64_digits": _float64_digits, "float64_round": _float64_round, "float64_matmul": _float64_matmul,
        "polynomial_sign": _polynomial_sign, "orthonormal_polar": _orthonormal_polar, "jacobi_sweep": _jacobi_sweep,
        "projected_matrix": _projected_matrix, "ao_to_mo": _ao_to_mo, "mp2_energy": _mp2_energy,
        "schwarz_screened_spmm": _schwarz_screened_spmm,
        "bsr_spmm": _bsr_spmm, "bsr_transpose_spmm": _bsr_spmm, "csr_spmm": _csr_spmm, "cg_iterations": _cg_iterations,
        "gmres_steps": _gmres_steps, "words_matmul": _words_matmul, "words_sum": _moved,
    }
)  # fmt: skip


class DryRuntime:
    """A runtime that only counts launches and transfers."""

    name = "dry"
    executes = False
    compiles = False
    parallel = False

    def __init__(self, hardware: Hardware, count: Count | None = None) -> None:
        self.hardware = hardware
        self.counters = LaunchCounters()
        self.products: dict[str, float] = defaultdict(float)
        self.count = count or Count()  # the host's work, which all cores of a call share
        self.hidden = [0.0, 0.0]  # bytes in and bytes out, while kernels run

    def put(self, array: Any) -> Buffer:
        self.counters.bytes_in += array.nbytes
        return Buffer(array if isinstance(array, np.ndarray) else None, array.shape, array.dtype)

    def get(self, buffer: Buffer) -> Any:
        self.counters.bytes_out += buffer.nbytes
        return new(buffer.shape, buffer.dtype, self.count)

    def part(self, buffer: Buffer, rows: slice, columns: slice, shape: tuple[int, int], unit: bool = False) -> Buffer:
        return Buffer(None, shape, buffer.dtype)

    def reshaped(self, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
        return Buffer(None, shape, buffer.dtype)

    def run(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        for x in operands:
            if isinstance(x, (StandIn, np.ndarray)):
                self.counters.bytes_in += x.nbytes
        form, flops = KERNELS[kernel](*operands, **parameters)
        self.counters.launches[kernel] += 1
        self.products[form] += flops
        returned = outputs(kernel, *operands, **parameters)
        found = tuple(
            Buffer(None, shape, TWO_BYTES if form == "bfloat16" else np.dtype(form)) for shape, form in returned
        )
        return found if len(found) > 1 else found[0]

    def launch(self, kernel: str, /, *operands: Operand, **parameters: Any) -> Any:
        return fetched(self, self.run(kernel, *operands, **parameters))

    def beside(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the ``work`` of another thread immediately. Its transfers and checks are counted as hidden by launches."""
        counted, before = self._moved(), dict(self.count.work)
        work()
        self.hidden = [h + after - b for h, b, after in zip(self.hidden, counted, self._moved(), strict=True)]
        for key in [key for key in self.count.work if key[0] in HIDDEN]:
            more = self.count.work[key] - before.get(key, 0.0)
            self.count.work[key] -= more
            self.count.work[BESIDE + key[0], *key[1:]] += more
        return lambda: None

    def _moved(self) -> tuple[float, float]:
        return self.counters.bytes_in, self.counters.bytes_out

    def reset(self) -> None:
        self.counters = LaunchCounters()
        self.hidden = [0.0, 0.0]
        self.products.clear()
        self.count.work.clear()


def tally(runtimes: Sequence[DryRuntime]) -> Tally:
    """The work of a call on ``runtimes``, one for each core. The first does the most, while others do theirs."""
    first, launched = runtimes[0], sum((r.counters.launches for r in runtimes), Counter())
    busy = sum(any(r.products.values()) for r in runtimes)
    return Tally(
        tuple(sorted(launched.items())), tuple((f, n) for f, n in sorted(first.products.items()) if n),
        sum(r.counters.bytes_in for r in runtimes), sum(r.counters.bytes_out for r in runtimes),
        tuple(sorted((key, n) for key, n in first.count.work.items() if n)), max(1, busy),
        (sum(r.hidden[0] for r in runtimes), sum(r.hidden[1] for r in runtimes)),
    )  # fmt: skip


def run(
    make: Callable[..., Any], shapes: tuple[Any, Any], hardware: Hardware, policy: Policy,
    kept: tuple[tuple[int, bool], ...] = (),
) -> Tally:  # fmt: skip
    """The cost of ``make(arrays, options).run(engine)``, with shapes and outlines replaced by abstract arrays.

    The engine has the number of cores that ``policy`` allows. ``kept``: the indices of device-resident arrays, and
    whether they are trusted without comparison.
    Raises Unsupported and Refused as the run does.
    """
    count = Count()
    runtimes = [DryRuntime(hardware, count) for _ in range(max(policy.cores, 1))]
    made: list[StandIn] = []
    problem = make(*stand_ins_of(shapes, made, count))
    outlines = [o for o in shapes[1] if isinstance(o, Outline)]
    kept = () if outlines else kept  # an outline knows which of its forms are device-resident
    resident = bool(kept) or any(problem.method in o.resident for o in outlines)
    engines = [DeviceEngine(r, Tuning(), Facts(), r.beside) for r in runtimes]
    engine = Proving(engines[0] if len(engines) == 1 else cast(Engine, Cores(engines)))
    token = _own.set(policy)
    try:
        with np.errstate(all="ignore"):
            for _ in range(KEPT_FROM if resident else 0):  # afterwards the engine has the cached forms
                problem.run(engine)
            for runtime in runtimes:
                runtime.reset()
            if kept:
                problem = make(*stand_ins_of(shapes, _others(shapes, made, kept, count), count))
            problem.run(engine)
    finally:
        _own.reset(token)
    return tally(runtimes)


def _others(
    shapes: tuple[Any, Any], made: list[StandIn], kept: tuple[tuple[int, bool], ...], count: Count
) -> list[StandIn]:
    """New abstract arrays for all arrays except those in ``kept``."""
    others: list[StandIn] = []
    stand_ins_of(shapes, others, count)
    for index, trusted in kept:
        at = shapes[0][index].at
        others[at] = made[at]
        others[at].trusted = trusted
    return others
