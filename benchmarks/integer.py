"""Integer products on the host: NumPy's loop over trnpy's exact float64 products, side by side."""

from __future__ import annotations

import numpy as np

import trnpy
from benchmarks._measure import gate, header, interleaved

# (dtype, bits that the values use or per cent of bools that are true, n, least ratio wanted)
CASES = [
    ("int64", 16, 512, 10.0),
    ("int64", 64, 512, 3.0),
    ("int32", 16, 512, None),
    ("int32", 32, 512, None),
    ("int16", 16, 512, None),
    ("int8", 8, 512, None),
    ("uint64", 64, 512, None),
    ("bool", 50, 512, None),
    ("bool", 10, 512, None),
    ("bool", 1, 512, None),
    ("int64", 16, 128, None),
    ("int64", 64, 128, None),
    ("int64", 64, 64, None),
    ("int64", 64, 32, None),
]


def operand(dtype: str, bits: int, n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, n])
    if dtype == "bool":
        return rng.random((n, n)) < bits / 100
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if bits >= info.bits else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rng.integers(low, high, (n, n), dtype=dtype, endpoint=True)


def main(argv: list[str]) -> int:
    gate("tests/_host/test_integer.py")
    header("integer matmul, NumPy over trnpy")
    print(f"{'dtype':8}{'bits':>6}{'n':>6}{'NumPy':>14}{'ratio':>9}   route")
    missed = 0
    for dtype, bits, n, least in CASES:
        a, b = operand(dtype, bits, n, 0), operand(dtype, bits, n, 1)
        with trnpy.trace() as log:
            assert np.array_equal(trnpy.matmul(a, b), np.matmul(a, b))
        calls = {"numpy": lambda a=a, b=b: np.matmul(a, b), "trnpy": lambda a=a, b=b: trnpy.matmul(a, b)}
        seconds = interleaved(calls, rounds=9)
        ratio = seconds["numpy"] / seconds["trnpy"]
        wanted = f"   asked for {least:g}" if least else ""
        missed += least is not None and ratio < least
        route = log[0].route or "NumPy's own"
        print(f"{dtype:8}{bits:6}{n:6}{seconds['numpy'] * 1e6:11.0f} us{ratio:9.2f}   {route}{wanted}")
    print(f"\n{missed} below the required ratio")
    return int(bool(missed))
