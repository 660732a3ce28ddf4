"""cg and gmres with preconditioners, complex systems and callbacks: on the device path, with SciPy's answers."""

import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from doubles import FaultyEngine
from dry_runs import assert_dry_is_the_run
from test_sparse_krylov import SOLVERS, adopted, convective, forced, laplacian, relative_residual

import trnpy
import trnpy.sparse.linalg as ours_linalg
from trnpy._call.dispatch import NkiFallbackWarning, Reason
from trnpy._engine.engines import HostEngine, engine
from trnpy.sparse.linalg import _cg_gmres

SIDE = 8
N = SIDE * SIDE


def graded(seed=0):
    """A Laplacian beside a diagonal whose elements differ by 1e4: diagonal preconditioners help it."""
    rng = np.random.default_rng(seed)
    return (laplacian(SIDE) + scipy.sparse.diags_array(10.0 ** rng.uniform(0, 4, N))).tocsr()


def hermitian(seed=0):
    a = graded(seed).astype(complex)
    turn = 0.4j * scipy.sparse.diags_array(np.ones(N - 1), offsets=1, shape=(N, N))
    return (a + turn + turn.conj().T).tocsr()


def near_inverse(a):
    """A sparse, Hermitian, positive definite matrix near the inverse of ``a``."""
    full = np.linalg.inv(a.toarray())
    size = np.sqrt(np.abs(np.outer(full.diagonal(), full.diagonal())))
    return scipy.sparse.csr_array(np.where(np.abs(full) > 1e-2 * size, full, 0))


PRECONDITIONERS = {
    "diagonal": lambda a: scipy.sparse.diags_array(1 / a.diagonal().real),
    "diagonal, far from one": lambda a: scipy.sparse.csr_array(np.diag(1e150 / a.diagonal().real)),
    "sparse": near_inverse,
    "sparse, far from one": lambda a: near_inverse(a) * 1e-150,
    "dense": lambda a: near_inverse(a).toarray(),
}
KERNELS = {"cg": "cg_iterations", "gmres": "gmres_steps"}


def system(solver, complex_):
    a = hermitian() if complex_ else graded()
    a = a if solver == "cg" else convective(a)
    rng = np.random.default_rng(1)
    b = rng.standard_normal(N) + (1j * rng.standard_normal(N) if complex_ else 0)
    return a, b


CASES = [(s, name, c, "none") for s in SOLVERS for name in (None, *PRECONDITIONERS) for c in (False, True)]
CASES += [("cg", "sparse", True, "simulator"), ("gmres", "sparse", False, "simulator")]


@pytest.mark.parametrize("solver, name, complex_, device", CASES)
def test_systems_are_solved_in_launches_of_many_steps(solver, name, complex_, device):
    a, b = system(solver, complex_)
    m = None if name is None else PRECONDITIONERS[name](graded() if solver == "gmres" else a)
    (x, info), log = forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, M=m, rtol=1e-9), device)
    assert info == 0 and x.dtype == a.dtype and x.shape == b.shape
    assert relative_residual(a, x, b) <= 1e-9 * (1 + 1e-6)
    assert log[0].on_device, log[0].detail
    if device == "simulator":
        assert 0 < dict(log[0].launches)[KERNELS[solver]] <= 6


@pytest.mark.parametrize("name", ["diagonal", "sparse"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_preconditioner_saves_steps(solver, name):
    """By as much as it saves SciPy's iterations, to within a factor of two; without it not even twice as many do."""
    a, b = system(solver, False)
    m = PRECONDITIONERS[name](graded())
    counts = []
    options = {"rtol": 1e-4} | ({"callback_type": "pr_norm"} if solver == "gmres" else {})
    for inverse in (None, m):
        seen = []
        getattr(scipy.sparse.linalg, solver)(a, b, M=inverse, callback=seen.append, **options)
        counts.append(len(seen))
    assert counts[1] * 2 < counts[0]
    with trnpy.policy(force=True):
        prepare = {"cg": _cg_gmres.prepare_cg, "gmres": _cg_gmres.prepare_gmres}[solver]
        problem = prepare(a, b, M=m, rtol=1e-4)
        problem = type(problem).of(problem, **_fields(problem) | {"steps": 2 * counts[1] + 2})
        x, info = problem.run(HostEngine())
    assert info == 0 and relative_residual(a, x, b) <= 1e-4 * (1 + 1e-6)


def _fields(problem):
    return {name: getattr(problem, name) for name in problem.option_names()}


@pytest.mark.parametrize(
    "solver, name, complex_",
    [("cg", None, True), ("cg", "diagonal", True), ("cg", "sparse", False), ("gmres", "sparse", True)],
)
def test_dry_runs_are_the_runs(solver, name, complex_):
    a, b = system(solver, complex_)
    m = None if name is None else PRECONDITIONERS[name](graded() if solver == "gmres" else a)
    with trnpy.policy(force=True):
        prepare = {"cg": _cg_gmres.prepare_cg, "gmres": _cg_gmres.prepare_gmres}[solver]
        assert_dry_is_the_run(prepare(a, b, M=m, rtol=1e-7))


@pytest.mark.parametrize("solver", SOLVERS)
def test_dry_runs_of_scipys_iteration_are_its_products(solver, monkeypatch):
    a, b = system(solver, False)
    made, products = _cg_gmres.product_of, []

    def counted(*args):
        product = made(*args)
        return lambda x: products.append(x.shape) or product(x)

    with trnpy.policy(force=True):
        prepare = {"cg": _cg_gmres.prepare_cg, "gmres": _cg_gmres.prepare_gmres}[solver]
        options = {"callback": lambda state: None} | ({"callback_type": "x"} if solver == "gmres" else {})
        problem = prepare(a, b, rtol=1e-3, **options)
        monkeypatch.setattr(_cg_gmres, "product_of", counted)
        problem.run(HostEngine())
        monkeypatch.setattr(_cg_gmres, "product_of", made)
        monkeypatch.setattr(_cg_gmres, "ITERATIONS", len(products))
        assert products and set(products) == {(N,)}
        assert_dry_is_the_run(problem)


@pytest.mark.parametrize("solver", SOLVERS)
def test_preconditioners_that_are_functions_are_applied_by_the_host(solver):
    a, b = system(solver, False)
    m = scipy.sparse.linalg.LinearOperator(a.shape, scipy.sparse.linalg.spilu(a.tocsc()).solve)
    (x, info), log = forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, M=m, rtol=1e-9))
    expected, _ = getattr(scipy.sparse.linalg, solver)(a, b, M=m, rtol=1e-9)
    assert info == 0 and log[0].on_device
    np.testing.assert_allclose(x, expected, rtol=1e-7)


@pytest.mark.parametrize("precision", ["matched", "mixed"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_scipys_iteration_is_proved_in_every_precision_of_full_accuracy(solver, precision):
    a, b = system(solver, False)
    options = {"callback": lambda state: None} | ({"callback_type": "x"} if solver == "gmres" else {})
    (x, info), log = forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, **options), precision=precision)
    assert info == 0 and log[0].on_device and relative_residual(a, x, b) < 1.1e-5


CALLS = [("cg", {}), *(("gmres", {"callback_type": kind, "restart": 5}) for kind in ("x", "pr_norm", "legacy"))]
# Solves that end at maxiter, and that converge; one of them by the kernels on the simulator.
WATCHED = [(*call, most, "none") for call in CALLS for most in (None, 7)] + [("cg", {}, 7, "simulator")]


@pytest.mark.parametrize("solver, options, maxiter, device", WATCHED)
def test_callbacks_see_what_scipys_see(solver, options, maxiter, device):
    """So many calls, also when verified, with the same arguments to rounding errors; of cg always the same array."""
    a = laplacian(SIDE) if solver == "cg" else convective(laplacian(SIDE))
    b = np.random.default_rng(3).standard_normal(N)
    options = options | {"maxiter": maxiter, "rtol": 1e-7}
    ours, theirs = [], []

    def noting(states):
        return lambda state: states.append((id(state), np.array(state)))

    expected, code = getattr(scipy.sparse.linalg, solver)(a, b, callback=noting(theirs), **options)
    call = getattr(ours_linalg, solver)
    with trnpy.policy(verify=1.0):
        (x, info), log = forced(lambda: call(adopted(a), b, callback=noting(ours), **options), device)
    assert log[0].on_device and info == code and len(ours) == len(theirs) > 0
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-12)
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-10)
    assert solver != "cg" or len({i for i, _ in ours}) == 1


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("part", ["callback", "M"])
def test_what_a_callback_or_a_preconditioner_raises_is_the_callers(solver, part):
    """It is no fault of the device, ends the solve at once, and nothing runs again."""
    a, b = system(solver, False)
    calls = []

    class Enough(Exception):
        pass

    def stop(state):
        calls.append(state)
        if len(calls) == 3:
            raise Enough
        return state

    m = scipy.sparse.linalg.LinearOperator(a.shape, stop, dtype=float)
    options = {"M": m} if part == "M" else {"callback": stop}
    options |= {"callback_type": "pr_norm"} if solver == "gmres" else {}
    sound = HostEngine()
    with engine(sound), pytest.raises(Enough):
        forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, **options))
    assert len(calls) == 3 and sound.health.faults == 0 and sound.counters.launches["bsr_spmm"]


def test_the_warning_of_gmres_names_the_line_that_scipys_names():
    a, b = system("gmres", False)

    def warned(function, m):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with trnpy.policy(force=True):
                call = lambda: function(m, b, callback=lambda norm: None)  # noqa: E731 - one line for both
                call()
        return [(w.category, str(w.message), w.filename, w.lineno) for w in found]

    assert warned(ours_linalg.gmres, adopted(a)) == warned(scipy.sparse.linalg.gmres, a) != []


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "m, reason",
    [
        (scipy.sparse.csr_array((N, N)), Reason.VALUE),
        (scipy.sparse.diags_array([np.nan] * N), Reason.VALUE),
    ],
    ids=["zero", "NaN"],
)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
def test_preconditioners_that_are_no_inverses_are_scipys(solver, m, reason):
    a, b = system(solver, False)
    (_, info), log = forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, M=m, maxiter=3))
    assert not log[0].on_device and log[0].reason is reason, log[0]
    with np.errstate(all="ignore"):
        assert info == getattr(scipy.sparse.linalg, solver)(a, b, M=m, maxiter=3)[1]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["diagonal", "sparse"])
def test_a_kernel_that_is_wrong_is_found_out(solver, name):
    a, b = system(solver, False)
    m = PRECONDITIONERS[name](graded())
    with engine(FaultyEngine("wrong")), warnings.catch_warnings():
        warnings.simplefilter("ignore", NkiFallbackWarning)
        (x, info), _ = forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, M=m, rtol=1e-9))
    assert info == 0 and relative_residual(a, x, b) <= 1e-9 * (1 + 1e-6)


def test_what_is_wrong_by_more_than_rounding_is_no_product():
    """One element by 1e-9 of what it sums; SciPy's own product passes."""
    a, b = system("cg", False)

    class Wrong(HostEngine):
        wrong = True

        def kernel(self, name, /, *operands, **parameters):
            found = super().kernel(name, *operands, **parameters)
            if self.wrong and name == "bsr_spmm":
                found.array[5, 0] *= 1 + 1e-9
            return found

    wrong = Wrong()
    with engine(wrong), pytest.warns(NkiFallbackWarning, match="sparse matrix is wrong"):
        _, log = forced(lambda: ours_linalg.cg(adopted(a), b, callback=lambda x: None))
    assert log[0].reason is Reason.ACCURACY
    wrong.wrong = False
    with engine(wrong):
        assert forced(lambda: ours_linalg.cg(adopted(a), b, callback=lambda x: None))[1][0].on_device


def test_the_model_decides_between_steps_and_scipys_iteration():
    """Steps pay for full tiles; one product a launch in float64 does not, and a reason is given."""
    full = scipy.sparse.csr_array(scipy.linalg.toeplitz(np.r_[1500.0, np.ones(1279)]))
    jacobi = scipy.sparse.diags_array(1 / full.diagonal())
    with trnpy.policy(device="null"), trnpy.resident(full.data):
        steps, one = (
            trnpy.explain(ours_linalg.cg, adopted(full), np.ones(1280), **options)
            for options in ({"M": jacobi}, {"callback": print})
        )
        stencil = trnpy.explain(ours_linalg.cg, adopted(laplacian(30)), np.ones(900), M=jacobi)
    assert steps.on_device and steps.reason is Reason.FASTER
    assert not one.on_device and one.reason in (Reason.SLOWER, Reason.MEMORY_BOUND)
    assert not stencil.on_device
