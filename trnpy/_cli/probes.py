"""``python -m trnpy doctor --probe``: self-tests of the hardware, and each kernel against its reference version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import numpy as np

from trnpy._base.records import record
from trnpy._engine.engines import HOST, Engine
from trnpy._engine.precision import FORMS, Facts, save_facts
from trnpy._nki.kernels.chem import mp2_energy_reference
from trnpy._nki.runtime import DeviceError

Operands = tuple[Any, ...]
SINGLE = 2.0**-24  # unit roundoff of float32
N = 64  # columns of a self-test


@record()
class Check:
    """One launch with a known result."""

    kernel: str  # name, as for Engine.kernel
    assumes: str  # the hardware property that an expected result shows
    operands: Callable[[], Operands]
    parameters: dict[str, Any] = field(default_factory=dict)
    allowed: float = 0.0  # relative error of each element
    of_largest: bool = False  # whether the error is relative to the largest element, as for sums
    answer: Callable[[Any], np.ndarray] = np.asarray  # converts the kernel's outputs to the array that is compared
    decides: str = ""  # the field of Facts that the outcome sets


@record()
class Outcome:
    """A check, and a description of how its result differs from the expected one; empty if it does not."""

    check: Check
    differs: str
    seconds: float  # duration of the first launch, including compilation


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _bfloat16(a: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return a.astype(ml_dtypes.bfloat16)


def _sums() -> Operands:
    """Digits of 1024 rows, with sums of exactly 2^24 - 1 in the first columns and smaller ones in the others."""
    a, b = _rng(1).integers(-128, 128, (1024, 128)), _rng(2).integers(-128, 128, (1024, N))
    a[:, : N // 2], b[:, : N // 2] = -128, -128
    a[-1, : N // 2], b[-1, : N // 2] = 127, 129  # 1023 x 2^14 + 2^14 - 1
    return _bfloat16(a.astype(np.float32)), _bfloat16(b.astype(np.float32))


def _short_sums() -> Operands:
    """As `_sums`, with digits in [-64, 63] and sums below 2^22."""
    a, b = _rng(1).integers(-64, 64, (1024, 128)), _rng(2).integers(-64, 64, (1024, N))
    a[:, : N // 2], b[:, : N // 2] = -64, -64
    a[-1, : N // 2], b[-1, : N // 2] = 63, 65  # 1023 x 2^12 + 2^12 - 1
    return _bfloat16(a.astype(np.float32)), _bfloat16(b.astype(np.float32))


def _single_products() -> Operands:
    """A diagonal matrix: every element of the product is one product of full significands."""
    diagonal = np.diag(_rng(3).uniform(1, 2, 128)).astype(np.float32)
    b = _rng(4).uniform(1, 2, (128, N)).astype(np.float32)
    diagonal[0, 0], b[0] = 1 + 2.0**-23, 1 - 2.0**-23
    diagonal[1, 1], b[1] = 1 + 2.0**-12, 1 - 2.0**-12
    return diagonal, b


def _halves() -> Operands:
    return (_rng(5).integers(-(2**12), 2**12, (128, N)).astype(np.float32) + np.float32(0.5),)


def _large_integers() -> Operands:
    return tuple(_rng(seed).integers(-(2**30), 2**30, (128, N), dtype=np.int32) | 1 for seed in (6, 7))


def _digit_bytes() -> Operands:
    return (_rng(8).integers(0, 256, (128, 8 * N), dtype=np.uint8),)


def _denormals() -> Operands:
    return ((_rng(9).uniform(1, 2, (128, N)) * 2.0**-140).astype(np.float32),)


def _below_2_24() -> Operands:
    return (_rng(10).integers(-(2**24) + 1, 2**24, (128, N)).astype(np.float32),)


def _numbers() -> Operands:
    return (_bfloat16(_rng(43).standard_normal((128, 128)).astype(np.float32)),)


def _row_of_many() -> Operands:
    return _rng(44).standard_normal((128, N)).astype(np.float32), np.array([[37 * N + 5]], np.int32)


def _few_rows() -> Operands:
    return (_rng(45).standard_normal((5, N)).astype(np.float32),)


def _stack_of_tiles() -> Operands:
    a, b = _rng(46).integers(-8, 8, (3, 128 * 128)), _rng(47).integers(-8, 8, (128, N))
    return _bfloat16(a.astype(np.float32)), _bfloat16(b.astype(np.float32))


PROBES = (
    Check("probes.exact_sums", "PSUM sums integers exactly below 2^24", _sums, decides="exact_sums"),
    Check("probes.exact_sums", "and below 2^22", _short_sums, decides="short_sums"),
    Check(
        "probes.float32_products", "float32 products are rounded once", _single_products, allowed=SINGLE,
        decides="float32_products",
    ),
    Check("probes.rounding", "ScalarE and VectorE round to nearest even", _halves),
    Check(
        "probes.integer_sums", "GpSimd adds 32-bit integers exactly: sums of digits, places of blocks", _large_integers,
        decides="integer_sums",
    ),
    Check("probes.byte_reads", "every eighth byte is read as a number", _digit_bytes, {"width": 8}),
    Check(
        "probes.byte_reads", "and ScalarE takes 128 from it exactly", _digit_bytes, {"width": 8},
        answer=lambda outputs: np.asarray(outputs)[:128], decides="biases",
    ),
    Check("probes.denormals", "float32 keeps numbers below 2^-126", _denormals, decides="denormals"),
    Check("probes.remainders", "a cast to int32 rounds, and remainders are exact", _below_2_24),
    Check(
        "probes.rounding", "ScalarE alone does, with a number as bias", _halves,
        answer=lambda outputs: np.asarray(outputs)[:128], decides="biases",
    ),
    Check("probes.transposes", "TensorE transposes bfloat16 exactly", _numbers, decides="transposes"),
    Check(
        "probes.repeated_rows", "a transfer repeats a row from a run-time address", _row_of_many, decides="repeats"
    ),
    Check("probes.register_offsets", "a register is the offset of a transfer", _few_rows, decides="offsets"),
    Check("probes.sums_of_loops", "two loops use PSUM one after the other", _stack_of_tiles, decides="loops"),
)  # fmt: skip


def _normal(seed: int, *shapes: tuple[int, ...]) -> Operands:
    return tuple(_rng(seed).standard_normal(shape).astype(np.float32) for shape in shapes)


def _digits() -> Operands:
    return tuple(
        _bfloat16(_rng(11 + n).integers(-128, 128, (2, 140, n)).astype(np.float32)) for n in (130, 150)
    )  # fmt: skip


def _float64() -> Operands:
    """float64 numbers as 32-bit words: both signs, many exponents, and zeros."""
    x = _rng(36).standard_normal((130, 70)) * 2.0 ** _rng(37).integers(-70, 70, (130, 70))
    x[::7, ::5] = 0
    return (x.view(np.int32),)


def _integers() -> Operands:
    """Integers of three 32-bit words, of many sizes and both signs, some of them zero; and exponents."""
    bits, size = _rng(38).integers(0, 96, (130, 70)), _rng(39).integers(0, 2**32, (3, 130, 70))
    words = [np.clip(bits - 32 * w, 0, 32) for w in range(3)]
    v = np.stack([x & ((1 << b) - 1) for x, b in zip(size, words, strict=True)])
    v ^= (_rng(40).integers(0, 2, (130, 70)) * (2**32 - 1)) * (bits < 95)
    rows, columns = _rng(41).integers(-300, 300, (130, 1)), _rng(42).integers(-300, 300, (1, 70))
    return v.astype(np.uint32).view(np.int32), rows.astype(np.float32), columns.astype(np.float32)


def _words_and_digits() -> Operands:
    """Integers of two words per element, digits to multiply them with, and magnitudes of both."""
    words, digits = _rng(34).integers(-(2**31), 2**31, (2, 130, 140), dtype=np.int64).astype(np.int32), _digits()[1]
    return words, digits, *(_bfloat16(np.abs(x)) for x in _normal(36, words.shape[1:], digits.shape[1:]))


def _two_of_words() -> Operands:
    """Two matrices of integers with two words per element."""
    x, y = _rng(35).integers(-(2**31), 2**31, (2, 2, 130, 140), dtype=np.int64).astype(np.int32)
    return x, y


def _triangular() -> Operands:
    """A well-conditioned lower triangle, and right-hand sides."""
    a, b = _normal(22, (150, 150), (150, 30))
    return np.tril(a) / 150 + np.eye(150, dtype=np.float32), b


def _iterated() -> Operands:
    """A symmetric matrix of norm below 1, and the coefficients of two iterations for its matrix sign."""
    (a,) = _normal(24, (150, 150))
    return (a + a.T) / 40, np.array([[1.5, -0.5, 0], [1.75, -1, 0.25]], np.float32)


def _rotated() -> Operands:
    """A nearly diagonal matrix, so that rounding does not grow, the identity, and the one pair of two blocks."""
    (a,) = _normal(26, (128, 128))
    a = (a + a.T) / 1000 + np.diag(np.arange(128, dtype=np.float32) / 64)
    return a, np.eye(128, dtype=np.float32), np.array([[0], [64 * 128], [0], [64]], np.int32)


def _subspace() -> Operands:
    """The matrix of `_iterated` twice, also as operator, a block of norm below 1, and coefficients."""
    h, coefficients = _iterated()
    return h, h, _normal(25, (150, 40))[0] / 20, coefficients, coefficients


def _block_rows(name: str) -> Operands:
    """Two block rows of three tiles and the rows of X that they multiply; or their elements, gathered."""
    tiles, x = _normal(23, (5 * 128, 128), (3 * 128, N))
    left, right = (_rng(seed).integers(0, most, (1, 6)).astype(np.int32) * 128 for seed, most in ((24, 5), (25, 3)))
    if name == "bsr":
        return tiles, x, left * 128, right * N
    row_of = _rng(26).integers(0, 128, (128, 6)).astype(np.float32)
    return tiles[:128, :6], row_of, _rng(27).integers(0, 384, (128, 6)).astype(np.int32), x


def _pairs() -> Operands:
    """Digits of integrals of two occupied and 150 virtual orbitals, and the gaps between them."""
    digits = _bfloat16(_rng(30).integers(-128, 128, (4, 140, 2 * 150)).astype(np.float32))
    virtual, grid = _rng(31).uniform(1, 20, 150), 2.0**-9
    gaps = np.concatenate([virtual, virtual + 1])
    coarse = np.rint(gaps / grid) * grid
    units = np.exp2(-13.0 - 8 * np.arange(5))[None].astype(np.float32)
    cells = np.array([[0, 150, 150], [0, 0, 150]], np.int32)
    return digits, np.stack([gaps, coarse, gaps - coarse]).astype(np.float32), units, cells


def _counts() -> np.ndarray:
    return _rng(33).integers(0, 513, (1, 130)).astype(np.float32)


def _whole_digits(*shapes: tuple[int, ...]) -> Operands:
    return tuple(_bfloat16(_rng(32).integers(-128, 128, shape).astype(np.float32)) for shape in shapes)


def _system(count: int) -> Operands:
    """A positive definite tile, a right-hand side, and the other operands of iterations that start there."""
    a = np.eye(128, dtype=np.float32) + np.float32(0.01) * sum(x + x.T for x in _normal(31, (128, 128)))
    tiles, row_of = np.zeros((8 * 128, 16 * 128), np.float32), np.full((128, 1), -1, np.float32)
    tiles[:128, :128], row_of[0] = a, 0
    (r,) = _normal(32, (128, 1))
    size, none = np.full((128, 1), np.sum(r * r), np.float32), np.zeros((1, 1), np.int32)
    start = (r,) if count == 1 else (np.zeros_like(r), r, r, size)
    return (tiles, np.zeros((128, 1), np.int32), row_of, none, *start, size * np.float32(1e-12))


K = 140  # inner dimension of the small products below: more than one tile, with an edge
SUMS = 2 * K * SINGLE  # any order of summation
# Every kernel that products launch, at a size with edges, against its reference implementation.
KERNELS = (
    Check("matmul", "", lambda: _normal(15, (130, K), (K, 150)), allowed=SUMS, of_largest=True),
    Check(
        "matmul", "", lambda: tuple(map(_bfloat16, _normal(16, (K, 130), (150, K)))),
        {"a_rows": False, "b_rows": False}, SUMS, True,
    ),
    Check("batched_matmul", "", lambda: _normal(17, (3, 40, K), (3, K, 50)), allowed=SUMS, of_largest=True),
    Check("syrk", "", lambda: _normal(21, (150, K)), allowed=SUMS, of_largest=True),
    Check("trsm", "", _triangular, allowed=2 * SUMS, of_largest=True),
    Check("bsr_spmm", "", lambda: _block_rows("bsr"), {"length": 3}, 4 * SUMS, True),
    Check("bsr_transpose_spmm", "", lambda: _block_rows("bsr"), {"length": 3}, 4 * SUMS, True),
    Check("csr_spmm", "", lambda: _block_rows("csr"), {"length": 3}, 4 * SUMS, True),
    Check(
        "cg_iterations", "", lambda: _system(4), {"most": 4}, 8 * SUMS, True, answer=lambda outputs: outputs[0],
    ),
    Check("gmres_steps", "", lambda: _system(1), {"most": 4}, 8 * SUMS, True, answer=lambda outputs: outputs[0]),
    Check("transpose", "", lambda: _normal(18, (130, 200))),
    Check("axpby", "", lambda: _normal(22, (130, 200), (130, 200)), allowed=SINGLE, of_largest=True),
    Check(
        "digits_split", "", lambda: (_rng(19).integers(0, 256, (130, 8 * 20), dtype=np.uint8),),
        {"width": 8, "places": (6, 5, 4, 3, 2, 1, 0)},
    ),
    Check(
        "float64_digits", "float64 is split into digits: elements are shifted by each other", _float64,
        {"by_rows": True}, answer=lambda outputs: outputs[0], decides="splits",
    ),
    Check("float64_round", "", _integers),
    Check("float64_matmul", "", _digits, {"words": 2, "m_tiles": 2, "k_tiles": 1}),
    Check(
        "words_matmul", "", _words_and_digits, {"tops": (7, 0), "digits": 2, "words": 2, "m_tiles": 1, "k_tiles": 1},
        answer=lambda outputs: outputs[0],
    ),
    Check(
        "words_sum", "", _two_of_words, {"factors": (3, -5), "places": ((-1, *range(7)), (*range(7), -1)), "words": 3},
        answer=lambda outputs: outputs[0],
    ),
    Check(
        "abs_bound", "", lambda: tuple(_bfloat16(np.abs(x)) for x in _normal(20, (130, K), (K, 150))), allowed=SUMS,
        answer=lambda least: least.min(keepdims=True),
    ),
    Check(
        "mp2_energy", "", _pairs, {"span": 150}, SINGLE, True,
        answer=lambda parts: mp2_energy_reference.finish(np.concatenate([parts[:1], parts]), 4),  # with the total
    ),
    Check(
        "ao_to_mo", "", lambda: _whole_digits((4, 3 * 40, 40), (4, 40, 5), (5, 40, 30)),
        {"top": 6, "words": (2, 2), "first_tiles": (1, 1), "second_tiles": (1, 1)},
    ),
    Check(
        "schwarz_screened_spmm", "", lambda: (*_whole_digits((3, 512, 130), (3, 512, 40)), _counts()),
        {"words": 2, "m_tiles": 1, "k_tiles": 2},
    ),
    Check(
        "polynomial_sign", "", _iterated, allowed=8 * SUMS, of_largest=True, answer=lambda outputs: outputs[0],
    ),
    Check(
        "projected_matrix", "", lambda: _subspace()[:3:2], allowed=8 * SUMS, of_largest=True,
        answer=lambda outputs: outputs[0],
    ),
    Check(
        "jacobi_sweep", "", _rotated, allowed=64 * SUMS, of_largest=True,
    ),
    Check(
        "orthonormal_polar", "", _subspace, allowed=16 * SUMS, of_largest=True, answer=lambda outputs: outputs[0],
    ),
)  # fmt: skip


def answer(engine: Engine, check: Check) -> np.ndarray:
    """The array that a check compares, after a launch on ``engine``; the host engine runs the reference version."""
    outputs = engine.kernel(check.kernel, *check.operands(), **check.parameters)
    return check.answer(tuple(map(engine.get, outputs)) if isinstance(outputs, tuple) else engine.get(outputs))


def run(engine: Engine, check: Check) -> Outcome:
    """Launch one check and compare it with the reference implementation. A device error is also an outcome."""
    began = time.perf_counter()
    try:
        got = answer(engine, check)
    except DeviceError as why:
        return Outcome(check, f"{type(why).__name__}: {why}", time.perf_counter() - began)
    seconds = time.perf_counter() - began
    return Outcome(check, difference(got, answer(HOST, check), check), seconds)


def difference(got: np.ndarray, expected: np.ndarray, check: Check) -> str:
    """A sentence about the elements that differ by more than the check allows; "" if there are none."""
    if got.shape != expected.shape:
        return f"shape {got.shape} instead of {expected.shape}"
    ours, theirs = got.astype(np.float64), expected.astype(np.float64)
    scale = np.abs(theirs).max() if check.of_largest else np.abs(theirs)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(ours - theirs) <= check.allowed * scale)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements, at {at} {ours[at]!r} instead of {theirs[at]!r}"


def facts(outcomes: list[Outcome]) -> Facts:
    """The facts about the hardware that follow from the outcomes: each holds if all checks that decide it agree."""
    found: dict[str, bool] = {}
    for outcome in outcomes:
        if name := outcome.check.decides:
            found[name] = found.get(name, True) and not outcome.differs
    return Facts(**found)


ALL = (*PROBES, *KERNELS)


def probe(engine: Engine) -> Iterator[Outcome]:
    """All self-tests, and then each kernel against its reference implementation."""
    for check in ALL:
        yield run(engine, check)


def report(engine: Engine) -> int:
    """Run all checks, print the outcomes, and store the facts that products need. Returns 1 if anything differs."""
    outcomes = []
    for outcome in probe(engine):
        outcomes.append(outcome)
        check = outcome.check
        what = check.assumes or f"agrees with {check.kernel}_reference"
        said = f"WRONG: {what}: {outcome.differs}" if outcome.differs else what
        print(f"{check.kernel:<26}{outcome.seconds:6.1f} s  {said}", flush=True)
    found = facts(outcomes)
    path = save_facts(found, engine.name, engine.machine.name)
    digits = f"{found.bits}-bit digits" if found.bits else "on the host"
    print(f"\nfloat64: {digits}\nintegers: {digits if found.digits else 'on the host'}")
    single = "float32 products" if found.float32_products else "six products of bfloat16 slices for each one"
    single = single if found.blocks else "on the host"
    print(f"float32: {single}")
    if found.most_loops is not None:
        most = "no device loop" if found.most_loops == 0 else "one device loop at most"
        print(f"programs: with {most}; larger calls on the host")
    for kernel in FORMS:
        if form := found.form(kernel):
            print(f"{kernel}: without {' and '.join(form)}")
    print(f"kept in {path}")
    wrong = sum(bool(o.differs) for o in outcomes)
    print(f"{wrong} of {len(outcomes)} differ" if wrong else f"all {len(outcomes)} as expected")
    return 1 if wrong else 0
