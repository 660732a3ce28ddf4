"""Loads a kernel file and runs it on each core."""
