"""Whether a result of trnpy's sparse classes is what SciPy's would be."""

import numpy as np
import scipy.sparse

from trnpy.sparse._classes import OURS


def assert_corresponds(ours, theirs):
    """Same values, and trnpy's class where SciPy's result is of a sparse class."""
    assert type(ours) is OURS.get(type(theirs), type(theirs))
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_corresponds(mine, other)
    elif scipy.sparse.issparse(theirs):
        assert (ours.shape, ours.dtype, repr(ours)) == (theirs.shape, theirs.dtype, repr(theirs))
        np.testing.assert_array_equal(ours.toarray(), theirs.toarray())
    elif isinstance(theirs, (np.ndarray, np.generic)):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, (str, int, float, type)):
        assert ours == theirs
