"""The engines: products and kernels that algorithms are written over, on the host or on a device."""
