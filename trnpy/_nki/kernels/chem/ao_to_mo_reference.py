"""The NumPy reference implementation of ao_to_mo.py, and the limits of its operands."""

from __future__ import annotations

import numpy as np

from trnpy._nki.kernels.products import float64_matmul_reference as product

LARGEST = product.LARGEST // 2  # elements of 4 bytes
WORDS = 3  # words of up to eight digits
HEADROOM = 2  # digits that sums may have in addition to those of the operands


def check(g: np.ndarray, c_left: np.ndarray, c_right: np.ndarray, top: int) -> tuple[int, int]:
    """(matrices, nao) of a transformation that the kernel supports; raises ValueError for others."""
    nao = c_left.shape[-2]
    if not (g.ndim == c_left.ndim == c_right.ndim) or c_right.shape[-2] != nao or g.shape[-1] != nao:
        raise ValueError(f"g {g.shape}, c_left {c_left.shape}, c_right {c_right.shape}: expected one nao")
    if g.shape[-2] % nao or 0 in g.shape + c_left.shape + c_right.shape:
        raise ValueError(f"g {g.shape}: expected rows of whole matrices {nao} x {nao}, none of them empty")
    form = "float32" if g.ndim == 2 else "bfloat16"
    if {x.dtype.name for x in (g, c_left, c_right)} != {form}:
        raise ValueError(f"{g.dtype}, {c_left.dtype}, {c_right.dtype}: expected {form}")
    stack = g.shape[-2] // nao
    if g.ndim == 3 and (len(g) != len(c_left) or not len(c_right) <= top <= len(g) + HEADROOM):
        raise ValueError(
            f"{len(g)}, {len(c_left)}, {len(c_right)} digits, top {top}: expected s, s and t <= top <= s + {HEADROOM}"
        )
    nleft, nright, words = c_left.shape[-1], c_right.shape[-1], WORDS if g.ndim == 3 else 1
    half = stack * nao * nleft * max(words, len(c_right) if g.ndim == 3 else 1)
    if max(g.size, half, c_right.size, stack * nleft * nright * words) > LARGEST:
        raise ValueError(
            f"g {g.shape}, c_left {c_left.shape}, c_right {c_right.shape}: at most {LARGEST} elements each"
        )
    return stack, nao


def ao_to_mo(g, c_left, c_right, top=0, words=(3, 3)):  # type: ignore[no-untyped-def]
    """C_left^T G_L C_right of float32 matrices, or words of the product of its first half's digits with c_right."""
    stack, nao = check(g, c_left, c_right, top)
    if g.ndim == 2:
        cubes = g.reshape(stack, nao, nao).astype(np.float64)
        return (c_left.astype(np.float64).T @ cubes @ c_right.astype(np.float64)).reshape(-1, c_right.shape[1])
    s, t, nleft = len(g), len(c_right), c_left.shape[2]
    x = g.astype(np.float64).reshape(s, stack, nao, nao).swapaxes(2, 3)
    y = c_left.astype(np.float64)
    sums = [sum(x[i] @ y[d - i] for i in range(d + 1)).astype(np.int64) for d in range(s - 1, -1, -1)]
    halves = [total + 128 for total in sums[:-1]] + [sums[-1] + 0x808080]  # of the last group's places, too
    octets = product.to_words(halves, words[0]).transpose(1, 2, 3, 0).astype("<i4", order="C").view(np.uint8)
    digits = np.stack([octets[..., top - 1 - d] - 128.0 for d in range(t)])
    turned = digits.transpose(0, 2, 1, 3).reshape(t, nao, stack * nleft)
    z = c_right.astype(np.float64)
    sums = [sum(turned[i].T @ z[d - i] for i in range(d + 1)).astype(np.int64) for d in range(t - 1, -1, -1)]
    return product.to_words(sums, words[1])
