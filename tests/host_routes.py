"""Calls that take each of trnpy's own ways on the host, of operands large enough for BLAS to use its threads.

A row is a function that makes its operands and returns the function and them: making is no part of the call.
"""

import operator

import numpy as np
import scipy.linalg
import scipy.sparse

import trnpy
import trnpy.chem
import trnpy.linalg
import trnpy.sparse
from trnpy._call.dispatch import accelerated
from trnpy._call.rows import rows as rows_of

NUMPY_OPS = rows_of("numpy.linalg")

NUMPYS = {op.name: accelerated(op) for op in NUMPY_OPS}


def normal(*shape, dtype=np.float64):
    rng = np.random.default_rng(shape)
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def definite(*shape, dtype=np.float64):
    """Positive-definite matrices (..., n, n) of norms near one, Hermitian whatever BLAS rounds."""
    a = normal(*shape, shape[-1], dtype=dtype)
    a = a @ a.conj().swapaxes(-1, -2).copy() / (16 * shape[-1])
    return (a + a.conj().swapaxes(-1, -2) + np.eye(shape[-1]) / 2).astype(dtype)


def mixed(*shape):
    """The same, every eighth of a stack singular."""
    a = definite(*shape)
    a[::8, :, 0], a[::8, 0, :] = a[::8, :, 1], a[::8, 1, :]
    return a


def bsr(side, block, dtype=np.float64):
    """BSR of ``side`` x ``side`` blocks, a fifth of which are stored."""
    pattern = scipy.sparse.random_array((side, side), density=0.2, rng=np.random.default_rng(0), format="csr")
    blocks = normal(pattern.nnz, block, block, dtype=dtype)
    return trnpy.sparse.bsr_array((blocks, pattern.indices, pattern.indptr), shape=(side * block, side * block))


def diagonal_blocks(layout):
    return getattr(trnpy.sparse, f"{layout}_array")(scipy.sparse.block_diag([normal(200, 200 + i) for i in range(6)]))


def linalg(name, *args):
    return getattr(trnpy.linalg, name), *args


def sparse():
    product = operator.matmul
    for block, side, dtype in ((128, 24, float), (128, 16, complex), (16, 128, float), (64, 32, float)):
        what, n = f"{np.dtype(dtype)} BSR {block}", side * block
        yield (
            f"{what} x dense",
            "SciPy",
            lambda b=block, s=side, d=dtype, n=n: (product, bsr(s, b, d), normal(n, 64, dtype=d)),
        )
        yield (
            f"dense x {what}",
            "SciPy",
            lambda b=block, s=side, d=dtype, n=n: (product, normal(64, n, dtype=d), bsr(s, b, d)),
        )
    yield "BSR x BSR", "SciPy", lambda: (product, bsr(24, 64), bsr(24, 64))
    for layout in ("csr", "csc"):
        yield f"{layout} of blocks x dense", "NumPy", lambda f=layout: (product, diagonal_blocks(f), normal(1215, 128))


def masks():
    mask = trnpy.sparse.local_mask(512, 150)
    q, k, v = (i + normal(512, 64) for i in range(3))
    g = trnpy.sparse.csr_array(mask.astype(float))
    yield "block_mask_matmul", "NumPy", lambda: (trnpy.sparse.block_mask_matmul, q, k.T, mask)
    scattered = scipy.sparse.random_array((512, 512), density=0.02, rng=np.random.default_rng(0))
    yield "block_mask_matmul, scattered", "NumPy", lambda: (trnpy.sparse.block_mask_matmul, q, k.T, scattered)
    yield "block_mask_matmul_gradients", "NumPy", lambda: (trnpy.sparse.block_mask_matmul_gradients, q, k.T, g)
    yield "masked_attention", "NumPy", lambda: (trnpy.sparse.masked_attention, q, k, v, mask)
    yield "masked_attention_gradients", "NumPy", lambda: (trnpy.sparse.masked_attention_gradients, q, k, v, mask, v)


def contractions():
    a, b, c, d = normal(300, 300), normal(300, 200), normal(40, 30, 500), normal(800, 800)
    cube, counts = normal(8, 200, 200), (np.arange(171), np.arange(10_227))
    yield "einsum", "NumPy", lambda: (trnpy.einsum, "ij,ik->jk", a, b)
    yield "einsum to a number", "NumPy", lambda: (trnpy.einsum, "ij,ij->", d, d)
    yield "einsum of stacks", "NumPy", lambda: (trnpy.einsum, "aij,ajk->aik", cube, cube)
    yield "einsum of three", "NumPy", lambda: (trnpy.einsum, "ij,jk,kl->il", a, a, b)
    yield "einsum of integers, one label summed first", "NumPy", lambda: (trnpy.einsum, "a,b->b", *counts)
    yield "einsum of complex matrices", "NumPy", lambda: (trnpy.einsum, "ij,jk->ik", a + 1j, b)
    yield "tensordot", "NumPy", lambda: (trnpy.tensordot, c, c[:, :20] + 1, ((0, 2), (0, 2)))
    yield "matmul", "NumPy", lambda: (trnpy.matmul, a, b)
    yield "multi_einsum", "NumPy", lambda: (trnpy.multi_einsum, [("ij,jk->ik", a, b)] * 4)
    for dtype in ("int64", "int8", "bool", "float16"):
        yield f"matmul of {dtype}", "NumPy", lambda d=dtype: (trnpy.matmul, (9 * a).astype(d), (9 * b).astype(d))


def of_matrices():
    roots = {"sqrtm": "SciPy", "logm": "SciPy", "inv_sqrtm": "NumPy"}
    invert, gram = NUMPYS["numpy.linalg.inv"], trnpy.linalg.blas.dgemm
    yield "eigh", "SciPy", lambda: linalg("eigh", definite(210))
    yield "eigh by products", "SciPy", lambda: linalg("eigh", definite(480))
    for n, dtype in ((210, float), (420, float), (300, complex)):
        for name, library in roots.items():
            yield f"{name} {np.dtype(dtype)} {n}", library, lambda f=name, n=n, d=dtype: linalg(f, definite(n, dtype=d))
    yield "inverse root", "SciPy", lambda: linalg("fractional_matrix_power", definite(210), -0.5)
    if takes_stacks("logm"):
        yield "logm of a stack", "NumPy", lambda: linalg("logm", definite(4, 150))
    for dtype in (float, complex):
        a, turned = definite(512, dtype=dtype), np.diag([0.0, *[2.0] * 510, 0.0])
        yield f"numpy.inv {np.dtype(dtype)}", "SciPy", lambda a=a: (invert, a)
        yield f"numpy.inv indefinite {np.dtype(dtype)}", "SciPy", lambda a=a - turned: (invert, a)
    # With several threads NumPy computes these.
    yield "numpy.inv of any matrix", "NumPy", lambda: (invert, normal(400, 400))
    yield "inv_sqrtm by products", "NumPy", lambda: linalg("inv_sqrtm", definite(200), "newton-schulz")
    yield "inv_sqrtm, residual", "NumPy", lambda: (lambda a: trnpy.linalg.inv_sqrtm(a, full_output=True), definite(200))
    for n in (210, 420):
        yield f"pinvh {n}", "SciPy", lambda n=n: linalg("pinvh", definite(n) - np.eye(n))
    yield "dgemm of A A^T", "SciPy", lambda: (lambda a: gram(1.0, a, a, trans_b=1), np.asfortranarray(normal(600, 600)))


def takes_stacks(name):
    """Whether the installed SciPy's function takes them: 1.15's does not for most."""
    a = np.stack([np.eye(2)] * 2)
    try:
        getattr(scipy.linalg, name)(*([a] * (1 + (name in ("lstsq", "solve")))))
    except ValueError:
        return False
    return True


def stacks():
    """What has a route for stacks, of matrices that are and that are not all well-conditioned."""
    from trnpy._host import compiled

    plain = ("qr", "eigh", "eigvalsh", "svd", "svdvals", "pinv", "pinvh", "lstsq")
    for name in plain if compiled.loops() is None else (*compiled.RUN, *plain):
        if not takes_stacks(name):
            continue
        n, count = (64, 130) if name in ("eigh", "pinvh") else (4, 5_000)
        sides = (normal(count, n, 2),) if name in ("lstsq", "solve") else ()
        library = "SciPy" if name in compiled.RUN else "NumPy"
        yield f"{name} of a stack", library, lambda f=name, c=count, n=n, b=sides: linalg(f, definite(c, n), *b)
        if name not in ("cholesky", "inv", "solve"):  # which raise
            yield (
                f"{name} of a stack, some singular",
                library,
                lambda f=name, c=count, n=n, b=sides: linalg(f, mixed(c, n), *b),
            )


def orbitals(nocc, nvir=60, naux=200):
    return normal(nocc, nvir, naux), -2.0 - np.arange(nocc), 1.0 + np.arange(nvir)


def chemistry():
    from trnpy import chem

    b = normal(90, 40, 40)
    b = b + b.swapaxes(1, 2)
    rows, columns = np.tril_indices(40)
    packed, c, d = b[:, rows, columns], normal(40, 12), normal(40, 28)
    yield "dfmp2_energy", "NumPy", lambda: (chem.dfmp2_energy, *orbitals(10))
    yield "dfmp2_energy, UHF", "NumPy", lambda: (chem.dfmp2_energy, *zip(orbitals(10), orbitals(8), strict=True))
    yield "ao2mo", "NumPy", lambda: (chem.ao2mo, b, c, d)
    yield "ao2mo of triangles", "NumPy", lambda: (chem.ao2mo, packed, c, d)
    yield "ao2mo of four indices", "NumPy", lambda: (chem.ao2mo, normal(40, 40, 40, 40), c, c)
    yield "build_jk_df", "NumPy", lambda: (chem.build_jk_df, b, c @ c.T)
    yield "build_jk_df of orbitals", "NumPy", lambda: (lambda *a: chem.build_jk_df(*a, orbitals=c), packed, c @ c.T)
    yield "screened_spmm", "NumPy", lambda: (chem.screened_spmm, normal(600, 500), normal(500, 300), 1.0)


PARTS = sparse, masks, contractions, of_matrices, stacks, chemistry
LIBRARIES = {name: library for part in PARTS for name, library, _ in part()}  # whose threads a row may use
ROWS = {name: make for part in PARTS for name, _, make in part()}
