"""CPU fast paths, which are faster than NumPy and SciPy without a device; trnpy also works without this folder.

TABLE maps each function that has such a path, with or without a row, to a module; its entries are in the module's
ROUTES. Such a module must not import a module that makes public functions of rows, because that reads the table.
"""

LINALG = "scipy.linalg."
STACKED = (
    "cholesky", "qr", "eigvalsh", "inv", "svd", "svdvals", "pinv", "lstsq", "det", "expm", "lu", "solve",
    "eig", "eigvals",
)  # fmt: skip
PRODUCTS = "numpy.matmul", "numpy.dot", "numpy.inner", "numpy.tensordot", "numpy.einsum"

TABLE = {
    **dict.fromkeys((*PRODUCTS, "pyscf.lib.einsum", "pyscf.lib.contract"), "contractions"),
    **dict.fromkeys([LINALG + name for name in STACKED], "stack_routes"),
    **dict.fromkeys([LINALG + name for name in ("sqrtm", "logm", "fractional_matrix_power")], "positive"),
    "scipy.linalg.eigh": "eigenpairs",
    "scipy.linalg.pinvh": "pseudo_inverse",
    "scipy.linalg.blas.sgemm": "gram",
    "scipy.linalg.blas.dgemm": "gram",
    "numpy.linalg.inv": "inverse",
    "scipy.sparse.matmul": "sparse_products",
    "regular_blocks": "spmm",
    "many_products": "many_products",
    "sampled_products": "sampled",
}
