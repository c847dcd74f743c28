"""Storage readers and their peers in one run on the same data: CPU seconds, wall seconds, memory."""
