"""A script that type checkers accept: the public names of trnpy as users call them."""

import numpy as np
import numpy.typing as npt

import trnpy
from trnpy import chem, linalg, sparse
from trnpy.linalg import blas, interpolative, lapack
from trnpy.sparse import csgraph
from trnpy.sparse import linalg as sparse_linalg

Matrix = npt.NDArray[np.float64]


def products(a: Matrix, b: Matrix) -> list[Matrix]:
    made: list[Matrix] = trnpy.multi_einsum([("ij,jk->ik", a, b)])
    return [*made, trnpy.matmul(a, b), trnpy.dot(a, b), trnpy.einsum("ij,jk->ik", a, b), trnpy.tensordot(a, b, 1)]


def factors(a: Matrix) -> Matrix:
    w, x = linalg.eigh(a)
    low: Matrix = linalg.cholesky(a, lower=True)
    condition = float(linalg.cond(a))
    power: Matrix = linalg.matrix_power(a, 3)
    root = linalg.inv_sqrtm(a)
    y, how = linalg.inv_sqrtm(a, full_output=True)
    print(w.dtype, x.shape, low, condition, power, root.shape, y.shape, how.steps, how.converged)
    print(blas.dgemm(1.0, a, a), lapack.dpotrf(a), interpolative.estimate_rank(a, 1e-8))
    try:
        solution: Matrix = linalg.solve(a, a, assume_a="pos")
    except linalg.LinAlgError:
        return low
    return solution


def sparse_work(n: int) -> Matrix:
    a = sparse.csr_array(sparse.eye_array(n))
    print(sparse.block_analysis(a), sparse.local_mask(n, 3), csgraph.connected_components(a))
    x, info = sparse_linalg.cg(a, np.ones(n))
    print(info)
    y: Matrix = np.asarray(x, dtype=np.float64)
    return y


def settings(a: Matrix) -> str:
    with trnpy.policy(machine="trn3", device="null", verify=0.5, force=True) as chosen:
        print(chosen.precision, trnpy.current_policy() == chosen)
    with trnpy.trace() as log, trnpy.resident(a):
        trnpy.matmul(a, a)
    decision: trnpy.Decision = trnpy.explain(trnpy.matmul, a, a)
    if decision.reason is trnpy.Reason.NO_DEVICE and decision.host_s is not None:
        print(decision.host_s * 2, len(log))
    plan = trnpy.einsum_plan("ij,jk->ik", a, a)
    there, why_not = trnpy.available()
    print(plan.flops, [step.subscripts for step in plan.steps], there, why_not.upper())
    return decision.detail


@trnpy.patched("numpy.einsum", device="none")
def patching(a: Matrix) -> dict[str, float]:
    trnpy.patch(rebind=True, machine="trn2")
    print(trnpy.is_patched("numpy.einsum"), trnpy.patch_status()["installed"])
    trnpy.unpatch()
    with trnpy.profile("a run") as ledger, trnpy.original():
        print(np.einsum("ii->", a))
    ledger.to_html("run.html")
    return {tally.op: tally.seconds for tally in trnpy.report().by_function()}


def chemistry(b: Matrix, c: Matrix, occupied: Matrix, virtual: Matrix) -> float:
    integrals = chem.ao2mo(b, c, c)
    energy: chem.MP2Energy = chem.dfmp2_energy(integrals, occupied, virtual)
    j, k = chem.build_jk_df(b, c)
    bounds = chem.schwarz_bounds(b)
    if j is not None and k is not None:
        print(j.shape, k.shape)
    print(chem.screened_pairs(bounds, bounds, 1e-10), chem.screened_spmm(c, c, 1e-10))
    chem.patch_pyscf()
    chem.unpatch_pyscf()
    return float(energy.total)
