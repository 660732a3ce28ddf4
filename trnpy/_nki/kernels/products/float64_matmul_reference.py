"""The NumPy reference implementation of float64_matmul.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.shared.parameters import TILE_N, lower_blocks, words_for

LARGEST = 2**30  # elements of one operand: 2 GiB, the limit of 32-bit byte offsets
BLOCKS = 4096  # of 128 x 512: their offsets are tables on the chip


def longest_k(digits: int, bits: int = 8) -> int:
    """The longest K whose sums of ``digits`` products, carries included, stay inside int32."""
    return ((1 << 31) - (1 << (32 - bits))) // (digits << 2 * (bits - 1))


def check(
    a: np.ndarray, b: np.ndarray, wrap: bool, words: int, bits: int = 8, batch: int = 1, beside: bool = False
) -> tuple[int, int, int, int]:
    """(digits, k, m, n) of products that the kernel supports; raises ValueError for others."""
    digits, rows, m = a.shape
    if beside:
        if m % batch:
            raise ValueError(f"{m} columns of {batch} matrices: expected a whole number each")
        rows, m = rows * batch, m // batch
    if b.shape[:2] != (digits, rows) or 0 in (digits, rows, m, b.shape[2]):
        raise ValueError(f"digits {a.shape} and {b.shape}: expected (s, K, M) and (s, K, N), none of them zero")
    if rows % batch or batch * -(-m // 128) * -(-b.shape[2] // TILE_N) > BLOCKS:
        raise ValueError(f"{rows} rows of {batch} matrices: expected a whole number each, and at most {BLOCKS} blocks")
    k = rows // batch
    if a.dtype.name != "bfloat16" or b.dtype != a.dtype:
        raise ValueError(f"digits of {a.dtype} and {b.dtype}: expected bfloat16")
    if k > longest_k(digits, bits):
        raise ValueError(f"K = {k}: at most {longest_k(digits, bits)} rows of {digits} digits sum in int32")
    expected = -(-bits * digits // 32) if wrap else words_for(digits, bits)
    if words != expected:
        raise ValueError(f"{words} words for {digits} digits: expected {expected}")
    if max(a.size, b.size, 2 * words * batch * m * b.shape[2]) > LARGEST:
        raise ValueError(f"digits {a.shape} and {b.shape}: at most {LARGEST} elements each")
    return digits, k, m, b.shape[2]


def float64_matmul(  # type: ignore[no-untyped-def]
    a, b=None, wrap=False, words=3, bits=8, m_tiles=4, k_tiles=4, halved=False, batch=1, beside=False
):
    """V = sum over i + j < s of A_i B_j 2^(bits (s-1-i-j)), as words of 32 bits, the lowest first: int32 (words, m, n).

    wrap: digits lowest first, V = sum of A_i B_j 2^(bits (i+j)) modulo 2^(32 words). Without b: of a^T a the
    blocks of ``lower_blocks`` one after the other (words, size); if ``halved``, of those on the diagonal U with
    U + U^T = 2 V. The two lowest groups of the kernel may be rounded beyond 2^24; here they are exact.
    batch: of stacks of matrices below each other, (words, batch m, n); those of a lie ``beside`` each other.
    """
    lower = b is None
    right = a if b is None else b
    digits, k, m, n = check(a, right, wrap, words, bits, batch, beside)
    if beside:
        a = np.moveaxis(a.reshape(digits, k, batch, m), 2, 1)
    x, y = (z.astype(np.float64).reshape(digits, batch, k, -1) for z in (a, right))

    def sums(weights: tuple[int, int, int]) -> np.ndarray:
        """Every group's products i < j, i = j and i > j, times ``weights``, as words."""
        totals = [
            sum(weights[1 + np.sign(2 * i - d)] * (x[i].mT @ y[d - i]) for i in range(d + 1)).astype(np.int64)
            for d in range(digits)
        ]
        return to_words(totals if wrap else totals[::-1], words, bits).reshape(words, batch * m, n)

    c = sums((1, 1, 1))
    if not lower:
        return c
    u = sums((2, 1, 0)) if halved else c
    return np.concatenate(
        [
            (u if i < j + q else c)[:, i : i + p, j : j + q].reshape(words, -1)
            for i, p, j, q, _ in lower_blocks(m, 128 * m_tiles, halved)
        ],
        axis=1,
    )


def to_words(sums: list[np.ndarray], words: int, bits: int = 8) -> np.ndarray:
    """sum of sums[e] 2^(bits e), integers below 2^62 in magnitude, modulo 2^(32 words): int32 (words, ...)."""
    out = np.zeros((words, *sums[0].shape), np.uint64)
    carry = np.zeros(sums[0].shape, np.int64)
    bit = 0
    for e in range(-(-32 * words // bits)):
        total = carry + (sums[e] if e < len(sums) else 0)
        digit = (total & ((1 << bits) - 1)).astype(np.uint64)
        carry = total >> bits
        word, shift = divmod(bit, 32)
        out[word] |= digit << np.uint64(shift)
        if shift + bits > 32 and word + 1 < words:
            out[word + 1] |= digit >> np.uint64(32 - shift)
        bit += bits
    return out.astype(np.uint32).view(np.int32)
