"""Checks that a device result must pass before it is accepted: one file per kind of result (docs/numerics.md)."""
