"""All names of scipy.linalg.interpolative."""

from scipy.linalg import interpolative as _scipy

from trnpy._call.namespace import public as _public

__all__ = _scipy.__all__
__doc__ = _scipy.__doc__

globals().update(_public(_scipy))
