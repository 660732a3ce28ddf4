"""Integral transformations in the kernel ao_to_mo: float64 as digits (integer slices), both halves in one launch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnpy._call.dispatch import ALLOWED_ERROR, Reason, Unsupported
from trnpy._engine import digits as _digits
from trnpy._engine.abstract_arrays import priced, usual
from trnpy._engine.engines import BY_DIGITS, Engine, Held
from trnpy._engine.precision import eps
from trnpy._engine.proof.weights import probe
from trnpy._nki.kernels.chem.ao_to_mo_reference import HEADROOM, LARGEST
from trnpy._nki.kernels.products.float64_matmul_reference import BLOCKS
from trnpy._nki.kernels.shared.parameters import TILE, TILE_N, for_digits
from trnpy._settings.policy import current_policy
from trnpy.chem._pairs import rung
from trnpy.chem._rows import REAL, Transform, norm, relative

FIRST, SECOND = 7, 8  # digits of operands of the first and the second half; the second has one more for long sums
HOST_BYTES = 2 * 8  # of the host's workspace for each integral: as unpacked float64 and as a word of digits
RESULT_BYTES = 3 * 8  # of the host's workspace for each transformed integral: its 32-bit limbs and the float64 result
PIECE = 1 << 16  # integrals that are split into digits at a time
WORD_BYTES = 8  # of an integral in a host-device transfer
DEVICE_BYTES = 2 * FIRST + WORD_BYTES  # of device memory for each integral


Sent = tuple[Held, np.ndarray]  # digits on the device, and the exponents of the columns


def by_kernel(engine: Engine, memory: float) -> Transform | None:
    """Transformations in the kernel, each checked with random signs.

    None unless the engine's format is float32 or digits.
    """
    form = engine.format(REAL)
    if form not in (BY_DIGITS, "float32"):
        return None
    exact, precision = form == BY_DIGITS, current_policy().products

    sent: dict[tuple[int, int], tuple[Sent, Sent]] = {}  # by identity of the coefficients, which outlive this call

    def run(stack: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if exact:
            key = id(left), id(right)
            if key not in sent:
                sent[key] = _put(engine, left, FIRST), _put(engine, right, SECOND)
            out = _digit_launch(engine, stack, left, *sent[key])
        else:
            out = _single_launch(engine, stack, left, right)
        _check(stack, left, right, out, precision)
        return out.transpose(1, 2, 0)

    return Transform(run, lambda left, right: _matrices(engine, left.shape, right.shape[1], memory))


def _matrices(engine: Engine, c_left: tuple[int, ...], nright: int, memory: float) -> int:
    """The number of matrices (nao, nao) that one launch transforms; Unsupported if not even one fits."""
    nao, nleft = c_left
    wide = max(nao * nao * WORD_BYTES, 3 * nao * nleft, SECOND * nao * nleft, 3 * nleft * nright)
    size = min(
        int(memory // (HOST_BYTES * nao * nao + RESULT_BYTES * nleft * nright)),
        LARGEST // wide,
        int(engine.room // (DEVICE_BYTES * nao * nao + 28 * nao * nleft + 12 * nleft * nright)),
        BLOCKS // (-(-nao // TILE) * -(-nleft // TILE_N)),
        BLOCKS * TILE // (nleft * -(-nright // TILE_N)),
    )
    if size < 1:
        raise Unsupported(Reason.LAYOUT, f"one matrix of {nao} atomic orbitals does not fit a launch")
    return max(n for n in range(1, size + 1) if rung(n) == n) if size < TILE else size // TILE * TILE


def _single_launch(engine: Engine, stack: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Transformed integrals (n, nleft, nright), computed in float32."""
    g = np.zeros_like(stack, np.float32, shape=(rung(len(stack)), *stack.shape[1:]))
    with np.errstate(over="ignore"):  # the check of the result finds an infinity
        g[: len(stack)] = stack
        orbitals = [x.astype(np.float32, order="C", copy=False) for x in (left, right)]
    out = engine.get(engine.kernel("ao_to_mo", g.reshape(-1, g.shape[2]), *orbitals))
    out = out.reshape(len(g), left.shape[1], right.shape[1])
    found: np.ndarray = out[: len(stack)].astype(REAL)
    return found


def _put(engine: Engine, orbitals: np.ndarray, digits: int) -> Sent:
    """Split coefficients into digits on the device, with one exponent for each orbital."""
    octets, places, shift = _digits.link_bytes(orbitals, digits, 0)
    return _put_words(engine, octets, len(orbitals), places), shift


def _put_words(engine: Engine, octets: np.ndarray, rows: int, places: tuple[int, ...]) -> Held:
    flat = octets.reshape(rows, -1)
    held: Held = engine.kernel("digits_split", flat, width=octets.shape[-1], places=places, turned=False)
    return held


def _split_price(stack: np.ndarray, n: int) -> tuple[float, tuple[Any, ...]]:
    octets = (n, math.prod(stack.shape[1:]), 8), np.dtype(np.uint8)
    return stack.size, (octets, tuple(range(FIRST - 1, -1, -1)), ((n, 1), np.dtype(np.int64)), ((n, 1), REAL))


@priced("split", _split_price)
def _split(stack: np.ndarray, n: int) -> tuple[np.ndarray, tuple[int, ...], np.ndarray, np.ndarray]:
    """Bytes of the digits of ``n`` matrices, the last of them zero; places; exponents; largest norms of columns."""
    nao = stack.shape[1]
    raw = np.full((n, nao * nao, 8), _digits.OFFSET, np.uint8)
    shift, largest = np.zeros((n, 1), np.int64), np.zeros((n, 1))
    step, places = max(1, PIECE // (nao * nao)), tuple[int, ...]()
    for some in (slice(i, min(i + step, len(stack))) for i in range(0, len(stack), step)):
        part = stack[some].reshape(-1, nao * nao)
        split = _digits.split(part, FIRST, 1)
        raw[some], shift[some], places = split.bytes(), split.shift, split.places
        integers = split.words[0].reshape(stack[some].shape).astype(REAL)
        largest[some, 0] = np.sqrt(np.einsum("Lmn,Lmn->Ln", integers, integers).max(axis=1))
    return raw, places, shift, largest


def _digit_launch(engine: Engine, stack: np.ndarray, left: np.ndarray, columns: Sent, others: Sent) -> np.ndarray:
    """Transformed integrals (n, nleft, nright) by exact products of digits.

    Each matrix and each orbital has one exponent.
    """
    n, nao = rung(len(stack)), stack.shape[1]  # padded with zeros to a shape bucket
    raw, places, shift, largest = _split(stack, n)
    first, second = for_digits(FIRST, engine.machine), for_digits(SECOND, engine.machine)
    unit = 8 * (2 * (min(FIRST, _digits.WORD) - 1) - (FIRST - 1))
    shift = shift + columns[1] - unit  # (n, nleft): exponents of the sums of the first half
    # Cauchy-Schwarz: |sum over m of g_mn c_mi| is at most the product of the norms of the integers for g and c.
    norms = largest * np.linalg.norm(np.ldexp(left, columns[1]), axis=0)
    bits = math.log2(max(float(usual(norms.max(), 0.0)) / 2.0**unit, 1.0)) + 0.1
    top = max(SECOND, math.ceil((bits + 1) / 8))
    if top > FIRST + HEADROOM:
        raise Unsupported(Reason.ACCURACY, f"sums of the first half may need {bits:.0f} bits")

    words = engine.kernel(
        "ao_to_mo", _put_words(engine, raw, n * nao, places), columns[0], others[0], top=top,
        words=(first.words, second.words), first_tiles=(first.m_tiles, first.k_tiles),
        second_tiles=(second.m_tiles, second.k_tiles),
    )  # fmt: skip
    half = shift - 8 * (top - _digits.WORD)  # exponents of the digits that the first half leaves
    out = _digits.assemble(engine.get(words), SECOND, half.reshape(-1, 1), others[1]).reshape(n, left.shape[1], -1)
    return out[: len(stack)]


def _check(stack: np.ndarray, left: np.ndarray, right: np.ndarray, out: np.ndarray, precision: str) -> None:
    """Raise Unsupported if the result times random signs differs from the host's result times the same signs."""
    signs = probe(right.shape[1], REAL)
    exact = left.T @ (stack @ (right @ signs))
    wrong = norm(out @ signs - exact)
    scale = norm(stack) * norm(left) * norm(right)
    allowed = ALLOWED_ERROR * max(stack.shape + right.shape) * eps(REAL, precision)
    if not relative(wrong, scale) <= allowed:  # true for NaN as well
        raise Unsupported(Reason.ACCURACY, f"a transformation of {stack.shape} is wrong by {wrong:.2g}")
