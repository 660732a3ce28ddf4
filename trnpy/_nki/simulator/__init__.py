"""NKI on any CPU: loads kernels unmodified, executes, checks, lints and prices them. Imports nothing by itself."""
