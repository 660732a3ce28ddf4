"""Upstream's own installed tests, run on trnpy's functions: ``python -m conformance``."""
