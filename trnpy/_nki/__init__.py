"""The kernels, and the runtimes that launch them."""
