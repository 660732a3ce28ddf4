"""Print the OpenBLAS kernels that NumPy and SciPy run here, once both have multiplied matrices with them.

The process dies where OPENBLAS_CORETYPE names kernels with instructions that the processor lacks (SIGILL), or with a
fault of OpenBLAS (SIGSEGV).  OpenBLAS may run others than those named: many builds have Haswell's for Zen.
"""

import numpy as np
import scipy.linalg.blas as blas
from threadpoolctl import threadpool_info

SIZE = 500  # kills OpenBLAS 0.3.34 (NumPy 2.5) where Haswell is forced on a Zen 4: OpenMathLib/OpenBLAS#6021

for dtype in "fdFD":
    a = np.ones((SIZE, SIZE), dtype)
    b = a @ a
    blas.get_blas_funcs("gemm", dtype=dtype)(1, b, a)
print(*sorted({pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"}))
