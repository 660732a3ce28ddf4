"""Memories, tensors, data types, and the record of all instructions."""
