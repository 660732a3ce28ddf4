"""The dry run of every row with a device path against what its call really launches, moves and multiplies."""

import dataclasses
import importlib
import itertools
import pkgutil
import time

import numpy as np
import pytest
from dry_runs import Recorded, assert_dry_is_the_run, tallied

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.decisions import _tally, work_of
from trnpy._call.dispatch import Op, Unsupported
from trnpy._call.rows import rows as rows_of
from trnpy._einsum import rows
from trnpy._engine.engines import DeviceEngine
from trnpy._engine.tuning import Buckets
from trnpy._settings.host_rates import current_rates
from trnpy._settings.policy import Policy
from trnpy.chem import ao2mo, build_jk_df, dfmp2_energy, screened_spmm
from trnpy.chem._block_pairs import dfmp2_pairs
from trnpy.linalg import _lapack_rows
from trnpy.linalg._blas_rows import OPS as BLAS_OPS
from trnpy.linalg._inv_sqrtm import OPS as OWN_OPS

NUMPY_OPS = rows_of("numpy.linalg")
OPS = rows_of("scipy.linalg")

N = 150  # more than one panel of 128; of float64 large enough to be kept on the device
RNG = np.random.default_rng(0)


def general(dtype="d", rows=None, columns=None):
    rows, columns = rows or N, columns or N
    a, b = RNG.standard_normal((2, rows, columns))
    return (a + 1j * b if dtype in "FD" else a).astype(dtype)


def positive(dtype="d"):
    a = general(dtype)
    return (a @ a.conj().T / N + np.eye(N)).astype(dtype)


def hermitian(dtype="d"):
    a = general(dtype)
    return ((a + a.conj().T) / 2).astype(dtype)


def symmetric(count, n):
    a = RNG.standard_normal((count, n, n))
    return a + a.mT


def orbitals(occupied, virtual, auxiliary):
    b = RNG.standard_normal((occupied, virtual, auxiliary))
    return b / 10, -RNG.uniform(1, 2, occupied), RNG.uniform(0, 3, virtual)


def blocks(left, right, options):
    """Arguments of dfmp2_pairs for two blocks of orbitals."""
    return (left[0], right[0]), (left[1:], right[1:]), (2.0, -1.0), {"total": 66, **options}


def stack(*shape):
    return list(RNG.standard_normal(shape))


def factored():
    return np.linalg.cholesky(positive())


CALLS = {  # by the last part of a row's name: functions of a dtype that make the arguments, and options
    "cholesky": [lambda d: (positive(d),)],
    "cho_factor": [lambda d: (positive(d),)],
    "cho_solve": [lambda d: ((factored().astype(d), True), general(d))],
    "lu": [lambda d: (general(d),)],
    "lu_factor": [lambda d: (general(d),), lambda d: (general(d, N, 2 * N),)],
    "lu_solve": [lambda d: ((positive(d), np.arange(N)), general(d))],
    "det": [lambda d: (general(d),)],
    "slogdet": [lambda d: (general(d),)],
    "solve": [lambda d: (general(d), general(d)), lambda d: (np.stack([general(d)] * 2), np.stack([general(d)] * 2))],
    "solve_triangular": [lambda d: (positive(d), general(d))],
    "inv": [lambda d: (general(d),)],
    "qr": [lambda d: (general(d),), lambda d: (general(d, 5 * N, N), "reduced")],
    "lstsq": [
        lambda d: (general(d, 5 * N, N), general(d, 5 * N, 3)),
        lambda d: (general(d, N, 5 * N), general(d, N, 3)),
        lambda d: (general(d, N, N), general(d, N, 3)),
    ],
    "eigh": [lambda d: (hermitian(d),)],
    "scipy.linalg.eigh": [lambda d: (hermitian(d),), lambda d: (hermitian(d), positive(d))],
    "eigvalsh": [lambda d: (hermitian(d),)],
    "svd": [lambda d: (general(d),)],
    "scipy.linalg.svd": [lambda d: (general(d),), lambda d: (general(d, 2 * N, N),)],
    "svdvals": [lambda d: (general(d),)],
    "cond": [lambda d: (general(d),)],
    "matrix_rank": [lambda d: (general(d),)],
    "norm": [lambda d: (general(d), 2), lambda d: (general(d), "nuc")],
    "pinv": [lambda d: (general(d),)],
    "pinvh": [lambda d: (hermitian(d),)],
    "polar": [lambda d: (general(d),)],
    "orth": [lambda d: (general(d),)],
    "null_space": [lambda d: (general(d, N, N + 20),)],
    "expm": [lambda d: ((general(d) / np.sqrt(N)).astype(d),)],
    "sqrtm": [lambda d: (positive(d),)],
    "logm": [lambda d: (positive(d),)],
    "fractional_matrix_power": [lambda d: (positive(d), 0.3)],
    "matrix_power": [lambda d: (general(d), 5)],
    "inv_sqrtm": [lambda d: (positive(d),), lambda d: (positive(d), "newton-schulz")],
    "syevd": [lambda d: (hermitian(d),)],
    "sygvd": [lambda d: (hermitian(d), positive(d))],
    "potrf": [lambda d: (positive(d),)],
    "posv": [lambda d: (positive(d), general(d))],
    "getrf": [lambda d: (general(d),)],
    "gesv": [lambda d: (general(d), general(d))],
    "matmul": [
        lambda d: (general(d), general(d)),
        lambda d: (c := general(d), c.T),
        lambda d: (general(d, 3 * N, N).reshape(3, N, N), general(d, N, 20)),
        lambda d: (general(d, 12, 30), general(d, 4 * 30, 7).reshape(4, 30, 7)),
        lambda d: (general(d, 4 * 9, 30).reshape(4, 9, 30), general(d, 4 * 30, 7).reshape(4, 30, 7)),
    ],
    "dot": [lambda d: (general(d), general(d)[0])],
    "inner": [lambda d: (general(d), general(d))],
    "tensordot": [lambda d: (general(d, N, 4 * 50).reshape(N, 4, 50), general(d, 50, N), (2, 0))],
    "kron": [lambda d: (general(d, 20, 30), general(d, 10, 5))],
    "khatri_rao": [lambda d: (general(d, 20, 30), general(d, 10, 30))],
    "multi_dot": [lambda d: ([general(d), general(d, N, 40), general(d, 40, 300)],)],
    "einsum": [
        lambda d: ("ijk,kl->ijl", general(d, N, 4 * 50).reshape(N, 4, 50), general(d, 50, N)),
        lambda d: ("iji,jk,kl->kl", general(d, N, 8 * N).reshape(N, 8, N), general(d, 8, 40), general(d, 40, 300)),
        lambda d: ("mnrs,rk,sl,mi->nikl", general(d, 900, 900).reshape(30, 30, 30, 30), *(general(d, 30, 9),) * 3),
    ],
    "multi_einsum": [
        lambda d: ([("ij,jk->ik", *pair) for pair in itertools.product(stack(4, 20, 30), stack(2, 30, 25))],),
        lambda d: ([("iL,jL->ij", *pair) for pair in itertools.product(stack(5, 20, 30), repeat=2)],),
        lambda d: ([("ij,jk->ik", general(d, n, 30), general(d, 30, n + 2)) for n in range(40, 50)],),
        lambda d: ([("ij,jk,k->i", *stack(1, 40, 30), *stack(1, 30, 20), np.ones(20)), ("ii->i", general(d))],),
    ],
    "gemm": [lambda d: (2.0, general(d), general(d), 3.0, general(d)), lambda d: (1.0, c := general(d), c, 0, None, 1)],
    "ao2mo": [
        lambda d: (symmetric(9, 60), general(d, 60, 20), general(d, 60, 7)),
        lambda d: (symmetric(400, 20).reshape(20, 20, 20, 20), general(d, 20, 4), general(d, 20, 9)),
        lambda d: (symmetric(9, 60)[:, *np.tril_indices(60)], general(d, 60, 7), general(d, 60, 20)),
    ],
    "build_jk_df": [
        lambda d: (symmetric(9, 60), symmetric(2, 60)),
        lambda d: (symmetric(9, 60)[:, *np.tril_indices(60)], symmetric(1, 60)[0], "orbitals"),
    ],
    "screened_spmm": [
        lambda d: (general(d, 520, N) * 10.0 ** -RNG.uniform(0, 6, (520, 1)), general(d, N, 30), 1e-3),
    ],
    "dfmp2_energy": [
        lambda d: orbitals(6, 40, 50),
        lambda d: (*orbitals(6, 40, 50), {"accuracy": 1.0}),
        lambda d: (*orbitals(6, 40, 50), {"with_t2": True}),
        lambda d: (*zip(orbitals(6, 20, 50), orbitals(5, 200, 50), strict=True), {"accuracy": 1.0}),
    ],
    "dfmp2_pairs": [
        lambda d: ((b := orbitals(6, 40, 50))[:1], (b[1:],), (2.0, -1.0), {"total": 21}),
        lambda d: blocks(orbitals(6, 40, 50), orbitals(5, 40, 50), {"parity": 1, "accuracy": 1.0}),
    ],
    "symm": [lambda d: (2.0, general(d), general(d))],
    "hemm": [lambda d: (2.0, general(d), general(d), 1.0, general(d), 1)],
    "syrk": [lambda d: (2.0, general(d), 1.0, general(d, N, N))],
    "herk": [lambda d: (2.0, general(d))],
    "syr2k": [lambda d: (2.0, general(d), general(d))],
    "her2k": [lambda d: (2.0, general(d), general(d), 1.0, general(d))],
    "trmm": [lambda d: (2.0, general(d), general(d), 0, 1, 0, 1)],
    "trsm": [lambda d: (2.0, positive(d), general(d))],
}
SECOND_ARGUMENT = {"scipy.linalg": {"reduced": {"mode": "economic"}}, "numpy.linalg": {"reduced": {"mode": "reduced"}}}
NO_DEVICE_PATH = {"scipy.sparse.multiply", "scipy.linalg.eig", "scipy.linalg.eigvals"}
ROWS = (*OPS, *NUMPY_OPS, *OWN_OPS, *_lapack_rows.OPS, *BLAS_OPS, *rows.OPS)
ROWS = tuple(op for op in ROWS if op.name not in NO_DEVICE_PATH)
ROWS += tuple(
    f.__trnpy_op__ for f in (trnpy.multi_einsum, build_jk_df, ao2mo, dfmp2_energy, dfmp2_pairs, screened_spmm)
)

BESIDE = {  # rows whose dry runs are held in tests/sparse/test_sparse_dry.py
    "scipy.sparse.matmul", *(f"scipy.sparse.linalg.{name}" for name in ("cg", "gmres", "eigsh", "lobpcg")),
    "scipy.sparse.linalg.expm_multiply", "scipy.sparse.linalg.expm",  # the problem of scipy.linalg.expm
}  # fmt: skip


def test_every_row_has_a_case():
    walked = pkgutil.walk_packages(trnpy.__path__, "trnpy.")
    modules = [
        m.name for m in walked if m.name.split(".")[1] in ("_einsum", "linalg", "sparse", "chem", "_host", "dist")
    ]
    found = set()
    for name in modules:
        if not name.endswith(("torch_bridge", "pyscf_patch", "pyscf_methods", "_mpi")):  # PySCF's are in tests/chem
            for value in vars(importlib.import_module(name)).values():
                value = getattr(value, "__trnpy_op__", value)
                found.update(
                    op.name for op in (value if isinstance(value, tuple | list) else [value]) if isinstance(op, Op)
                )
    assert found == {op.name for op in ROWS} | BESIDE | NO_DEVICE_PATH


def cases():
    for op in ROWS:
        module, _, name = op.name.rpartition(".")
        single = ("cholesky", "solve", "lu_factor", "qr", "inv", "expm")
        dtypes = "fd" if name in single or op.name in ("scipy.linalg.eigh", "scipy.linalg.svd") else "d"
        if name == "matmul":
            dtypes = "fdFDil?e"
        if module.endswith("blas"):
            dtypes, name = {"s": "f", "d": "d", "c": "F", "z": "D"}[name[0]], name[1:]
        if module.endswith("lapack"):
            dtypes, name = {"s": "f", "d": "d", "c": "F", "z": "D"}[name[0]], name[1:].replace("he", "sy", 1)
        elif name in ("cholesky", "eigh") and module == "scipy.linalg":
            dtypes += "D"
        for i, make in enumerate(CALLS.get(op.name) or CALLS[name]):
            for dtype in dtypes:
                yield pytest.param(op, make, dtype, id=f"{op.name}-{i}-{dtype}")


@pytest.fixture(autouse=True)
def seeded():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def problems(op, make, dtype):
    args = make(dtype)
    options = {}
    if isinstance(args[-1], dict):
        *args, options = args
    if isinstance(args[-1], str) and args[-1] == "orbitals":
        options, args = {"orbitals": general("d", args[1].shape[-1], 7)}, args[:-1]
    if isinstance(args[-1], str) and args[-1] == "reduced":
        options, args = SECOND_ARGUMENT[op.name.rpartition(".")[0]]["reduced"], args[:-1]
    problem = op.prepare(*args, **options)
    # Rows share their methods: one call of each kind takes all on the simulator, where a sweep takes seconds.
    every = op.name in ("scipy.linalg.eigh", "scipy.linalg.svd") and make is CALLS[op.name][0] and dtype != "f"
    methods = problem.methods if every else problem.methods[:1]
    for method in methods or ("",):
        yield dataclasses.replace(problem, method=method)


@pytest.mark.parametrize("op, make, dtype", list(cases()))
def test_a_dry_run_that_is_told_the_values_is_the_run(op, make, dtype):
    """As many launches of each kernel, the same bytes each way, the same products."""
    for problem in problems(op, make, dtype):
        assert_dry_is_the_run(problem)


@pytest.mark.parametrize("op", [op for op in ROWS if op.dtypes and op.name.startswith(("numpy", "scipy"))])
def test_docstrings_state_the_dtypes_with_a_device_path(op):
    def on_device(dtype):
        try:
            (problem, *_) = problems(op, (CALLS.get(op.name) or CALLS[op.name.rpartition(".")[2]])[0], dtype)
        except Unsupported:
            return False
        return problem.on_device

    with trnpy.policy(force=True):
        assert {c for c in "?bBhHiIlLqQefdFD" if on_device(c)} == set(op.dtypes)


def row_work(op, *operands, **options):
    """Of a row of scipy.linalg, for operands of stated shapes."""
    row = {o.name: o for o in OPS}[f"scipy.linalg.{op}"]
    return work_of(row.prepare(*(np.broadcast_to(np.zeros((), d), s) for s, d in operands), **options))


@pytest.mark.parametrize("method", ["start", "divide"])
@pytest.mark.parametrize("n", [2000, 4000, 8000])
def test_a_generalized_eigenproblem_takes_what_its_parts_take(n, method, monkeypatch):
    """B = L L^H, three triangular systems, one standard problem: one after the other on one engine.

    On engines of their own the parts would have a dozen shapes of products each before these are cut. Only the whole
    compares the factor L between the systems, by fingerprints.
    """
    a, rates, policy = ((n, n), "d"), current_rates(), Policy(device_memory=1.0)  # all: else 8000 rows are too many
    tally = row_work("eigh", a, a)._replace(method=method).tally(TRN2, policy)
    whole = tally.seconds(TRN2, rates) - tally.host_s(rates)["fingerprint"]
    factor, solve = row_work("cholesky", a, lower=True), row_work("solve_triangular", a, a, lower=True)
    parts = [factor, solve, solve, row_work("eigh", a)._replace(method=method), solve]
    buckets = Buckets()
    monkeypatch.setattr("trnpy._engine.device.Buckets", lambda tiles: buckets)
    tallies = [_tally.__wrapped__(part, TRN2, policy) for part in parts]  # which no cache remembers
    assert whole == pytest.approx(sum(tally.seconds(TRN2, rates) for tally in tallies), rel=0.02)


USUAL = {  # rows of which random matrices take the stated counts, and how far launches and bytes may be off
    # expm: five of 26 forms of operands are needed in two numbers of digits
    "cholesky": 0.01, "lu_factor": 0.01, "cho_solve": 0.01, "solve_triangular": 0.01, "qr": 0.01, "lstsq": 0.01,
    "inv": 0.01, "matrix_power": 0.01, "expm": 0.1, "eigh": 0.01, "svd": 0.01,
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_what_values_decide_is_usually_as_stated(name, monkeypatch):
    monkeypatch.setitem(globals(), "N", 450)  # with few columns, one small number is a digit more
    op = {o.name.rpartition(".")[2]: o for o in (*NUMPY_OPS, *OPS)}[name]
    problem = next(problems(op, CALLS[name][0], "d"))
    runtime = Recorded()
    problem.run(DeviceEngine(runtime))
    tally, counters = tallied(problem), runtime.counters
    assert tally.launched == pytest.approx(counters.launches.total(), rel=USUAL[name])
    assert tally.bytes_in == pytest.approx(counters.bytes_in, rel=USUAL[name])
    assert tally.bytes_out == pytest.approx(counters.bytes_out, rel=USUAL[name])


def test_a_dry_run_of_a_large_call_takes_little_memory_and_time():
    op = {o.name: o for o in OPS}["scipy.linalg.eigh"]
    problem = op.prepare(np.broadcast_to(0.0, (4096, 4096)))
    started = time.thread_time()
    tally = tallied(dataclasses.replace(problem, method="start"))
    assert time.thread_time() - started < 1.0 and tally.launched < 100


def test_a_call_for_which_no_instance_has_memory_is_refused_in_a_sentence():
    a = np.broadcast_to(1.0, (2**13, 2**13))  # a Kronecker product of 2^52 elements
    with trnpy.policy(device="null"):
        decision = trnpy.explain(trnpy.kron, a, a)
    needed = 8 * (2**52 + 2 * 2**26) / 2**30
    assert not decision.on_device and decision.reason is trnpy.Reason.LAYOUT
    assert decision.detail == f"operands and results of {needed:,.0f} GiB exceed the memory of any instance"
