"""What a process was told and what it measured."""
