"""The upkeep of rows that change, with Writetime and with peers, in one run on the same batches: CPU seconds per batch.
"""
