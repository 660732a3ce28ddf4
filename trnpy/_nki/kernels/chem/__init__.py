"""Kernels of quantum chemistry."""
