"""NKI kernels on any CPU: loads them unmodified, executes, checks and prices them. Imports nothing by itself."""
