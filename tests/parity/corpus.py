"""Cases that a search found wrong once, copied from its output: for ever in the suite."""

from parity.cases import Case

CASES = (
    # Solutions of NumPy's least squares lie in C order.
    Case(
        "numpy.linalg.lstsq",
        "forced",
        (32, 2, 31),
        (2, 2),
        ("f4", "c8"),
        ("negative", "read-only"),
        12,
        (34, 19),
        443,
        192,
    ),
    # SciPy makes a number of one row of COO times a vector.
    Case(
        "scipy.sparse.matmul",
        "forced",
        (1, 31, 31),
        (3,),
        ("f8", "f4"),
        ("read-only", "strided"),
        14,
        (96, 3),
        3092,
        290,
    ),
    # Residuals whose squares underflow proved any solution.
    Case(
        "scipy.sparse.linalg.cg",
        "forced",
        (32, 16, 31),
        (3,),
        ("f8", "f8"),
        ("strided", "negative"),
        26,
        (48, 9),
        4919,
        969,
    ),
    # A start 1e150 times the solution: SciPy's recurrence converges by rounding.
    Case("scipy.sparse.linalg.cg", "forced", (5, 0, 0), (), ("f8", "f8"), ("C", "C"), 0, (53, 78), 2, 265),
    # Subnormal float32, of which QR was made before it was scaled.
    Case("scipy.linalg.null_space", "forced", (65, 127, 0), (), ("f4", "f4"), ("C", "C"), 6, (7, 0), 1, 0),
    # SciPy's dsyevr errs by 10 eps of the norm.
    Case("scipy.linalg.eigh", "forced", (3, 0, 0), (), ("c16", "f4"), ("C", "C"), 0, (0, 0), 1, 0),
    # A solution of subnormal numbers.
    Case("scipy.linalg.lstsq", "forced", (1, 16, 1), (), ("f4", "f8"), ("C", "C"), 0, (0, 49), 2, 3),
    # A subnormal matrix, of which LAPACK's gelss finds singular values to 95 eps.
    Case("scipy.linalg.lstsq", "forced", (64, 65, 0), (), ("f4", "f4"), ("C", "C"), 0, (7, 0), 270, 0),
    # Factors of a subnormal matrix, of which a pivot underflows.
    Case("scipy.linalg.lu_solve", "host", (16, 0, 0), (), ("f4", "f4"), ("C", "C"), 3, (7, 0), 0, 0),
    # The same of GMRES: with products that differ by rounding its restarts end early.
    Case("scipy.sparse.linalg.gmres", "forced", (3, 0, 0), (), ("f8", "f8"), ("C", "C"), 0, (45, 98), 2, 128),
    # Right-hand sides of subnormal numbers, which LAPACK scales: the solution had 25 times its error.
    Case("numpy.linalg.lstsq", "forced", (31, 31, 1), (), ("f4", "f8"), ("C", "C"), 0, (0, 69), 0, 0),
    # A pseudo-inverse that overflows float32 only.
    Case("numpy.linalg.pinv", "forced", (1, 1, 0), (), ("f4", "f4"), ("C", "C"), 0, (7, 0), 0, 0),
    # Pivots of subnormal complex numbers, whose reciprocals overflow.
    Case("numpy.linalg.slogdet", "forced", (2, 0, 0), (), ("c16", "f4"), ("C", "C"), 3, (49, 0), 0, 0),
    # A start 1e150 times the solution again, from which SciPy's recurrence ends in NaN or not, by rounding.
    Case("scipy.sparse.linalg.cg", "forced", (128, 0, 0), (), ("f8", "f8"), ("C", "C"), 0, (74, 68), 3, 0),
    # SciPy 1.17 warns by the norm of rows of A and that of columns of its inverse.
    Case("scipy.linalg.inv", "forced", (127, 0, 0), (), ("f4", "f4"), ("C", "C"), 4, (0, 0), 0, 1),
    # 2,032 equal terms: the bound grows with extents, and those of operands in a list did not count.
    Case("trnpy.multi_einsum", "forced", (16, 127, 0), (), ("f4", "f4"), ("F", "negative"), 1, (0, 0), 320, 0),
    # A product on the way is subnormal, and what it errs by is multiplied by 400: NumPy has another order.
    Case("numpy.linalg.multi_dot", "forced", (1, 1, 1), (), ("f8", "i1"), ("C", "C"), 4, (38, 0), 206, 327),
    # Orders that cost the same, of which NumPy's overflows.
    Case("numpy.linalg.multi_dot", "forced", (16, 16, 3), (), ("f8", "f8"), ("C", "C"), 4, (24, 47), 14, 0),
)
