"""``python -m conformance faults``: inject faults into a simulated device, and count the undetected ones."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from conformance.fault_injection import KINDS, Device, Fault
from conformance.healthy import HEALTHY, alarms
from nkisim.status import Status
from trnpy import linalg, sparse
from trnpy._base.records import record
from trnpy._call.dispatch import trace
from trnpy._einsum.rows import einsum, matmul
from trnpy._engine.engines import engine
from trnpy._engine.precision import eps
from trnpy._settings.policy import policy
from trnpy.chem.dfmp2 import ACCURACY, dfmp2_energy

SAMPLE, WHOLE = 2_000, 100_000  # faults
DOUBLE = 1e-12  # the largest error of a double-precision result that may be accepted
SINGLE = 100.0  # times n eps: the same of other dtypes
TOLERANCE = 1e-10  # that cg is asked for
HANG_S = 1e-3  # time limit of a launch that hangs
N, SMALL = 160, 40  # order of operands: N, over one panel; SMALL for algorithms of many launches

Arrays = tuple[Any, ...]


@record()
class Row:
    """A function, operands for it, and the error of a result beside the result of the healthy device."""

    call: Callable[..., Any]
    operands: Callable[[np.random.Generator], Arrays]
    error: Callable[[Arrays, Any, Any], float]  # of operands, a result, and the healthy result
    precision: str = "matched"
    target: float = 0.0  # the largest error that may be accepted; 0: that of the dtype


def _normal(dtype: str, n: int = N) -> Callable[[np.random.Generator], Arrays]:
    def make(rng: np.random.Generator) -> Arrays:
        parts = rng.standard_normal((2, 2, n, n))
        a, b = parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0] * (100 if dtype == "i8" else 1)
        return a.astype(dtype), b.astype(dtype)

    return make


def _well(n: int, *rest: int, dtype: str = "f8") -> Callable[[np.random.Generator], Arrays]:
    """A matrix of condition 10, and right-hand sides of ``rest`` columns."""

    def make(rng: np.random.Generator) -> Arrays:
        left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
        a = left * np.geomspace(1, 10, n) @ right
        return (a.astype(dtype), *(rng.standard_normal((n, k)).astype(dtype) for k in rest))

    return make


def _positive(n: int) -> Callable[[np.random.Generator], Arrays]:
    def make(rng: np.random.Generator) -> Arrays:
        q = np.linalg.qr(rng.standard_normal((n, n)))[0]
        a = q * np.geomspace(0.1, 1, n) @ q.T
        return ((a + a.T) / 2,)

    return make


def _single(make: Callable[[np.random.Generator], Arrays]) -> Callable[[np.random.Generator], Arrays]:
    """The same operands in float32."""
    return lambda rng: tuple(a.astype(np.float32) for a in make(rng))


def _tall(rng: np.random.Generator) -> Arrays:
    return rng.standard_normal((4 * SMALL, SMALL)), rng.standard_normal((4 * SMALL, 3))


def _of_product(operands: Arrays, found: np.ndarray, healthy: np.ndarray) -> float:
    """The largest error in units of |a_i| |b_j|; of integers the number of wrong elements."""
    if found.dtype.kind in "iub":
        return float(np.count_nonzero(found != healthy))
    a, b = operands
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    size = np.linalg.norm(a, axis=-1)[..., np.newaxis] * np.linalg.norm(b, axis=-2)[..., np.newaxis, :]
    return float(np.max(np.abs(found.astype(wide) - healthy) / size))


def _of_rows(operands: Arrays, found: np.ndarray, healthy: np.ndarray) -> float:
    """The largest error in units of |a_i| |b_i|."""
    a, b = operands
    return float(np.max(np.abs(found - healthy) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=0))))


def _stacks(rng: np.random.Generator) -> Arrays:
    """The smallest matrices, and the fewest, whose digits and results are made on the device."""
    return rng.standard_normal((8, 64, 64)), rng.standard_normal((8, 64, 64))


def _relative(operands: Arrays, found: Any, healthy: Any) -> float:
    """The largest normwise difference of a member of the result."""
    pairs = zip(found, healthy, strict=True) if isinstance(found, tuple) else [(found, healthy)]
    return max(_over(np.asarray(x) - y, np.asarray(y)) for x, y in pairs)


def _over(x: np.ndarray, y: np.ndarray) -> float:
    size = float(np.linalg.norm(x))
    return size / float(np.linalg.norm(y)) if size else 0.0


def _backward(rebuilt: Callable[..., tuple[np.ndarray, ...]]) -> Callable[[Arrays, Any, Any], float]:
    """The error of a result by what is rebuilt of it: pairs of matrices that should be equal, one after the other."""

    def error(operands: Arrays, found: Any, healthy: Any) -> float:
        sides = rebuilt(operands, found)
        return max(_over(x - y, y) for x, y in zip(sides[::2], sides[1::2], strict=True))

    return error


def _orthonormal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.T @ x, np.eye(x.shape[1])


def _lu(operands: Arrays, found: Any) -> tuple[np.ndarray, ...]:
    p, low, up = found
    return p @ low @ up, operands[0]


def _qr(operands: Arrays, found: Any) -> tuple[np.ndarray, ...]:
    return found[0] @ found[1], operands[0], *_orthonormal(found[0])


def _eigh(operands: Arrays, found: Any) -> tuple[np.ndarray, ...]:
    w, v = found
    return v * w @ v.T, operands[0], *_orthonormal(v)


def _svd(operands: Arrays, found: Any) -> tuple[np.ndarray, ...]:
    u, s, vh = found
    return u * s @ vh, operands[0], *_orthonormal(u), *_orthonormal(vh.T)


def _sparse(rng: np.random.Generator) -> Arrays:
    import scipy.sparse

    blocks = rng.standard_normal((N, N)) * (rng.random((N, N)) < 0.1)
    return sparse.csr_array(scipy.sparse.csr_array(blocks)), rng.standard_normal((N, 8))


def _laplacian(rng: np.random.Generator) -> Arrays:
    import scipy.sparse

    a = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(N, N))
    return sparse.csr_array(scipy.sparse.csr_array(a)), rng.standard_normal(N)


def _pairs(rng: np.random.Generator) -> Arrays:
    """Integrals (nocc, nvir, naux) and orbital energies."""
    occupied, virtual = rng.uniform(-2.0, -0.5, 4), rng.uniform(0.2, 3.0, 24)
    return 0.05 * rng.standard_normal((4, 24, 60)), occupied, virtual


def _two(rng: np.random.Generator) -> Arrays:
    return *_positive(SMALL)(rng), *_positive(SMALL)(rng)


def _eigh_of_two(operands: Arrays, found: Any) -> tuple[np.ndarray, ...]:
    (a, b), (w, v) = operands, found
    return a @ v, b @ v * w, v.T @ b @ v, np.eye(len(w))


def _of_sparse(operands: Arrays, found: np.ndarray, healthy: np.ndarray) -> float:
    a, x = operands
    size = np.sqrt(np.asarray(a.multiply(a).sum(axis=1))).reshape(-1, 1) * np.linalg.norm(x, axis=0)
    return float(np.max(np.abs(found - healthy) / np.where(size > 0, size, 1.0)))


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "matmul float64": Row(matmul, _normal("f8"), _of_product),
        "matmul of stacks": Row(matmul, _stacks, _of_product),
        "matmul complex128": Row(matmul, _normal("c16"), _of_product),
        "matmul float32": Row(matmul, _normal("f4"), _of_product),
        "matmul float16": Row(matmul, _normal("f2"), _of_product),
        "matmul bf16": Row(matmul, _normal("f4"), _of_product, precision="bf16"),
        "matmul int64": Row(matmul, _normal("i8"), _of_product),
        "einsum": Row(lambda a, b: einsum("ij,jk->ik", a, b), _normal("f8"), _of_product),
        "einsum of rows": Row(lambda a, b: einsum("ij,ji->i", a, b), _normal("f8"), _of_rows),
        "csr @": Row(lambda a, x: a @ x, _sparse, _of_sparse),
        "cholesky": Row(
            lambda a: linalg.cholesky(a, lower=True), _positive(N), _backward(lambda o, x: (x @ x.T, o[0]))
        ),
        "lu": Row(linalg.lu, _well(N), _backward(_lu)),
        "solve": Row(linalg.solve, _well(N, 40), _backward(lambda o, x: (o[0] @ x, o[1]))),
        "solve_triangular": Row(
            lambda a, b: linalg.solve_triangular(np.tril(a) + 8 * np.eye(N), b, lower=True),
            _well(N, 160),
            _backward(lambda o, x: ((np.tril(o[0]) + 8 * np.eye(N)) @ x, o[1])),
        ),
        "inv": Row(linalg.inv, _well(N), _backward(lambda o, x: (o[0] @ x, np.eye(N)))),
        "det": Row(linalg.det, _well(N), _relative),
        "qr": Row(lambda a: linalg.qr(a, mode="economic"), _well(SMALL), _backward(_qr)),
        "lstsq": Row(lambda a, b: linalg.lstsq(a, b)[0], _tall, _relative),
        "pinv": Row(linalg.pinv, _well(SMALL), _relative),
        "eigh": Row(linalg.eigh, _positive(SMALL), _backward(_eigh)),
        "eigvalsh": Row(linalg.eigvalsh, _positive(SMALL), _relative),
        "eigh of two": Row(linalg.eigh, _two, _backward(_eigh_of_two)),
        "eigvalsh of some": Row(lambda a: linalg.eigvalsh(a, subset_by_index=[3, 9]), _positive(SMALL), _relative),
        "matrix_power": Row(lambda a: linalg.matrix_power(a, 5), _positive(SMALL), _relative),
        "cg": Row(
            lambda a, b: sparse.linalg.cg(a, b, rtol=TOLERANCE)[0],
            _laplacian,
            _backward(lambda o, x: (o[0] @ x, o[1])),
            target=1.01 * TOLERANCE,
        ),
        "expm_multiply": Row(lambda a, b: sparse.linalg.expm_multiply(a / SMALL, b), _well(SMALL, 3), _relative),
        "dfmp2_energy": Row(
            lambda b, o, v: dfmp2_energy(b, o, v).total,
            _pairs,
            lambda o, found, healthy: abs(found - healthy),
            target=ACCURACY,
        ),
        "svd": Row(linalg.svd, _well(SMALL), _backward(_svd)),
        "expm": Row(linalg.expm, _positive(SMALL), _relative),
        "sqrtm": Row(linalg.sqrtm, _positive(SMALL), _relative),
        "logm": Row(linalg.logm, _positive(SMALL), _relative),
        "eigh float32": Row(linalg.eigh, _single(_positive(SMALL)), _backward(_eigh)),
        "svd float32": Row(linalg.svd, _single(_well(SMALL)), _backward(_svd)),
        "expm float32": Row(linalg.expm, _single(_positive(SMALL)), _relative),
    }
)


@record(frozen=False)
class Outcome:
    """What became of the faults of one kind in one row. ``largest``: error of an accepted result, in targets."""

    noticed: int = 0
    harmless: int = 0
    silent: int = 0
    largest: float = 0.0
    worst: Fault | None = None

    def add(self, fault: Fault, error: float | None) -> None:
        """Count a fault: None if it was noticed, else the error of the accepted result in targets."""
        if error is None:
            self.noticed += 1
            return
        silent = not error <= 1
        self.silent += silent
        self.harmless += not silent
        if not error <= self.largest:
            self.largest, self.worst = error, fault


@record(frozen=False)
class Campaign:
    """Faults planted in one row, and the healthy results beside them."""

    row: Row
    device: Device = field(default_factory=Device)
    alarms: int = 0  # healthy calls that were refused

    def outcomes(self, count: int, seed: int) -> Iterator[tuple[Fault, float | None]]:
        """Plant ``count`` faults of kinds in turn, at random places; the error of each in targets, None if noticed."""
        rng = np.random.default_rng(seed)
        self._call(self.row.operands(rng), None)  # what memory holds before
        stale = self.device.planted.outputs
        operands = self.row.operands(rng)
        healthy, taken = self._call(operands, None)
        self.device.planted.outputs = stale
        if not taken:
            self.alarms += 1
            return
        launched, sent = self.device.planted.launched, self.device.planted.sent
        for turn in range(count):
            kind = KINDS[turn % len(KINDS)]
            at = int(rng.integers(sent if kind == "memory" else launched)) if launched else 0
            fault = Fault(kind, at, int(rng.integers(2**31)))
            found, taken = self._call(operands, fault)
            if not self.device.planted.met:  # the call had fewer launches than the healthy one: its checks are random
                continue
            yield fault, self.row.error(operands, found, healthy) / self._target(operands) if taken else None

    def _target(self, operands: Arrays) -> float:
        dtype = operands[0].dtype
        if self.row.target:
            return self.row.target
        if dtype.kind in "iub":
            return 0.5
        unit = eps(dtype, self.row.precision)
        return DOUBLE if unit <= 2.0**-52 else SINGLE * max(operands[0].shape) * unit

    def _call(self, operands: Arrays, fault: Fault | None) -> tuple[Any, bool]:
        """The result, and whether the device's was accepted."""
        self.device.begin(fault)
        settings = policy(
            device="simulator", force=True, fallback="log", time_limit=HANG_S, precision=self.row.precision
        )
        with engine(self.device), settings, trace() as log, np.errstate(all="ignore"):
            result = self.row.call(*operands)
        return result, log[-1].by_device_path


# --- the command ------------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Inject faults and print the table. Returns 1 if a fault remained undetected or a healthy call failed."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance faults",
        description="Inject faults into the simulated device, one in each call, and count those that are detected,\n"
        "harmless (the result is accepted and within its target) and undetected (accepted, with a larger error).\n"
        "Targets: 1e-12 in double precision, of |a_i| |b_j| for products and of the result's own scale\n"
        "otherwise; 100 n eps in other dtypes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--faults", type=int, default=SAMPLE, help=f"how many, for all rows together ({SAMPLE:,})")
    add("--full", action="store_true", help=f"{WHOLE:,} faults: an hour of one core")
    add("--rows", help=f"only these, with commas between: {', '.join(ROWS)}; with --healthy of {', '.join(HEALTHY)}")
    add("--healthy", type=int, default=0, metavar="N", help="count false alarms in N healthy calls")
    add("--seed", type=int, default=0, help="of the random numbers; runs of other seeds add up")
    options = parser.parse_args(argv)
    known = list(HEALTHY if options.healthy else ROWS)
    names = [name.strip() for name in options.rows.split(",")] if options.rows else None
    if unknown := set(names or []) - set(known):
        parser.error(f"--rows {', '.join(sorted(unknown))}: expected some of {', '.join(known)}")
    if options.healthy:
        return _healthy(options.healthy, options.seed, names)
    return _campaign(names or known, WHOLE if options.full else options.faults, options.seed)


def _campaign(names: list[str], faults: int, seed: int) -> int:
    started, kinds, alarmed, silent = time.perf_counter(), {kind: Outcome() for kind in KINDS}, [], 0
    heads = f"{'function':<20}{'faults':>8}{'detected':>10}{'harmless':>10}{'undetected':>12}"
    print(f"{heads}  largest accepted error, in targets")
    for name in names:
        campaign, total, share = Campaign(ROWS[name]), Outcome(), math.ceil(faults / len(names))
        with Status(name) as status:
            for number, (fault, error) in enumerate(campaign.outcomes(share, seed), 1):
                status.step = f"fault {number:,} of {share:,}"
                total.add(fault, error)
                kinds[fault.kind].add(fault, error)
        silent += total.silent
        alarmed += [name] * campaign.alarms
        print(_line(name, total), flush=True)
    print()
    for kind, outcome in kinds.items():
        print(_line(kind, outcome))
    for name in alarmed:
        print(f"{name}: the healthy result was refused, no fault was injected")
    count = sum(o.noticed + o.harmless + o.silent for o in kinds.values())
    seconds = time.perf_counter() - started
    print(f"\n{count:,} faults in {seconds:.0f} s: {silent} undetected (seed {seed})")
    return 1 if silent or alarmed else 0


def _line(name: str, o: Outcome) -> str:
    where = f" ({o.worst.kind}, launch {o.worst.at})" if o.worst is not None else ""
    count = o.noticed + o.harmless + o.silent
    return f"{name:<20}{count:>8,}{o.noticed:>10,}{o.harmless:>10,}{o.silent:>12,}  {o.largest:.2g}{where}"


def _healthy(count: int, seed: int, names: list[str] | None) -> int:
    started, found = time.perf_counter(), 0
    with Status(f"{count:,} healthy calls"):
        for call, why in alarms(count, seed, names):
            found += 1
            print(f"{call}: {why}", flush=True)
    print(f"{count:,} healthy calls in {time.perf_counter() - started:.0f} s: {found} taken for faults (seed {seed})")
    return 1 if found else 0
