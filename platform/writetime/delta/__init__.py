"""The Delta tables of the lake: storage, Parquet files, commits, checkpoints, versions and deletion vectors."""
