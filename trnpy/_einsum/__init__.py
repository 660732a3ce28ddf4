"""NumPy's products: matmul, dot, inner, tensordot, einsum, kron and lists of them."""
