"""Wrong eigenvalues, least squares and pseudo-inverses fail their checks; healthy ones of hard matrices pass."""

import dataclasses

import numpy as np
import pytest
import scipy
from doubles import RecordingEngine

import trnpy
from trnpy._engine.proof import least_squares

N = 150
EPS = np.finfo(float).eps
_rng = np.random.default_rng(0)
GENERAL = _rng.standard_normal((N, N))
SYMMETRIC, POSITIVE = GENERAL + GENERAL.T, GENERAL @ GENERAL.T / N + np.eye(N)
TALL = _rng.standard_normal((5 * N, N))


def solved(name, *operands, **options):
    """The problem of a call, its result, and how much of its tolerance the error takes."""
    problem = getattr(trnpy.linalg, name).__trnpy_op__.prepare(*operands, **options)
    allowed = 10 * max(max(a.shape) for a in problem.arrays) * EPS
    return problem, problem.run(RecordingEngine()), lambda result: problem.error(result) / allowed


EIGENPROBLEMS = {
    "a pair": ((SYMMETRIC, POSITIVE), {}),
    "a pair of type 2": ((SYMMETRIC, POSITIVE), {"type": 2}),
    "a pair of type 3": ((SYMMETRIC, POSITIVE), {"type": 3}),
    "a subset by index": ((SYMMETRIC,), {"subset_by_index": (3, 9)}),
    "a subset by value": ((SYMMETRIC,), {"subset_by_value": (-1.0, 2.0)}),
    "a subset of a pair": ((SYMMETRIC, POSITIVE), {"subset_by_index": (3, 9)}),
    "all": ((SYMMETRIC,), {}),
}


@pytest.mark.parametrize("name", ["eigh", "eigvalsh"])
@pytest.mark.parametrize("which", EIGENPROBLEMS)
def test_a_wrong_eigenvalue_is_noticed(which, name):
    operands, options = EIGENPROBLEMS[which]
    problem, (w, x), error = solved(name, *operands, **options)
    assert error((w, x)) < 0.5
    expected = getattr(scipy.linalg, name)(*operands, **options)
    values = problem.deliver((w, x)) if name == "eigvalsh" else problem.deliver((w, x))[0]
    scale = np.abs(w).max()
    np.testing.assert_allclose(values, expected if name == "eigvalsh" else expected[0], rtol=0, atol=1e-12 * scale)
    wrong = w.copy()
    wrong[5] += 0.4 * (w[6] - w[5])
    assert error((wrong, x)) > 10
    wrong = w.copy()  # trace and order are as before
    wrong[5:8] += 0.1 * min(np.diff(w[4:9])) * np.array([1, -2, 1])
    assert error((wrong, x)) > 10


@pytest.mark.parametrize("which", EIGENPROBLEMS)
def test_a_subset_that_is_exact_and_the_wrong_one_is_noticed(which):
    """An eigenvalue found twice and another missed: every pair has no residual."""
    operands, options = EIGENPROBLEMS[which]
    _, (w, x), error = solved("eigvalsh", *operands, **options)
    w, x = w.copy(), x.copy()
    w[4], x[:, 4] = w[3], x[:, 3]
    assert error((w, x)) > 10


def test_singular_values_that_keep_their_squares_are_noticed():
    _, (u, s, v), error = solved("svdvals", GENERAL)
    assert error((u, s, v)) < 0.5
    wrong = s.copy()
    angle = 1e-6
    wrong[:2] = np.cos(angle) * s[0] - np.sin(angle) * s[1], np.sin(angle) * s[0] + np.cos(angle) * s[1]
    assert error((u, wrong, v)) > 10


LEAST = {
    "random": TALL,
    "graded columns": TALL * 10.0 ** _rng.uniform(-4, 4, N),
    "condition 1e9": TALL @ np.linalg.qr(GENERAL)[0] * np.geomspace(1, 1e-9, N) @ np.linalg.qr(GENERAL)[0].T,
}


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("family", LEAST)
def test_a_wrong_component_of_least_squares_is_noticed(family, compatible):
    a, rng = LEAST[family], np.random.default_rng(1)
    b = a @ rng.standard_normal((N, 5)) if compatible else rng.standard_normal((5 * N, 5))
    for sides in (b[:, 0], b[:, :2], b):
        _, result, error = solved("lstsq", a, sides)
        assert error(result) < 0.5
        x = result.x.copy()
        x[np.abs(x[:, 0]).argmin(), 0] *= 2
        x[7, -1] *= 2
        assert error(result._replace(x=x)) > 10


def test_an_error_that_the_normal_equations_square_is_noticed():
    """Along the least singular vector of a compatible system, |A^H r| is below u |A|^2 |x|."""
    a = LEAST["condition 1e9"]
    vh = np.linalg.svd(a, full_matrices=False)[2]
    _, result, error = solved("lstsq", a, a @ np.ones(N))
    x = result.x + 0.1 * np.linalg.norm(result.x) * vh[-1][:, None]
    assert error(result._replace(x=x)) > 2


OTHERS = {
    "wide": TALL.T,
    "wide, of condition 1e7": TALL.T * np.logspace(0, 7, N)[:, np.newaxis],
    "square": GENERAL,
    "of low rank": TALL[: 2 * N, :60] @ GENERAL[:60],
}


@pytest.mark.parametrize("family", OTHERS)
def test_a_wrong_minimum_of_least_length_is_noticed(family):
    a, rng = OTHERS[family], np.random.default_rng(1)
    b = rng.standard_normal((len(a), 5))
    null = np.linalg.svd(a)[2][-1]  # of the square matrix no direction in which nothing changes
    for sides in (b[:, 0], b[:, :2], b):
        _, result, error = solved("lstsq", a, sides, 1e-10)
        assert error(result) < 0.5
        for wrong in (
            1e-8 * np.abs(result.x).max() * rng.standard_normal(len(null)),
            1e-7 * np.abs(result.x).max() * null,
        ):
            x = result.x.copy()
            x[:, -1] += wrong
            assert error(result._replace(x=x)) > 10


@pytest.mark.parametrize("name", ["pinv", "pinvh"])
def test_a_wrong_pseudo_inverse_is_noticed(name):
    low = SYMMETRIC[:, :50] @ np.diag(np.arange(1.0, 51.0)) @ SYMMETRIC[:, :50].T
    problem, x, error = solved(name, low)
    assert problem.error(x) < 5 * N * EPS
    null = np.linalg.svd(low)[0][:, -1]
    u = np.linalg.svd(low)[0][:, 0]
    # A X A = A with the first still. A X is no longer Hermitian with the second, nor X A with the third.
    for wrong in (np.outer(null, null), np.outer(u, null), np.outer(null, u)):
        found = [error(x + 1e-7 * np.linalg.norm(x) * wrong) for _ in range(4)]
        # Some 40 tolerances: the two probes of one call miss the first once in 2,500 calls, four calls once in 4e13.
        assert max(found) > 1
    assert error(x * (1 + 1e-8)) > 1


@pytest.mark.parametrize("lower", [False, True])
def test_a_factor_of_another_structure_is_noticed(lower):
    """Its product with its adjoint is the matrix still."""
    _, factor, error = solved("cholesky", POSITIVE, lower=lower)
    assert error(factor) < 0.5
    l = factor if lower else factor.T
    exchanged, negated = l.copy(), l.copy()
    exchanged[:, [3, 4]] = exchanged[:, [4, 3]]
    negated[:, 7] *= -1
    for wrong in (exchanged, negated):
        np.testing.assert_allclose(wrong @ wrong.T, POSITIVE, rtol=0, atol=1e-12)
        assert error(wrong if lower else wrong.T) > 10


@pytest.mark.parametrize("shape", [(3, 3), (40, 12), (12, 40)])
def test_right_hand_sides_whose_combinations_cancel_are_no_false_alarm(shape, monkeypatch):
    rng, multiples = np.random.default_rng(0), np.array([1.0, 2.0, -3.0])
    a, direction = rng.standard_normal(shape), rng.standard_normal(shape[0])
    b = np.outer(direction, multiples)
    x = np.linalg.lstsq(a, b, rcond=None)[0]
    # The proof scales right-hand sides by powers of two before it combines them.
    scaled = np.ldexp(multiples, -np.frexp(np.linalg.norm(b, axis=0))[1])
    cancelling = np.vstack([[1.0, 1.2], [-0.6, 0.7]])
    cancelling = np.vstack([cancelling, -(scaled[:2] @ cancelling) / scaled[2]])
    monkeypatch.setattr(least_squares, "weights", lambda *_: cancelling)
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    errors = [least_squares.error_of_factors(b, x, u, s, vh.T)]
    if shape[0] >= shape[1]:
        r = np.linalg.qr(a)[1]
        errors.append(least_squares.error(a, b, x, lambda y: np.linalg.solve(r.T, y), np.linalg.cond(a)))
    if shape[0] <= shape[1]:
        errors.append(least_squares.shortest_error(a, b, x, np.linalg.qr(a.T)[1]))
    assert max(errors) < 30 * np.finfo("f8").eps


# --- Every check, of real and of complex results ----------------------------------------------------------------------

ORDER = 40
MODES = ("full", "economic")
CHECKED = {
    "eigh": lambda m: (m.hermitian,), "eigvalsh": lambda m: (m.hermitian,), "cholesky": lambda m: (m.positive,),
    "eigh of a pair": lambda m: (m.hermitian, m.positive), "lu_factor": lambda m: (m.general,),
    "eigh of type 2": lambda m: (m.hermitian, m.positive, {"type": 2}), "lu": lambda m: (m.general,),
    "eigh of type 3": lambda m: (m.hermitian, m.positive, {"type": 3}), "svd": lambda m: (m.tall,),
    "svd of few rows": lambda m: (m.wide,), "svdvals": lambda m: (m.tall,), "expm": lambda m: (m.general / 20,),
    "solve": lambda m: (m.general, m.sides),
    "solve with positive": lambda m: (m.positive, m.sides, {"assume_a": "pos"}),
    "solve with hermitian": lambda m: (m.hermitian, m.sides, {"assume_a": "her"}), "inv": lambda m: (m.general,),
    "solve with lower": lambda m: (m.triangle, m.sides, {"assume_a": "lower triangular"}),
    "solve with one side": lambda m: (m.general, m.sides[:, 0]),
    "inv of positive": lambda m: (m.positive, {"assume_a": "pos"}), "pinv": lambda m: (m.tall,),
    "pinv of few rows": lambda m: (m.wide,), "pinvh": lambda m: (m.hermitian,), "polar": lambda m: (m.tall,),
    "polar on the left": lambda m: (m.wide, {"side": "left"}), "sqrtm": lambda m: (m.positive,),
    "lstsq": lambda m: (m.tall, m.long), "lstsq of few rows": lambda m: (m.wide, m.sides),
    "lstsq of a square": lambda m: (m.general, m.sides),
    "solve_triangular": lambda m: (m.triangle, m.sides, {"lower": True}), "matrix_power": lambda m: (m.general / 9, 3),
    "solve_triangular of T": lambda m: (m.triangle, m.sides, {"lower": True, "trans": "T"}),
    "solve_triangular of C": lambda m: (m.triangle, m.sides, {"lower": True, "trans": "C"}),
    "cho_solve": lambda m: ((m.triangle, True), m.sides),
    "cho_solve of upper": lambda m: ((m.triangle, False), m.sides),
    "lu_solve": lambda m: (m.factored, m.sides), "lu_solve of T": lambda m: (m.factored, m.sides, {"trans": 1}),
    "lu_solve of C": lambda m: (m.factored, m.sides, {"trans": 2}), "orth": lambda m: (m.tall,),
    **{f"qr {mode}": lambda m, mode=mode: (m.tall, {"mode": mode}) for mode in MODES},
    **{f"qr {mode} of few rows": lambda m, mode=mode: (m.wide, {"mode": mode}) for mode in MODES},
}  # fmt: skip


class Matrices:
    def __init__(self, dtype):
        rng = np.random.default_rng(0)
        n = ORDER
        a, b = rng.standard_normal((2, 2, 2 * n, n))
        general, other = (x[0] + 1j * x[1] if dtype == "D" else x[0] for x in (a, b))
        self.tall, self.wide, self.long, self.sides = general, other.conj().T[:, : 2 * n], other, other[:n, :5]
        self.general = general[:n]
        self.hermitian = self.general + self.general.conj().T
        self.positive = self.general @ self.general.conj().T / n + np.eye(n)
        self.triangle = self.general / (4 * np.sqrt(n)) + 2 * np.eye(n)
        self.factored = scipy.linalg.lu_factor(self.general + 3 * np.eye(n))


def wrong_results(result, by):
    """``result`` with the largest element of one of its arrays changed by a share of it, for each of them."""
    if isinstance(result, np.ndarray):
        if result.dtype.kind in "fc" and result.size:
            changed, largest = result.copy(), np.abs(result).argmax()
            changed.flat[largest] += by * np.abs(changed.flat[largest])
            yield changed
    elif isinstance(result, (tuple, list)):
        make = getattr(type(result), "_make", type(result))
        for i, part in enumerate(result):
            yield from (make([*result[:i], changed, *result[i + 1 :]]) for changed in wrong_results(part, by))
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            for changed in wrong_results(getattr(result, field.name), by):
                yield dataclasses.replace(result, **{field.name: changed})


@pytest.mark.parametrize("dtype", ["d", "D"])
@pytest.mark.parametrize("name", CHECKED)
def test_a_result_passes_its_check_and_one_with_a_wrong_element_does_not(name, dtype):
    *operands, options = (*CHECKED[name](Matrices(dtype)), {})
    if operands and isinstance(operands[-1], dict):
        options = operands.pop()
    _, result, error = solved(name.partition(" ")[0], *operands, **options)
    assert error(result) < 1
    wrong = list(wrong_results(result, 1e-4))
    assert wrong and all(not max(error(x) for _ in range(3)) <= 100 for x in wrong)
