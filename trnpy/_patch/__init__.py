"""Replaces NumPy's and SciPy's functions, and restores them."""
