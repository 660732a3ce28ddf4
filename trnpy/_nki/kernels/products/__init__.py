"""Kernels of dense products."""
