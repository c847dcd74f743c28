"""The upkeep of rows that change, and its peers in one run on the same batches: CPU seconds per batch."""
