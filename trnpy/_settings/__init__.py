"""The settings of a process and its measurements of the host."""
