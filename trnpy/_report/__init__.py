"""What ran where, why, and how long."""
