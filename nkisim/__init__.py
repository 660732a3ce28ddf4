"""NKI kernels on any CPU: loads them unmodified, executes, checks and prices them. This file imports nothing."""
