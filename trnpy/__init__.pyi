"""Types of trnpy: written by tests/typing/make_stubs.py."""

from numpy import (
    dot as dot, einsum as einsum, einsum_path as einsum_path, inner as inner, kron as kron, matmul as matmul,
    matvec as matvec, outer as outer, tensordot as tensordot, vdot as vdot, vecdot as vecdot, vecmat as vecmat
)
from trnpy import chem as chem, dist as dist, linalg as linalg, sparse as sparse, xp as xp
from trnpy._call.dispatch import (
    Decision as Decision, FallbackError as FallbackError, NkiFallbackWarning as NkiFallbackWarning, Reason as Reason,
    explain as explain, trace as trace
)
from trnpy._cli.calibration import calibrate as calibrate
from trnpy._einsum.multi_einsum import multi_einsum as multi_einsum
from trnpy._einsum.plan_display import einsum_plan as einsum_plan
from trnpy._engine.engines import available as available
from trnpy._engine.residency import resident as resident
from trnpy._patch.patch import (
    is_patched as is_patched, original as original, patch as patch, patch_status as patch_status, patched as patched,
    unpatch as unpatch
)
from trnpy._report.ledger import profile as profile, report as report
from trnpy._settings.policy import Policy as Policy, current_policy as current_policy, policy as policy
from trnpy.xp import Array as Array, asarray as asarray

__version__: str
