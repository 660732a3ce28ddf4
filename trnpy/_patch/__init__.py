"""Replaces NumPy's and SciPy's functions, and puts them back."""
