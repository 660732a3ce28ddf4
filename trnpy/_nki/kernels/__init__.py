"""NKI kernels, one a file with its NumPy twin; nothing imports them but a runtime."""
