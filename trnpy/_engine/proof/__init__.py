"""What a result of a device must show before it is accepted: one file for each kind of result (docs/numerics.md)."""
