"""Every call goes the same way: direct or patched, recorded or not, and as explain says."""

import collections
import threading

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from host_routes import takes_stacks

import trnpy
import trnpy.linalg
import trnpy.sparse
from trnpy._call import decision_cache as _quick
from trnpy._call.decisions import kind_of
from trnpy._engine import lapack
from trnpy._host import integer as _integer
from trnpy._host import pairwise as _pairwise
from trnpy._host import positive as _positive
from trnpy._host import spmm as _spmm
from trnpy._host import stack_routes, tridiagonal
from trnpy._patch import patch
from trnpy._settings.host_rates import DEFAULT_COPY, DEFAULT_CURVES, HostRates
from trnpy._settings.policy import Attention, Policy, ProcessPolicy, Rates

REST = Policy(device="none")


@pytest.fixture(autouse=True)
def at_rest(monkeypatch):
    """A process that asked for nothing, and remembers nothing."""
    monkeypatch.setattr(Attention, "asked", False)
    monkeypatch.setattr(Attention, "apart", False)
    monkeypatch.setattr(ProcessPolicy, "policy", REST)
    monkeypatch.setattr(_quick.Verdicts, "known", _quick.Known(Policy(), None, {}, {}))


def counting(monkeypatch, *functions):
    """Calls of functions of modules, which are those that routes run."""
    found = collections.Counter()

    def counted(module, name, function):
        def call(*args, **kwargs):
            found[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for module, name in functions:
        counted(module, name, getattr(module, name))
    return found


def four_ways(name, direct, namespace, ran, *args, **kwargs):
    """Runs of the route in a call: direct, patched, patched and recorded; the route recorded, and the one explained."""

    def runs(call):
        before = ran.total()
        for _ in range(2):  # decided, then remembered
            call(*args, **kwargs)
        return (ran.total() - before) / 2

    plain = runs(direct)
    with trnpy.patched(name):
        patched = runs(lambda *a, **k: getattr(namespace, direct.__name__)(*a, **k))
        with trnpy.profile() as ledger:
            recorded = runs(lambda *a, **k: getattr(namespace, direct.__name__)(*a, **k))
        routes = {c.decision.route for c in ledger.calls if c.decision.op == name}
        explained = trnpy.explain(getattr(namespace, direct.__name__), *args, **kwargs).route
    with trnpy.trace() as log:
        traced = runs(direct)
    assert {d.route for d in log} == routes == {explained}
    assert plain == patched == recorded == traced == bool(explained)
    return explained


def test_the_function_that_a_look_returns_runs_however_small_the_call_is(monkeypatch):
    """SciPy 1.17's inv may end the process for a matrix in Fortran order that it converts."""
    monkeypatch.setattr(lapack, "inv", lambda *args, **kwargs: "in C order", raising=False)
    monkeypatch.setattr(patch._here, "hooks", {})  # a new one is made, which has loaded no row
    a = np.asfortranarray([[2, 1], [1, 3]])
    with trnpy.patched("scipy.linalg.inv"):
        assert [scipy.linalg.inv(a) for _ in range(3)] == 3 * ["in C order"]
        with trnpy.profile():
            assert [scipy.linalg.inv(a) for _ in range(3)] == 3 * ["in C order"]
    assert [trnpy.linalg.inv(a) for _ in range(3)] == 3 * ["in C order"]


# --- Contractions -----------------------------------------------------------------------------------------------------

ROUTED = [
    ("ijk,kl->ijl", (20, 30, 8), (8, 40)),
    ("ij,jk->ki", (130, 70), (70, 90)),
    ("ij,jk", (130, 70), (70, 90)),
    ("ji,jk", (70, 130), (70, 90)),
    ("...ij,jk", (6, 30, 40), (40, 50)),
    ("...ij,...jk->...ik", (6, 30, 40), (6, 40, 50)),
    ("ij,...j", (90, 80), (20, 80)),
    ("ij,ij", (600, 500), (600, 500)),
    ("ii,ij->j", (400, 400), (400, 900)),
    ("Lpq,pi->Liq", (40, 30, 30), (30, 14)),
    ("Lpq,pq->L", (90, 60, 60), (60, 60)),
    ("Lpi,Lqi->pq", (40, 30, 14), (40, 30, 14)),
    ("kbcj,ikac->ijab", (8, 12, 12, 8), (8, 8, 12, 12)),
    ("bij,bjk->bik", (200, 24, 24), (200, 24, 24)),
    ("ij,jk,kl->il", (30, 70), (70, 40), (40, 30)),
    ("ij,jk,kl", (30, 70), (70, 40), (40, 30)),
    ("...i,ij,jk", (5, 30), (30, 70), (70, 40)),
    ("pi,i,qi->pq", (70, 70), (70,), (70, 70)),
    ("abru,ruts,tsab,abru,abts", (5, 5, 9, 9), (9, 9, 9, 9), (9, 9, 5, 5), (5, 5, 9, 9), (5, 5, 9, 9)),
]
NUMPYS = [
    ("ij,jk->ik", (9, 9), (9, 9)),
    ("ij,jk", (16, 16), (16, 16)),
    ("i,j->ij", (600,), (700,)),
    ("ij->ji", (9, 8)),
    ("ij,ji->", (300, 200), (200, 300)),
]


def operands(shapes, dtype="f8"):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("case", ROUTED + NUMPYS, ids=[c[0] for c in ROUTED + NUMPYS])
def test_a_contraction_goes_one_way(case, dtype, monkeypatch):
    ran = counting(monkeypatch, (_pairwise, "_products"))
    route = four_ways("numpy.einsum", trnpy.einsum, np, ran, case[0], *operands(case[1:], dtype))
    assert route == ("pairwise products" if case in ROUTED else "")


@pytest.mark.parametrize("options", [{"order": "C"}, {"order": "A"}, {"dtype": "f8"}, {"optimize": True}, {"out": 1}])
def test_options_of_a_contraction_lead_one_way(options, monkeypatch):
    ran = counting(monkeypatch, (_pairwise, "_products"))
    options = {"out": np.empty((130, 90))} if "out" in options else options
    a, b = operands(((130, 70), (70, 90)))
    route = four_ways("numpy.einsum", trnpy.einsum, np, ran, "ij,jk->ik", a, b, **options)
    assert bool(route) == ("order" in options or "dtype" in options)


def test_lists_of_labels_lead_where_subscripts_lead(monkeypatch):
    ran = counting(monkeypatch, (_pairwise, "_products"))
    a, b, c = operands(((130, 70), (70, 90), (90, 40)))
    for call in ((a, [0, 1], b, [1, 2]), (a, [0, 1], b, [1, 2], [2, 0]), (a, [0, 1], b, [1, 2], c, [2, 3], [0, 3])):
        assert four_ways("numpy.einsum", trnpy.einsum, np, ran, *call) == "pairwise products"
        np.testing.assert_allclose(trnpy.einsum(*call), np.einsum(*call), rtol=1e-12, atol=1e-12)


def test_operands_that_are_lists_are_as_good_as_arrays(monkeypatch):
    ran = counting(monkeypatch, (_pairwise, "_products"))
    a, b, c = operands(((9, 90), (90, 90), (90, 9)))
    four_ways("numpy.einsum", trnpy.einsum, np, ran, "ij,jk,kl", a.tolist(), b, c)
    np.testing.assert_allclose(trnpy.einsum("ij,jk,kl", a.tolist(), b, c), a @ b @ c, rtol=1e-12, atol=1e-12)


def test_integers_go_one_way(monkeypatch):
    ran = counting(monkeypatch, (_integer, "exact"))
    a = np.arange(40000).reshape(200, 200)
    for n, routed in ((200, True), (20, False)):
        route = four_ways("numpy.matmul", trnpy.matmul, np, ran, a[:n, :n], a[:n, :n])
        assert route == ("exact float64 products" if routed else "")
        assert four_ways("numpy.einsum", trnpy.einsum, np, ran, "ij,jk", a[:n, :n], a[:n, :n]) == route


# --- Rows of scipy.linalg ---------------------------------------------------------------------------------------------


def definite(*shape):
    a = np.random.default_rng(0).standard_normal((*shape, shape[-1]))
    return a @ a.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])


@pytest.mark.parametrize(
    "name",
    ["qr", "eigh", "eigvalsh", "cholesky", "inv", "svdvals", "svd", "pinv", "pinvh", "det", "expm", "lu"],
)
def test_stacks_go_one_way(name, monkeypatch):
    if not takes_stacks(name):
        pytest.skip(f"this SciPy's {name} takes no stacks")
    ran = counting(monkeypatch, (stack_routes.Call, "result"))
    for a in (definite(1100, 4), definite(3, 4)):
        route = four_ways(f"scipy.linalg.{name}", getattr(trnpy.linalg, name), scipy.linalg, ran, a)
        assert bool(route) == (trnpy.linalg.__dict__[name].__trnpy_op__.look((a,), {}) is True)


@pytest.mark.parametrize("name", ["sqrtm", "logm", "fractional_matrix_power"])
@pytest.mark.parametrize("good", [True, False])
def test_functions_of_matrices_go_one_way(name, good, monkeypatch):
    ran = counting(monkeypatch, (_positive, "scaled_product"))
    a = definite(150) if good else definite(150) @ np.diag(np.linspace(-1, 1, 150))
    power = (0.3,) if name == "fractional_matrix_power" else ()
    route = four_ways(f"scipy.linalg.{name}", getattr(trnpy.linalg, name), scipy.linalg, ran, a, *power)
    assert route == ("eigenvectors" if good else "")


def test_a_spectrum_goes_one_way(monkeypatch):
    ran = counting(monkeypatch, (tridiagonal, "eigh"))
    for n in (250, 90):
        route = four_ways("scipy.linalg.eigh", trnpy.linalg.eigh, scipy.linalg, ran, definite(n))
        assert route == ("evd" if n == 250 else "")


# --- Sparse products --------------------------------------------------------------------------------------------------


def ways(a, x, ran):
    """Runs of the route: at rest, traced, recorded; and the route explained."""
    before = ran.total()
    a @ x, a @ x
    plain = (ran.total() - before) / 2
    with trnpy.trace() as log:
        a @ x
    traced = ran.total() - before - 2 * plain
    with trnpy.profile() as ledger:
        a @ x
    recorded = ran.total() - before - 2 * plain - traced
    explained = trnpy.explain(trnpy.sparse._matmul.matmul, a, x).route
    assert [d.route for d in log] == [c.decision.route for c in ledger.calls] == [explained]
    assert plain == traced == recorded == bool(explained)
    return explained


def test_blocks_times_dense_columns_go_one_way(monkeypatch):
    ran = counting(monkeypatch, (_spmm, "bsr_dense"), (_spmm, "compressed_dense"))
    rng = np.random.default_rng(0)
    pattern = scipy.sparse.csr_array(rng.random((12, 12)) < 0.5)
    a = trnpy.sparse.bsr_array(
        (rng.standard_normal((pattern.nnz, 64, 64)), pattern.indices, pattern.indptr), shape=(768, 768)
    )
    x = rng.standard_normal((768, 64))
    assert ways(a, x, ran) == "products of blocks"
    assert ways(a, x[:, :4].copy(), ran) == ways(a, x[:, 0].copy(), ran) == ""
    alike = trnpy.sparse.csr_array(
        scipy.sparse.block_diag([scipy.sparse.coo_array(rng.standard_normal((200, 210))) for _ in range(5)])
    )
    assert ways(alike, rng.standard_normal((1050, 128)), ran) == "products of rows that share columns"
    scattered = trnpy.sparse.csr_array(scipy.sparse.random_array((3000, 3000), density=0.03, rng=rng))
    assert ways(scattered, rng.standard_normal((3000, 32)), ran) == ""


# --- What is remembered -----------------------------------------------------------------------------------------------


def decisions(monkeypatch):
    return counting(monkeypatch, (_quick, "decide"))


def test_a_kind_of_call_is_decided_once(monkeypatch):
    found = decisions(monkeypatch)
    a, b = operands(((130, 70), (70, 90)))
    for _ in range(3):
        trnpy.einsum("ij,jk", a, b)
        with trnpy.patched("numpy.einsum"), trnpy.profile():
            np.einsum("ij,jk", a, b)
    assert found["decide"] == 2  # recorded, with the seconds of a device, and not recorded
    trnpy.einsum("ij,jk", a.astype("f4"), b.astype("f4"))
    trnpy.einsum("ij,jk", a[:100], b)
    trnpy.einsum("ij,jk->ki", a, b)
    assert found["decide"] == 5


def test_recorded_calls_of_a_kind_are_decided_once_whatever_they_are(monkeypatch):
    found = decisions(monkeypatch)
    (a,) = operands(((100, 100),))
    with trnpy.profile() as ledger:
        for _ in range(3):
            trnpy.matmul(a, a), trnpy.linalg.inv(a), trnpy.linalg.solve_triangular(a, a, lower=True)
    assert found["decide"] == 3 and len(ledger.calls) == 9
    assert len({id(c.decision) for c in ledger.calls}) == 3


def test_truths_and_numbers_that_are_equal_are_options_of_their_own():
    (a,) = operands(((100, 100),))
    kinds = {kind_of((a, x), {}) for x in (1, True, 1.0, np.float64(1), "1", None, [1], (1,), [True])}
    assert len(kinds) == 9
    assert kind_of((a, object()), {}) is None and kind_of((a,), {"out": a}) is None


def test_other_rates_and_another_policy_are_decided_anew(monkeypatch):
    ran = counting(monkeypatch, (_pairwise, "_products"))
    a, b = operands(((130, 70), (70, 90)))
    trnpy.einsum("ij,jk", a, b)
    swift = HostRates(dict(DEFAULT_CURVES, einsum=((1, 1e18), (16, 1e18))), DEFAULT_COPY, True, "a swift loop")
    with monkeypatch.context() as m:
        m.setattr(_quick, "current_rates", lambda: swift)
        m.setattr(Rates, "turn", swift)  # as a calibration does
        trnpy.einsum("ij,jk", a, b)
        assert ran["_products"] == 1
    trnpy.einsum("ij,jk", a, b)
    assert ran["_products"] == 2
    monkeypatch.setattr(ProcessPolicy, "policy", Policy(device="none", fallback="raise"))
    with pytest.raises(trnpy.FallbackError):
        trnpy.einsum("ij,jk", a, b)
    with trnpy.policy(fallback="warn"):  # equal to the first
        trnpy.einsum("ij,jk", a, b)
    assert ran["_products"] == 3


def test_threads_under_unlike_policies_decide_for_themselves():
    a, b = operands(((130, 70), (70, 90)))
    expected, wrong = np.einsum("ij,jk", a, b), []

    def work(machine):
        with trnpy.policy(machine=machine), trnpy.trace() as log:
            for _ in range(300):
                if not np.allclose(trnpy.einsum("ij,jk", a, b), expected, rtol=1e-12, atol=1e-12):
                    wrong.append("result")
        wrong.extend(d.machine for d in log if d.machine != machine)

    threads = [threading.Thread(target=work, args=(machine,)) for machine in ("trn1", "trn2", "trn3", "trn2")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


# --- Operands by keyword ----------------------------------------------------------------------------------------------

LARGE = np.random.default_rng(0).standard_normal((300, 300))
POSITIVE = LARGE @ LARGE.T + 300 * np.eye(300)
KEYWORDS = {
    "numpy.dot": {"a": LARGE, "b": LARGE},
    "numpy.tensordot": {"a": LARGE, "b": LARGE, "axes": 1},
    "numpy.linalg.svd": {"a": LARGE, "compute_uv": False},
    "numpy.linalg.solve": {"a": LARGE, "b": LARGE},
    "scipy.linalg.cholesky": {"a": POSITIVE},
    "scipy.linalg.eigh": {"a": POSITIVE, "b": POSITIVE},
    "scipy.linalg.solve": {"a": POSITIVE, "b": LARGE, "assume_a": "pos"},
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_operands_by_keyword_are_decided_as_positional_ones(name):
    namespace, _, attribute = name.rpartition(".")
    module = {"numpy": np, "numpy.linalg": np.linalg, "scipy.linalg": scipy.linalg}[namespace]
    arrays = {k: v for k, v in KEYWORDS[name].items() if isinstance(v, np.ndarray)}
    options = {k: v for k, v in KEYWORDS[name].items() if k not in arrays}
    with trnpy.policy(device="null"), trnpy.patched(name), trnpy.trace() as traced, trnpy.profile() as ledger:
        getattr(module, attribute)(*arrays.values(), **options)
        getattr(module, attribute)(**arrays, **options)
    positional, keyword = (d for d in traced if d.op == name)
    assert (keyword.reason, keyword.detail, keyword.device_s) == (
        positional.reason,
        positional.detail,
        positional.device_s,
    )
    assert keyword.device_s is not None  # small calls have no modelled time
    assert [t.calls for t in ledger.by_function() if t.op == name] == [2]
