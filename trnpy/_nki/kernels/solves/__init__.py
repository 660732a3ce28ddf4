"""Kernels of linear systems."""
