"""Types of trnpy.sparse: written by tests/typing/make_stubs.py."""

from scipy.sparse import (
    SparseEfficiencyWarning as SparseEfficiencyWarning, SparseWarning as SparseWarning, block_array as block_array,
    block_diag as block_diag, bmat as bmat, bsr_array as bsr_array, bsr_matrix as bsr_matrix, coo_array as coo_array,
    coo_matrix as coo_matrix, csc_array as csc_array, csc_matrix as csc_matrix, csr_array as csr_array,
    csr_matrix as csr_matrix, dia_array as dia_array, dia_matrix as dia_matrix, diags as diags,
    diags_array as diags_array, dok_array as dok_array, dok_matrix as dok_matrix, expand_dims as expand_dims,
    eye as eye, eye_array as eye_array, find as find, get_index_dtype as get_index_dtype, hstack as hstack,
    identity as identity, issparse as issparse, isspmatrix as isspmatrix, isspmatrix_bsr as isspmatrix_bsr,
    isspmatrix_coo as isspmatrix_coo, isspmatrix_csc as isspmatrix_csc, isspmatrix_csr as isspmatrix_csr,
    isspmatrix_dia as isspmatrix_dia, isspmatrix_dok as isspmatrix_dok, isspmatrix_lil as isspmatrix_lil,
    kron as kron, kronsum as kronsum, lil_array as lil_array, lil_matrix as lil_matrix, load_npz as load_npz,
    matrix_transpose as matrix_transpose, permute_dims as permute_dims, rand as rand, random as random,
    random_array as random_array, safely_cast_index_arrays as safely_cast_index_arrays, save_npz as save_npz,
    sparray as sparray, spdiags as spdiags, spmatrix as spmatrix, swapaxes as swapaxes, tril as tril, triu as triu,
    vstack as vstack
)
from trnpy.sparse import csgraph as csgraph, linalg as linalg
from trnpy.sparse._analysis import block_analysis as block_analysis, morton_order as morton_order
from trnpy.sparse._masks import (
    block_mask_matmul as block_mask_matmul, block_mask_matmul_gradients as block_mask_matmul_gradients,
    local_mask as local_mask, masked_attention as masked_attention,
    masked_attention_gradients as masked_attention_gradients
)
