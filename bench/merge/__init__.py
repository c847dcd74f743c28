"""The fold of changes to the state and its peers in one run on the same files: CPU seconds, wall seconds, memory."""
