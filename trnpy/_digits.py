"""float64 matrices as integer digits of eight bits, and back: what the host does around bf16 products.

Ozaki's scheme I with a common exponent per row of A and column of B (Ootomo, Ozaki, Yokota, arXiv
2306.11975): A = 2^-sa sum_i D_i 256^(s-1-i) with digits in [-128, 127], which bf16 holds exactly; the
products of digits of one significance i + j = d are summed exactly in float32 over short enough blocks
of K. Errors and the choice of the number s of digits: shared/NUMERICS.md 1.2 and 1.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

BITS = 8  # of one digit: bf16's significand
BASE = 1 << BITS
DIGITS = 7  # 28 products: as accurate as dgemm wherever no exponent range hides inside a row
MOST_DIGITS = 12  # beyond it the host's own product is the cheaper one
WORD = 7  # digits in one int64: eight would leave no room to carry into
OFFSET = 0x80  # added to every byte: a byte minus 128 is a balanced digit
ACCUMULATOR = 24  # bits a float32 sum keeps exactly
TOLERANCE = 4.0  # u: of |A||B|, what a certified product may be off (NUMERICS 1.4: at most 2.86 measured)
BOUND_SLACK = 1.02  # the certificate's |A||B| is summed from truncated bf16


@dataclass(frozen=True, slots=True)
class Split:
    """Digits of a matrix: int64 words, most significant first, and the exponents that were taken out.

    words[0] holds the first WORD digits, words[1] the rest. a = (word0 + word1 256^-(s-WORD) ...) 2^-shift, with
    ``shift`` (rows, 1) or (1, columns).
    """

    words: tuple[np.ndarray, ...]
    shift: np.ndarray
    digits: int

    def planes(self) -> np.ndarray:
        """The digits themselves, most significant first: int8 (digits, rows, columns)."""
        parts = []
        for index, word in enumerate(self.words):
            count = min(WORD, self.digits - index * WORD)
            shifted = word.astype(np.uint64) + np.uint64(sum(OFFSET << (BITS * i) for i in range(8)))
            raw = shifted[..., np.newaxis].view(np.uint8)[..., :count]  # little-endian
            parts.append(np.moveaxis((raw ^ OFFSET).view(np.int8), -1, 0)[::-1])
        return np.concatenate(parts)


def _limit(digits: int) -> float:
    """The largest integer that balanced digits reach on both sides."""
    return 127.0 * (float(BASE) ** digits - 1) / (BASE - 1)


def split(a: np.ndarray, digits: int, axis: int) -> Split:
    """The first ``digits`` digits of finite float64 a (rows, columns), scaled along ``axis``: 1 by rows, 0 by columns.

    Exponents are integers throughout, so rows of denormals and of 1e300 scale exactly.
    """
    if not 1 <= digits <= MOST_DIGITS:
        raise ValueError(f"{digits} digits: expected 1 to {MOST_DIGITS}")
    first = min(digits, WORD)
    largest = np.abs(a).max(axis=axis, keepdims=True)
    limit_fraction, limit_exponent = np.frexp(_limit(first) * (1 - 2.0**-50))
    fraction, exponent = np.frexp(np.where(largest > 0, largest, 1.0))
    shift = (limit_exponent - exponent - (fraction > limit_fraction)).astype(np.int64)
    scaled = np.ldexp(a, shift)
    high = np.rint(scaled)
    if digits <= WORD:
        return Split((high.astype(np.int64),), shift, digits)
    rest = digits - WORD
    low = np.rint(np.ldexp(scaled - high, BITS * rest))
    # A remainder of nearly one half has no balanced digits of its own: it becomes a carry.
    carry = low > _limit(rest)
    low -= carry * float(BASE) ** rest
    return Split((high.astype(np.int64) + carry, low.astype(np.int64)), shift, digits)


def block_k(group: int, bits: int = BITS) -> int:
    """Rows of K over which the group + 1 digit products of significance ``group`` sum exactly in float32."""
    exact = (1 << (ACCUMULATOR - 2 * (bits - 1))) // (group + 1)
    return exact if exact < 128 else 1 << (exact.bit_length() - 1)


def group_sums(a: Split, b: Split) -> np.ndarray:
    """Exact sums of digit products by significance, float64 (digits, m, n): what the kernel's PSUM groups hold."""
    da, db = a.planes().astype(np.float64), b.planes().astype(np.float64)
    return np.stack([sum(da[i] @ db[d - i] for i in range(d + 1)) for d in range(a.digits)])


def to_planes(sums: np.ndarray) -> np.ndarray:
    """Group sums as three float32 planes (3, m, n), high to low, of sum_d sums[d] 256^-d: what crosses the link.

    Two planes would lose 16 u; three equal a float64 sum to three digits (NUMERICS 1.3).
    """
    planes = [np.zeros(sums.shape[1:], np.float32) for _ in range(3)]
    for d in range(len(sums) - 1, -1, -1):
        term = sums[d] * 2.0 ** (-BITS * d)
        high = term.astype(np.float32)
        for part in ((term - high).astype(np.float32), high):
            for i in range(2):
                total = planes[i] + part
                kept = total - planes[i]
                part = (planes[i] - (total - kept)) + (part - kept)
                planes[i] = total
            planes[2] = planes[2] + part
    return np.stack(planes)


def assemble(planes: np.ndarray, a: Split, b: Split) -> np.ndarray:
    """The product (m, n) in float64 from its float32 planes and the exponents of both operands."""
    high, middle, low = planes.astype(np.float64)
    first = min(a.digits, WORD)
    return np.asarray(np.ldexp((low + middle) + high, 2 * BITS * (first - 1) - a.shift - b.shift))


def equilibrate(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A D and D^-1 B, D powers of two that balance columns of A and rows of B: exact, often fewer digits."""
    left, right = np.abs(a).max(axis=0), np.abs(b).max(axis=1)
    both = (left > 0) & (right > 0)
    _, el = np.frexp(np.where(both, left, 1.0))
    _, er = np.frexp(np.where(both, right, 1.0))
    # Rounded half away from an overflow: no scaled entry leaves the range it had.
    f = np.where(both, (er - el) // 2, 0)
    return np.ldexp(a, f), np.ldexp(b, -f[:, np.newaxis])


def scaled_magnitudes(a: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """|a| scaled along ``axis`` to below one, as float32 whose low 16 bits are zero (bf16), and the largest of each.

    What the certificate's pass multiplies: truncation only ever makes |A||B| smaller, by less than 1.6 %.
    """
    largest = np.abs(a).max(axis=axis, keepdims=True)
    _, exponent = np.frexp(largest)
    scaled = np.ldexp(np.abs(a), -exponent).astype(np.float32)
    truncated = (scaled.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return truncated, np.ldexp(largest, -exponent).astype(np.float32)


def exponent_span(sums: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    """rho = max of a_i b_j / (|A||B|)_ij where that is positive: how much exponent range hides inside the sums."""
    ratio = np.divide(left * right, sums, out=np.zeros_like(sums), where=sums > 0)
    return float(ratio.max(initial=0.0)) * BOUND_SLACK


def digits_for(rho: float, k: int) -> int | None:
    """The fewest digits, at least DIGITS, whose error is certified below TOLERANCE u of |A||B|; None: not here.

    sqrt(K) rho 256^(7-s) <= 4: never exceeded by a measured error (NUMERICS 1.4).
    """
    for digits in range(DIGITS, MOST_DIGITS + 1):
        if math.sqrt(k) * rho * float(BASE) ** (DIGITS - digits) <= TOLERANCE:
            return digits
    return None
