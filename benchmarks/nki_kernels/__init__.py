"""Kernels rebuilt from the tilings that AWS published measurements of; the cost model is judged on them."""
