"""Steps that may depend on the generation or the device: transposes by TensorE, and a number added by ScalarE.

``python -m trnpy doctor --probe`` launches each (docs/numerics.md#hardware-assumptions).
"""

import nki.isa as nisa
import nki.language as nl

TILE = 128


def turned_format(dtype):
    """The format of transposes of ``dtype`` in PSUM: before trn2 a transpose is a product, which gives float32."""
    return nl.float32 if nisa.get_nc_version() < nisa.nc_version.gen3 else dtype


def identity_of(dtype):
    """The identity by which ``turn`` multiplies tiles of ``dtype``; None if it uses nc_transpose."""
    if dtype == nl.float32 or nisa.get_nc_version() >= nisa.nc_version.gen3:
        return None
    ones = nl.ndarray((TILE, TILE), dtype=dtype, buffer=nl.sbuf)
    found = nl.ndarray((TILE, TILE), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    nisa.affine_select(
        dst=found, pattern=[[1, TILE]], channel_multiplier=-1, on_true_tile=ones, on_false_value=0.0, cmp_op=nl.equal
    )
    return found


def turn(dst, data, identity):
    """dst = data^T in PSUM of ``turned_format``, by TensorE.

    On trn1 it is not settled whether nc_transpose of 16-bit numbers writes PSUM of float32 or of their own format.
    A product with the identity writes float32 there, and is as fast, so kernels do not depend on the answer.
    """
    if identity == None:  # noqa: E711 - NKI has no `is`
        nisa.nc_transpose(dst=dst, data=data, engine=nisa.engine.tensor)
    else:
        rows = data.shape[0]
        nisa.nc_matmul(dst=dst, stationary=data, moving=identity[0:rows, 0:rows], accumulate=False)


def shift(dst, data, number, biases):
    """dst = data + number by ScalarE, or by VectorE on a device whose ScalarE does not add exactly (``biases``)."""
    if biases:
        nisa.activation(dst=dst, op=nl.copy, data=data, bias=number)
    else:
        nisa.tensor_scalar(dst=dst, data=data, op0=nl.add, operand0=number)
