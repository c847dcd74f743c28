"""The fold of changes into the state, and its peers, in one run on the same files: CPU and wall seconds, memory."""
