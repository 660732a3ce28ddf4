"""Types of trnpy.linalg.interpolative: written by tests/typing/make_stubs.py."""

from scipy.linalg.interpolative import (
    estimate_rank as estimate_rank, estimate_spectral_norm as estimate_spectral_norm,
    estimate_spectral_norm_diff as estimate_spectral_norm_diff, id_to_svd as id_to_svd,
    interp_decomp as interp_decomp, reconstruct_interp_matrix as reconstruct_interp_matrix,
    reconstruct_matrix_from_id as reconstruct_matrix_from_id, reconstruct_skel_matrix as reconstruct_skel_matrix,
    svd as svd
)
