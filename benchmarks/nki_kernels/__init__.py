"""Kernels rebuilt from the tilings of AWS's published measurements; the cost model is compared with them."""
