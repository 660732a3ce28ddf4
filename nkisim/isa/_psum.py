"""Products in PSUM: memory of the operands, accumulation, and storage of the result."""

from __future__ import annotations

import numpy as np

from nkisim.chip.context import current, hardware
from nkisim.chip.dtypes import Array
from nkisim.chip.errors import SimulatorError
from nkisim.chip.memory import Mask
from nkisim.chip.strictness import refuse
from nkisim.chip.tensor import NkiTensor

ONE_THREAD_PRODUCTS = 2**19  # multiplications; OpenBLAS uses threads for larger products (measured with 0.3.31)
PAGE = "nki/api/generated/nki.isa.nc_matmul"  # of AWS's documentation
GEN4 = 4  # trn3 and later can add a product to values that another instruction wrote


def check_places(opcode: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Refuse operands in other memory: TensorEngine reads SBUF and writes PSUM."""
    for role, tensor in {"dst": dst, **sources}.items():
        if not isinstance(tensor, NkiTensor):
            raise SimulatorError(f"{opcode}: {role} is {type(tensor).__name__}; a tile is needed", rule=23)
        wanted = "psum" if role == "dst" else "sbuf"
        if tensor.storage.buffer != wanted:
            raise SimulatorError(
                f"{opcode}: {role} is in {tensor.storage.buffer.upper()}; TensorEngine needs it in {wanted.upper()}",
                rule=23,
            )


def added(opcode: str, dst: NkiTensor, accumulate: bool | None, transpose: bool) -> bool | Mask:
    """True if the product is added to dst, False if it overwrites dst, or a mask of the elements to add to.

    accumulate=None overwrites elements that no product has written and adds to the others.
    """
    if transpose and accumulate:
        raise SimulatorError(f"{opcode}: a transpose does not accumulate", rule=24)
    if transpose or accumulate is False:
        return False
    return _inferred(opcode, dst, accumulate)


def _inferred(opcode: str, dst: NkiTensor, accumulate: bool | None) -> bool | Mask:
    """The accumulate flag for the current contents of dst; accumulate=True must be valid for every element."""
    products, written = dst.storage.products, dst.storage.written
    assert products is not None
    if products.covers(dst):
        return True
    if accumulate is None and not written.touches(dst):
        return False
    foreign = written.touches(dst) and not products.touches(dst)
    if foreign and hardware().generation >= GEN4 and written.covers(dst):
        return True
    if accumulate or foreign:
        found = "that another instruction than nc_matmul wrote" if foreign else "that no matrix product has started"
        message = f"{opcode}: accumulation onto PSUM {found} is undefined ({PAGE}); start with accumulate=False"
        refuse(current(), 24, message)
        return written.mask(dst)
    return products.mask(dst)


def store_product(dst: NkiTensor, a: Array, b: Array, addition: bool | Mask) -> None:
    """dst = or += a^T b, of a (K, M) and b (K, N) float32."""
    if dst.dtype == "float32" and dst.ndim == 2 and addition is False:
        dst.storage.cache.clear()
        _product(a, b, dst.array())
        return
    product = _product(a, b, np.empty((a.shape[1], b.shape[1]), np.float32)).reshape(dst.shape)
    if dst.dtype == "float32" and addition is True:
        dst.storage.cache.clear()
        np.add(dst.array(), product, out=dst.array())
        return
    if isinstance(addition, np.ndarray):
        product = np.where(addition, dst.float32() + product, product)
    elif addition:
        product = dst.float32() + product
    dst.write(product)


def _product(a: Array, b: Array, out: Array) -> Array:
    """Write a^T b to out in blocks of columns that BLAS computes with one thread.

    Waking threads for a tile of 128 x 128 x 512 costs more than the product, and far more if other
    processes use the cores.
    """
    (k, m), n = a.shape, b.shape[1]
    width = max(1, ONE_THREAD_PRODUCTS // (k * m))
    count = n // width
    if count:
        # Splitting the last dimension of a strided array gives a view, so the products are written into out.
        blocks = b[:, : count * width].reshape(k, count, width).transpose(1, 0, 2)
        np.matmul(a.T, blocks, out=out[:, : count * width].reshape(m, count, width).transpose(1, 0, 2))
    if n > count * width:
        np.matmul(a.T, b[:, count * width :], out=out[:, count * width :])
    return out
