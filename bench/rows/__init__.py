"""The upkeep of rows that change, by Writetime and by peers, in one run on the same batches: CPU seconds per batch."""
