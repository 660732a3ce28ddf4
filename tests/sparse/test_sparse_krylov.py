"""trnpy.sparse.linalg: systems on engines, with the answers, tolerances and refusals of SciPy."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from doubles import FaultyEngine, RecordingEngine

import trnpy
import trnpy.sparse
import trnpy.sparse.linalg as ours_linalg
from nkisim.hardware import TRN2
from trnpy._call.dispatch import NkiFallbackWarning, Reason
from trnpy._engine.engines import DeviceEngine, engine
from trnpy._nki.simulated import SimulatorRuntime
from trnpy.sparse._classes import OURS

DEVICES = ("none", "simulator")  # forced without a device: the kernels' twins on the host
SOLVERS = ("cg", "gmres")


def laplacian(side, dimensions=2):
    line = scipy.sparse.diags_array([-1.0, 2, -1], offsets=(-1, 0, 1), shape=(side, side))
    one = scipy.sparse.eye_array(side)
    total = scipy.sparse.csr_array((side**dimensions,) * 2)
    for at in range(dimensions):
        term = scipy.sparse.eye_array(1)
        for axis in range(dimensions):
            term = scipy.sparse.kron(term, line if axis == at else one)
        total = total + term
    return total.tocsr()


def graded(side=15):
    """A Laplacian in units that differ by 10^12."""
    d = scipy.sparse.diags_array(10.0 ** np.linspace(-6, 6, side * side))
    return (d @ laplacian(side) @ d).tocsr()


def fock(rng, n=200):
    """Diagonally dominant blocks that decay away from the diagonal, as a shifted Fock matrix in local orbitals."""
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)) // 5)
    a = rng.standard_normal((n, n)) * np.exp(-1.0 * distance) * (distance < 8)
    a = (a + a.T) / 2
    return scipy.sparse.csr_array(a + np.diag(np.abs(a).sum(axis=1) + rng.random(n)))


MATRICES = {
    "Laplacian 2-D": laplacian(15),
    "Laplacian 3-D": laplacian(6, 3),
    "graded": graded(),
    "Fock-like": fock(np.random.default_rng(1)),
}


def convective(a):
    """``a`` with a drift: no longer symmetric."""
    n = a.shape[0]
    return (a + scipy.sparse.diags_array([0.3] * (n - 1), offsets=1, shape=(n, n))).tocsr()


def adopted(a):
    return OURS[type(a)](a)


def forced(call, device="none", **settings):
    with trnpy.policy(device=device, force=True, **settings), trnpy.trace() as log:
        result = call()
    return result, [d for d in log if d.op.startswith("scipy.sparse.linalg")]


def outcome(call):
    """What ``call`` returns, or the class and message of what it raises."""
    try:
        return call()
    except Exception as why:
        return type(why), str(why)


def relative_residual(a, x, b):
    return np.linalg.norm(b - a @ x) / np.linalg.norm(b)


# SciPy's own solvers do not converge to 1e-11, nor its gmres at all, in units that differ by 10^12. On the host the
# kernels' twins run at both tolerances, on the simulator the kernels at one each.
SYSTEMS = [
    (solver, name, rtol, device)
    for solver in SOLVERS
    for name in MATRICES
    for rtol in (1e-5, 1e-11)
    for device in DEVICES
    if name != "graded" or (solver, rtol) == ("cg", 1e-5)
    if device == "none" or (rtol < 1e-6) == (name in ("Laplacian 3-D", "Fock-like"))
]


@pytest.mark.parametrize("solver, name, rtol, device", SYSTEMS)
def test_the_residual_is_scipys_at_the_same_tolerance(solver, name, rtol, device):
    a = MATRICES[name] if solver == "cg" else convective(MATRICES[name])
    b = a @ np.random.default_rng(2).standard_normal(a.shape[0])
    theirs, info = getattr(scipy.sparse.linalg, solver)(a, b, rtol=rtol)
    (x, code), log = forced(lambda: getattr(ours_linalg, solver)(adopted(a), b, rtol=rtol), device)
    assert code == info == 0 and x.dtype == theirs.dtype and x.shape == theirs.shape
    assert relative_residual(a, x, b) <= rtol * (1 + 1e-6)
    assert [d.on_device for d in log] == [True], log[0].detail
    launches = dict(log[0].launches)
    print(f"{solver}, {name}, rtol {rtol:g}: {launches} launches")
    if device == "simulator":
        assert 0 < launches[{"cg": "cg_iterations", "gmres": "gmres_steps"}[solver]] <= 20


@pytest.mark.parametrize("device", DEVICES)
def test_launches_hold_many_iterations_each(device):
    """One launch an iteration would never pay (docs/sparse.md#sparse-solvers)."""
    a = laplacian(20)
    b = np.random.default_rng(3).standard_normal(400)
    steps = []
    scipy.sparse.linalg.cg(a, b, rtol=1e-8, callback=steps.append)
    (_, info), log = forced(lambda: ours_linalg.cg(adopted(a), b, rtol=1e-8), device)
    assert info == 0 and log[0].on_device
    assert device == "none" or dict(log[0].launches)["cg_iterations"] <= 2 + 2 * len(steps) / 32


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "scale, device", [*((s, "none") for s in (1e-16, 1e-120, 1e120)), *((s, "simulator") for s in (1e-120, 1e120))]
)
def test_scale_of_right_hand_sides_and_matrices_changes_nothing(solver, scale, device):
    a, b = laplacian(6), np.random.default_rng(4).standard_normal(36)
    solve = getattr(ours_linalg, solver)
    x = forced(lambda: solve(adopted(a), b, rtol=1e-9), device)[0][0]
    for m, v, factor in ((a, b * scale, scale), (a * scale, b, 1 / scale), (a * scale, b * scale, 1.0)):
        if not 1e-290 < np.abs(factor * x).max() < 1e290:
            continue
        (y, info), log = forced(lambda m=m, v=v: solve(adopted(m), v, rtol=1e-9), device)
        assert info == 0 and log[0].on_device, log[0].detail
        np.testing.assert_allclose(y, factor * x, rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_and_exact_starts(solver):
    a, b = laplacian(6), np.random.default_rng(5).standard_normal(36)
    ours, theirs = getattr(ours_linalg, solver), getattr(scipy.sparse.linalg, solver)
    exact = scipy.sparse.linalg.spsolve(a.tocsc(), b)
    (x, info), log = forced(lambda: ours(adopted(a), b, x0=exact, rtol=1e-8), "simulator")
    assert info == 0 and log[0].reason is Reason.NO_LAUNCH  # nothing to do, and nothing is done
    np.testing.assert_array_equal(x, exact)
    for x0 in (None, np.ones(36)):
        (x, info), log = forced(lambda x0=x0: ours(adopted(a), 0 * b, x0=x0))
        assert info == 0 and log[0].by_device_path
        np.testing.assert_array_equal(x, theirs(a, 0 * b, x0=x0)[0])
    start = np.ones(36)
    (x, info), _ = forced(lambda: ours(adopted(a), b, x0=start, rtol=1e-10))
    assert info == 0 and relative_residual(a, x, b) <= 1e-10 * (1 + 1e-6)
    np.testing.assert_array_equal(start, 1)
    (x, info), _ = forced(lambda: ours(adopted(a), b, rtol=0.0, atol=1e-3 * np.linalg.norm(b)))
    assert info == 0 and relative_residual(a, x, b) <= 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_needs_scipy_is_scipys(solver):
    rng = np.random.default_rng(6)
    a, b = laplacian(6), rng.standard_normal(36)
    ours, theirs = getattr(ours_linalg, solver), getattr(scipy.sparse.linalg, solver)
    operator = scipy.sparse.linalg.aslinearoperator(a)
    cases = (
        (operator, operator, b, {}, Reason.LAYOUT),
        (a.toarray(), a.toarray(), b, {}, Reason.LAYOUT),
        (adopted(a.astype("f4")), a.astype("f4"), b, {}, Reason.DTYPE),
        (adopted(a), a, b[:, np.newaxis], {}, Reason.LAYOUT),
    )
    for mine, plain, v, more, reason in cases:
        (x, info), log = forced(lambda m=mine, v=v, k=more: ours(m, v, **k))
        expected, code = theirs(plain, v, **more)
        assert not log[0].on_device and log[0].reason is reason, (log[0], more)
        assert info == code
        # Its products with trnpy's matrix are forced through tiles.
        np.testing.assert_allclose(x, expected, rtol=1e-3 if plain.dtype == "f4" else 1e-9)
    starts = b * 1j  # SciPy drops the imaginary part, with a warning
    with pytest.warns(np.exceptions.ComplexWarning):
        _, log = forced(lambda: ours(adopted(a), b, x0=starts))
    assert log[0].reason is Reason.DTYPE


def test_what_cannot_converge_ends_with_scipys_answer():
    """Singular, too ill-conditioned for float32, too few iterations, NaN: SciPy's x and its info."""
    rng = np.random.default_rng(7)
    b = rng.standard_normal(36)
    hilbert = scipy.sparse.csr_array(1 / (1.0 + np.add.outer(np.arange(12), np.arange(12))))
    for a, v, options, reasons in (
        (laplacian(6), b, {"maxiter": 3, "rtol": 1e-10}, (Reason.ACCURACY,)),
        (hilbert, b[:12], {"maxiter": 50, "rtol": 1e-12}, (Reason.ACCURACY,)),
        (scipy.sparse.csr_array(-np.eye(5)), b[:5], {"maxiter": 5}, (Reason.VALUE,)),
    ):
        (x, info), log = forced(lambda a=a, v=v, k=options: ours_linalg.cg(adopted(a), v, **k))
        expected, code = scipy.sparse.linalg.cg(a, v, **options)
        assert not log[0].on_device and log[0].reason in reasons, log[0]
        assert info == code
        assert a is hilbert or np.allclose(x, expected, rtol=1e-9)  # of condition 1e16 no two orders of sums agree
    bad = laplacian(6)
    bad.data[3] = np.nan
    assert forced(lambda: ours_linalg.cg(adopted(bad), b, maxiter=3))[1][0].reason is Reason.VALUE


def test_an_indefinite_matrix_ends_with_a_solution_or_with_scipys_answer():
    b = np.random.default_rng(13).standard_normal(36)
    for shift in (3, 3.9, 5):
        a = (laplacian(6) - shift * scipy.sparse.eye_array(36)).tocsr()
        (x, info), log = forced(lambda a=a: ours_linalg.cg(adopted(a), b, maxiter=60))
        if log[0].on_device:
            assert info == 0 and relative_residual(a, x, b) <= 1e-5 * (1 + 1e-6)
        else:
            assert info == scipy.sparse.linalg.cg(a, b, maxiter=60)[1]


def test_gmres_ends_after_the_dimension_of_the_krylov_space():
    a = scipy.sparse.csr_array(np.diag([1.0, 1, 1, 5, 5, 5, 5]))
    (x, info), log = forced(lambda: ours_linalg.gmres(adopted(a), np.arange(1.0, 8), rtol=1e-12), "simulator")
    assert info == 0 and dict(log[0].launches)["gmres_steps"] <= 3
    np.testing.assert_allclose(a @ x, np.arange(1.0, 8), rtol=1e-11)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_matrix_stays_on_the_device_between_solves(solver):
    a = adopted(scipy.sparse.csr_array(np.kron(np.eye(2), np.ones((128, 128))) * 0.001 + 2 * np.eye(256)))
    b = np.random.default_rng(8).standard_normal(256)
    device = DeviceEngine(SimulatorRuntime(TRN2))

    def moved():
        before = device.counters.bytes_in
        with trnpy.policy(force=True), engine(device):
            x, info = getattr(ours_linalg, solver)(a, b, rtol=1e-9)
        assert info == 0 and relative_residual(a, x, b) <= 1e-9 * (1 + 1e-6)
        return device.counters.bytes_in - before

    first, second, third = moved(), moved(), moved()
    assert first == second and third < first / 4
    assert device.cache.nbytes >= 2 * 128 * 128 * 4  # counted, so that it makes room for others
    a.data[:] *= 2
    assert moved() == first


def test_a_failing_device_costs_a_warning_and_no_result():
    class Failing(SimulatorRuntime):
        def run(self, name, /, *operands, **parameters):
            raise RuntimeError("NRT_EXEC_HW_ERR")

    a, b = laplacian(6), np.ones(36)
    with engine(DeviceEngine(Failing(TRN2))), pytest.warns(NkiFallbackWarning, match="ran on the host"):
        (x, info), log = forced(lambda: ours_linalg.cg(adopted(a), b))
    assert info == 0 and log[0].reason is Reason.ERROR
    np.testing.assert_allclose(x, scipy.sparse.linalg.cg(a, b)[0], rtol=1e-12)


# --- eigenvalues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, exponents", [("f8", (-900, -60, 900)), ("f4", (-90, -60, 90))])
def test_the_scale_of_a_matrix_changes_nothing(dtype, exponents):
    """Squares of its elements may underflow or overflow."""
    a = laplacian(8).astype(dtype)
    values, vectors = forced(lambda: ours_linalg.eigsh(adopted(a), 3, which="LA"))[0]
    for exponent in exponents:
        scaled = a.copy()
        scaled.data = np.ldexp(scaled.data, exponent)
        found, log = forced(lambda s=scaled: ours_linalg.eigsh(adopted(s), 3, which="LA"))
        assert log[0].on_device, log[0].detail
        np.testing.assert_array_equal(found[0], np.ldexp(values, exponent))
        np.testing.assert_array_equal(found[1], vectors)


@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_a_system_without_a_right_hand_side_is_scipys_error(name):
    a = laplacian(8)
    ours = outcome(lambda: forced(lambda: getattr(ours_linalg, name)(adopted(a), None)))
    assert ours == outcome(lambda: getattr(scipy.sparse.linalg, name)(a, None))


def test_starts_are_left_as_they_were():
    """SciPy's lobpcg writes into them, and a second start would be of what the first left."""
    x = np.random.default_rng(11).standard_normal((64, 3))
    before = x.copy()
    _, log = forced(lambda: ours_linalg.lobpcg(adopted(laplacian(8)), x, maxiter=60, tol=1e-6))
    assert log[0].on_device
    np.testing.assert_array_equal(x, before)


def test_a_warning_of_scipys_that_is_an_error_is_scipys_and_no_fault():
    a, x = laplacian(8), np.random.default_rng(3).standard_normal((64, 3))
    options = {"maxiter": 3, "tol": 1e-6}  # far from the tolerance, however products round
    with pytest.raises(UserWarning) as theirs:
        scipy.sparse.linalg.lobpcg(a, x.copy(), **options)
    with engine(RecordingEngine()) as sound, pytest.raises(UserWarning) as ours:
        forced(lambda: ours_linalg.lobpcg(adopted(a), x, **options))
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]  # the next ones are numbers
    assert sound.health.faults == 0


@pytest.mark.parametrize("name", ["eigsh", "lobpcg", "cg", "gmres"])
def test_a_wrong_product_is_found_out(name):
    a = laplacian(8)
    x = np.random.default_rng(11).standard_normal((64, 3))
    arguments = {"eigsh": (3,), "lobpcg": (x,)}.get(name, (x[:, 0],))
    options = {"eigsh": {"which": "LA"}, "lobpcg": {"maxiter": 60, "tol": 1e-6}}.get(name, {"callback": print})
    options |= {"callback_type": "pr_norm"} if name == "gmres" else {}
    warned = pytest.warns(NkiFallbackWarning, match="wrong by|backward error|known answer wrong")
    with engine(FaultyEngine("wrong")), warned:
        (values, _), log = forced(lambda: getattr(ours_linalg, name)(adopted(a), *arguments, **options))
    assert not log[0].on_device and log[0].reason is Reason.ACCURACY
    if name in SOLVERS:
        assert relative_residual(a, values, x[:, 0]) <= 1e-5 * (1 + 1e-6)
        return
    np.testing.assert_allclose(np.sort(values)[-1], scipy.sparse.linalg.eigsh(a, 1, which="LA")[0][0], rtol=1e-6)


def test_without_a_device_nothing_is_asked_of_one():
    a, b = adopted(laplacian(6)), np.ones(36)
    with trnpy.trace() as log:
        x, info = ours_linalg.cg(a, b)
    assert info == 0 and log[-1].reason is Reason.NO_DEVICE and not log[-1].on_device
    np.testing.assert_array_equal(x, scipy.sparse.linalg.cg(laplacian(6), b)[0])


def test_the_decision_weighs_iterations_and_launches():
    small, b = adopted(laplacian(30)), np.ones(900)
    rng = np.random.default_rng(12)
    tiles = [scipy.sparse.coo_array(np.eye(128) + 0.01 * rng.random((128, 128))) for _ in range(300)]
    blocks = adopted(scipy.sparse.block_diag(tiles, "csr"))
    with trnpy.policy(device="null"):
        stencil = trnpy.explain(ours_linalg.cg, small, b)
        with trnpy.resident(blocks.data):
            full = trnpy.explain(ours_linalg.cg, blocks, np.ones(blocks.shape[0]))
    assert not stencil.on_device and stencil.reason is Reason.SMALL
    assert full.on_device and full.reason is Reason.FASTER


@pytest.mark.parametrize("name", ["cg", "gmres"])
@pytest.mark.parametrize(
    "options",
    [
        {"maxiter": 1}, {"maxiter": 3}, {"maxiter": 0}, {"rtol": 0.0}, {"maxiter": 400.5}, {"maxiter": np.float64(400)},
        {"restart": 0}, {"restart": -1}, {"restart": 20.5}, {"restart": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value")  # SciPy's own, at a residual of zero
def test_limits_that_end_a_solve_are_scipys(name, options):
    """A launch takes more steps than these: what SciPy does at its limit, or raises, it does."""
    n = 40
    a = scipy.sparse.diags_array([-np.ones(n - 1), 2.5 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]).tocsr()
    b = np.where(np.arange(n) % 3, 1.0, -2.0)
    options = ({"restart": 2} if name == "gmres" else {}) | options
    theirs = outcome(lambda: getattr(scipy.sparse.linalg, name)(a, b, **options))
    with trnpy.policy(force=True):
        ours = outcome(lambda: getattr(ours_linalg, name)(a, b, **options))
    assert ours[1] == theirs[1]
    if isinstance(theirs[1], int):
        np.testing.assert_array_equal(ours[0], theirs[0])
    else:
        assert ours[0] is theirs[0]
