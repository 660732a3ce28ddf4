"""Kernels of eigenvalue and singular value problems."""
