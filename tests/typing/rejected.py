"""Lines that type checkers reject; the comment is a part of what mypy says."""

import numpy as np

import trnpy
from trnpy import chem, linalg
from trnpy.linalg import blas

a = np.eye(3)

trnpy.nonsense(a)  # error: Module has no attribute "nonsense"
trnpy.linalg.nonsense(a)  # error: Module has no attribute "nonsense"
trnpy.sparse.nonsense(a)  # error: Module has no attribute "nonsense"
trnpy.sparse.linalg.nonsense(a)  # error: Module has no attribute "nonsense"
chem.nonsense(a)  # error: Module has no attribute "nonsense"
print(blas.Any)  # error: Module has no attribute "Any"
linalg.cholesky(a, low=True)  # error: Unexpected keyword argument "low"
with trnpy.policy(machin="trn2"):  # error: Unexpected keyword argument "machin" for "policy"
    pass
with trnpy.policy(verify="often"):  # error: Argument "verify" to "policy" has incompatible type "str"
    pass
with trnpy.policy(device="gpu"):  # error: Argument "device" to "policy" has incompatible type "Literal['gpu']"
    pass
trnpy.Policy(fallback="ignore")  # error: Argument "fallback" to "Policy" has incompatible type "Literal['ignore']"
trnpy.einsum("ij,ij", a, a, optimise=True)  # error: No overload variant of "einsum" matches argument types
trnpy.patch(machin="trn2")  # error: Unexpected keyword argument "machin" for "patch"
trnpy.patched(machin="trn2")  # error: Unexpected keyword argument "machin" for "patched"
trnpy.explain("matmul", a, a)  # error: Argument 1 to "explain" has incompatible type "str"
print(trnpy.explain(trnpy.matmul, a, a).seconds)  # error: "Decision" has no attribute "seconds"
trnpy.Policy(machin="trn2")  # error: Unexpected keyword argument "machin" for "Policy"
print(linalg.inv_sqrtm(a, full_output=True).shape)  # error: Convergence]" has no attribute "shape"
